"""The Hugging Face model itself as the Original: it judges the IR and counterexamples, and shares no code with us."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zonogpt.errors import ModelError
from zonogpt.model.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HuggingFaceModel:
    """A copy of the model that `load` was given, as transformers runs it in evaluation mode, on the CPU.

    It is made at once, in float64: later changes of the user's object do not matter.
    """

    name = "Hugging Face's model"

    def __init__(self, net: PreTrainedModel, folder: Path | None = None) -> None:
        self._built: dict[torch.dtype, Any] = {torch.float64: _copied(net, torch.float64).eval()}
        self.folder = folder  # where it was loaded from; None for an object
        self.agreed: set[str] = set()  # model/agreement.py's

    def on_image(self, image: Tensor, dtype: torch.dtype) -> Tensor:  # (height, width) -> (outputs,)
        with torch.no_grad():
            return self._in(dtype)(image[None].to("cpu", dtype), return_dict=True).logits[0].double()

    def on_ids(self, ids: Tensor, dtype: torch.dtype) -> Tensor:  # (S,) -> (outputs,)
        """The outputs at the last token that is not padding; of a language model, at the last token."""
        with torch.no_grad(), quiet_transformers():
            logits = self._in(dtype)(input_ids=ids[None].cpu(), use_cache=False, return_dict=True).logits[0]
        return (logits[-1] if logits.dim() == 2 else logits).double()

    def on_embeddings(self, ids: Tensor, positions: tuple[int, ...], raw: Tensor, dtype: torch.dtype) -> Tensor:
        """The outputs with these token embeddings (positions, d) in place of those of the ids; position embeddings are
        added by the model. No padding: the last id is the one that is read."""
        net = self._in(dtype)
        with torch.no_grad(), quiet_transformers():  # it would warn about padding, and there is none
            tokens = net.transformer.wte(ids.cpu())
            tokens[list(positions)] = raw.to("cpu", dtype)
            logits = net(inputs_embeds=tokens[None], use_cache=False, return_dict=True).logits[0]
        return (logits[-1] if logits.dim() == 2 else logits).double()

    def on_disk(self, scratch: Path) -> Path:
        """A directory that holds this model: the one it was loaded from, or `scratch`, where it is saved."""
        if self.folder is None:
            with quiet_transformers():
                self._in(torch.float64).save_pretrained(scratch)
        return self.folder or scratch

    def _in(self, dtype: torch.dtype) -> PreTrainedModel:
        if dtype not in self._built:
            self._built[dtype] = _copied(self._built[torch.float64], dtype)
        return self._built[dtype]


def _copied(net: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A copy on the CPU in this type, made without an intermediate copy in the net's own type."""
    memo: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach().to("cpu", dtype, copy=True), requires_grad=False)
        for weight in net.parameters()
    }
    return copy.deepcopy(net, memo).to("cpu", dtype)


def from_folder(folder: Path, architecture: str, config: Any) -> PreTrainedModel:
    """What transformers itself loads from a folder whose config.json and weights were checked: local safetensors only.

    Weights are held in the type that config.json names (transformers' "auto").
    """
    import transformers  # slow to import

    from zonogpt.model.vision import GPT2ForImageClassification

    ours = architecture == "GPT2ForImageClassification"
    kind: Any = GPT2ForImageClassification if ours else getattr(transformers, architecture)
    try:
        with quiet_transformers():
            net, info = kind.from_pretrained(
                folder, config=config, torch_dtype="auto", local_files_only=True, use_safetensors=True,
                output_loading_info=True,
            )  # fmt: skip
    except Exception as error:  # transformers may refuse files that we accept, in any way
        raise ModelError(f"transformers cannot load {folder}: {' '.join(str(error).split())[:300]}") from error
    missing = [name for name in info["missing_keys"] if not (ours and name == "transformer.wte.weight")]
    if missing or info["mismatched_keys"]:
        raise ModelError(f"transformers finds no {sorted(map(str, missing or info['mismatched_keys']))[0]} in {folder}")
    return net
