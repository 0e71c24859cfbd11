"""Inputs through the Hugging Face model itself: the judge of counterexamples, which shares no code with the IR."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zonogpt.model import checkpoint
from zonogpt.model.config import gpt2_config
from zonogpt.model.ir import Model
from zonogpt.model.quiet import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HuggingFaceModel:
    """The model that `load` read, as transformers runs it, on the CPU. Built when it is first asked for."""

    def __init__(self, model: Model) -> None:
        self.architecture, self.source = model.architecture, model.source
        self._built: dict[torch.dtype, Any] = {}

    @property
    def available(self) -> bool:
        """A model that was put together by hand has none."""
        return self.source is not None

    def on_image(self, image: Tensor, dtype: torch.dtype) -> Tensor:  # (height, width) -> (outputs,)
        with torch.no_grad():
            return self._in(dtype)(image[None].to("cpu", dtype)).logits[0].double()

    def on_embeddings(self, ids: Tensor, positions: tuple[int, ...], raw: Tensor, dtype: torch.dtype) -> Tensor:
        """The outputs with these token embeddings (positions, d) in place of those of the ids; position embeddings are
        added by the model. No padding: the last id is the one that is read."""
        net = self._in(dtype)
        with torch.no_grad(), quiet_transformers():  # it would warn that it cannot see padding, of which there is none
            tokens = net.transformer.wte(ids.cpu())
            tokens[list(positions)] = raw.to("cpu", dtype)
            logits = net(inputs_embeds=tokens[None], use_cache=False).logits[0]
        return (logits[-1] if logits.dim() == 2 else logits).double()

    def _in(self, dtype: torch.dtype) -> PreTrainedModel:
        if dtype not in self._built:
            self._built[dtype] = self._build(dtype).to("cpu", dtype).eval()
        return self._built[dtype]

    def _build(self, dtype: torch.dtype) -> PreTrainedModel:
        import transformers  # slow to import, and most runs never need it

        from zonogpt.model.vision import GPT2ForImageClassification

        if isinstance(self.source, transformers.PreTrainedModel):
            return copy.deepcopy(self.source)
        ours = self.architecture == "GPT2ForImageClassification"
        kind: Any = GPT2ForImageClassification if ours else getattr(transformers, self.architecture)
        assert isinstance(self.source, Path)
        # Never the folder itself: transformers looks for more in there than the safetensors that were verified.
        tensors = checkpoint.read_tensors(self.source, self.architecture)
        config = gpt2_config(checkpoint.read_config(self.source), tensors)
        if ours and not any(name.endswith("wte.weight") for name in tensors):
            config.vocab_size = 1  # images use no such table, and a checkpoint may leave it out
        with quiet_transformers():
            return kind.from_pretrained(None, config=config, state_dict=tensors, torch_dtype=dtype)
