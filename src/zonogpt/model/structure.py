"""Whether a transformers object is the network that its config describes, and nothing else.

A hook, a forward method of its own, another activation, a changed epsilon, an adapter inside: each makes another
network of the same config and weights. So the object is compared, module by module and attribute by attribute, with
one that transformers has just built from the same config (on the meta device, without weights). Whatever differs is
refused with its place; what may differ is named below.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._device import DeviceContext

from zonogpt.errors import ModelError
from zonogpt.model.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODULES = {
    "transformers.models.gpt2.modeling_gpt2": {
        "GPT2ForSequenceClassification", "GPT2LMHeadModel", "GPT2Model", "GPT2Block", "GPT2Attention", "GPT2MLP",
    },
    "transformers.pytorch_utils": {"Conv1D"},
    "transformers.activations": {"NewGELUActivation", "PytorchGELUTanh", "GELUTanh"},
    "torch.nn.modules.linear": {"Linear"},
    "torch.nn.modules.normalization": {"LayerNorm"},
    "torch.nn.modules.sparse": {"Embedding"},
    "torch.nn.modules.dropout": {"Dropout"},
    "torch.nn.modules.container": {"ModuleList"},
    "zonogpt.model.vision": {"GPT2ForImageClassification"},
}  # fmt: skip

# Attributes that loading, training and generating leave behind. None of them reaches the outputs in evaluation.
MAY_DIFFER = {"training", "name_or_path", "generation_config", "gradient_checkpointing", "loss_type", "config"}
MAY_BE_ADDED: dict[str, tuple[Any, ...]] = {
    "_is_hf_initialized": (True, False),
    "_use_kernels": (False,),
    "_weight_conversions": ([], None),
    "warnings_issued": ({},),
    "gradient_checkpointing": (True, False),
    "_output_capturing_hooks_installed": (True,),
    "_is_torch_compile": (True,),
}
# Whatever their value: used in training only.
OF_TRAINING = {"_require_grads_hook", "_require_grads_hooks", "_gradient_checkpointing_func"}
# Hooks that transformers leaves behind: they look at outputs, and do not change them.
LOOKING_ON = {"make_inputs_require_grads", "output_capturing_hook"}
ATTENTIONS = ("eager", "sdpa")

# The functions that forward passes call. One that is replaced would be a part of every network.
FUNCTIONS: list[tuple[Any, tuple[str, ...]]] = [
    (nn.Module, ("_call_impl", "_wrapped_call_impl", "__getattr__")),
    (
        nn.functional,
        ("linear", "layer_norm", "embedding", "dropout", "gelu", "softmax", "scaled_dot_product_attention"),
    ),
    (torch, ("addmm", "matmul", "tanh", "pow", "softmax", "layer_norm")),
]
MODES: set[type] = {DeviceContext}  # function modes that compute the same: torch.device("cuda") as a context
HELD = {"_parameters", "_buffers", "_modules"}


def require_plain(net: PreTrainedModel) -> None:
    """ModelError where the object is not what transformers builds from its config. The object is only read."""
    _check_globals()
    _check_config_object(net)
    for name, module in net.named_modules():
        _check_class(name, type(module))
    _check_attention(net.config)
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        plain = {type(tensor), type(tensor.detach())} <= {nn.Parameter, torch.Tensor}
        if not plain or tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided:
            kind = "on the meta device" if tensor.is_meta else f"a {_kind(tensor)}"
            raise ModelError(f"weight {name} is {kind}; load the model with plain weights in memory")
    reference = _fresh(net)
    theirs, ours = dict(net.named_modules()), dict(reference.named_modules())
    for name in [*theirs, *ours]:
        if name not in theirs or name not in ours:
            where = "has a module" if name in theirs else "lacks the module"
            raise ModelError(f"the object {where} {name}, unlike the model that transformers builds from its config")
        for difference in _differences(theirs[name], ours[name], net):
            raise ModelError(f"{_at(name, theirs[name])}: {difference}. A proof would be about another network")


def _kind(tensor: torch.Tensor) -> str:
    odd = type(tensor) if type(tensor) is not nn.Parameter else type(tensor.detach())
    return f"{odd.__name__} of {tensor.dtype} ({tensor.layout})"


def _fresh(net: PreTrainedModel) -> PreTrainedModel:
    try:
        with torch.device("meta"), quiet_transformers():
            return type(net)(copy.deepcopy(net.config))
    except Exception as error:  # transformers and torch may raise anything about an odd config
        raise ModelError(f"transformers builds no model from this config: {' '.join(str(error).split())}") from error


def _differences(theirs: nn.Module, ours: nn.Module, net: PreTrainedModel) -> Iterator[str]:
    """The differences between two modules, apart from their weights."""
    if type(theirs) is not type(ours):
        yield f"it is a {type(theirs).__name__} where the config asks for {type(ours).__name__}"
        return
    given, built = vars(theirs), vars(ours)
    for name in built.keys() - given.keys():
        yield f"the attribute {name} is missing"
    for name, value in given.items():
        if name in HELD:
            ordered = type(value) is type(built[name]) and list(value) == list(built[name])
            if not ordered:
                names = sorted(map(str, value.keys() ^ built[name].keys())) or map(str, value)
                yield f"{name.strip('_')} {', '.join(names)} are not those that the config asks for"
                return
            for key, tensor in value.items():
                if (tensor is None) != (built[name][key] is None):
                    yield f"{name.strip('_')} {key} is missing or too many"
        elif name in OF_TRAINING:
            continue
        elif name.endswith("_hooks") and not _looks_on(value):
            yield f"it has {name.strip('_').replace('_', ' ')}; remove them first"
        elif name == "config" and name in built:
            if value is not net.config and not _same_config(value, net.config):
                yield "its config is not the model's config"
        elif name.endswith("_hooks") or (name == "_attn_implementation" and value in ATTENTIONS):
            continue  # the second is stale after set_attn_implementation, and never read
        elif name not in built:
            allowed = MAY_BE_ADDED.get(name, ())
            if not any(_same(value, known) for known in allowed):
                yield f"the attribute {name} was added to it"
        elif name not in MAY_DIFFER and not _same(value, built[name]):
            yield f"{name} = {value!r} where the config gives {built[name]!r}"


def _looks_on(hooks: Any) -> bool:
    """Whether all of these hooks (there may be none) are transformers' own and change nothing."""
    found = hooks.values() if isinstance(hooks, dict) else hooks
    return all(getattr(hook, "__name__", "") in LOOKING_ON and _of_library(hook) for hook in found)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return type(one) is type(other) and bool(one == other)


def _same_config(one: Any, other: Any) -> bool:
    return type(one) is type(other) and vars(one) == vars(other)


def _check_config_object(net: PreTrainedModel) -> None:
    """ModelError if the config object may hold something that its dictionary, which was checked, does not show."""
    from transformers import GPT2Config

    if type(net.config) is not GPT2Config:
        raise ModelError(f"the object's config is a {type(net.config).__name__}, not a GPT2Config")
    odd = [name for name, value in vars(net.config).items() if callable(value) and not isinstance(value, type)]
    if odd:
        raise ModelError(f"the config has the function {odd[0]} of its own")


def _check_class(name: str, kind: type[nn.Module]) -> None:
    if (
        kind.__name__ not in MODULES.get(kind.__module__, ())
        or getattr(sys.modules.get(kind.__module__), kind.__name__, None) is not kind
    ):
        where = f"module {name}" if name else "the model"
        raise ModelError(f"{where} is a {kind.__module__}.{kind.__name__}, which zonogpt does not know")
    for method in ("forward", "__call__"):
        function = getattr(kind, method)
        if not all(_of_library(part) for part in (function, inspect.unwrap(function))):
            raise ModelError(f"{kind.__name__}.{method} has been replaced: it is not the library's own")
    definer, inner = next(base for base in kind.__mro__ if "forward" in vars(base)), inspect.unwrap(kind.forward)
    if definer is not nn.Module and inner.__qualname__ != f"{definer.__qualname__}.forward":
        raise ModelError(f"{kind.__name__}.forward has been replaced by {inner.__qualname__}")


def _check_attention(config: Any) -> None:
    """ModelError unless the attention registered under the config's name is transformers' own."""
    from transformers import modeling_utils
    from transformers.models.gpt2 import modeling_gpt2

    chosen = config._attn_implementation
    if chosen not in ATTENTIONS:
        raise ModelError(f"attention {chosen!r} is not known; load the model with attn_implementation='sdpa'")
    tables: list[Any] = [modeling_utils.ALL_ATTENTION_FUNCTIONS]
    masks = sys.modules.get("transformers.masking_utils")
    if masks is not None and hasattr(masks, "ALL_MASK_ATTENTION_FUNCTIONS"):
        tables.append(masks.ALL_MASK_ATTENTION_FUNCTIONS)
    functions = [modeling_gpt2.eager_attention_forward, *(table[chosen] for table in tables if chosen in table)]
    if not all(_of_library(function) for function in functions):
        raise ModelError(f"the attention registered as {chosen!r} is not transformers' own")


def _of_library(function: Any) -> bool:
    """Whether a function's code lies in a file of torch, transformers or our own image classifier."""
    import transformers

    code = getattr(function, "__code__", None)
    if code is None:
        return False
    file = Path(code.co_filename)
    libraries = [Path(str(library.__file__)).parent for library in (torch, transformers)]
    return any(file.is_relative_to(library) for library in libraries) or file == Path(__file__).parent / "vision.py"


def _check_globals() -> None:
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        if getattr(nn.modules.module, name):
            raise ModelError(
                f"torch has hooks for all modules ({name.strip('_').replace('_', ' ')}): remove them first"
            )
    for owner, names in FUNCTIONS:
        for name in names:
            function = getattr(owner, name)
            if not isinstance(function, types.BuiltinFunctionType) and not _of_library(function):
                raise ModelError(f"{owner.__name__}.{name} has been replaced: it is not torch's own")
    modes = torch.overrides._get_current_function_mode_stack()
    if any(type(mode) not in MODES for mode in modes):
        raise ModelError("a torch function mode is active, which may change every operation: load outside of it")
    if torch.get_default_device().type == "meta":
        raise ModelError("the default device is 'meta', which computes nothing: load outside of torch.device('meta')")


def _at(name: str, module: nn.Module) -> str:
    return f"{name} ({type(module).__name__})" if name else type(module).__name__
