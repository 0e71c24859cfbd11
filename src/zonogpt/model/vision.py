"""GPT-2 as an image classifier, a Hugging Face model like any other.

Imported only when asked for: transformers' modelling code takes seconds to import, and proofs do not need it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model, GPT2PreTrainedModel
from transformers.modeling_outputs import ImageClassifierOutput

from zonogpt.model.layout import image_layout


class GPT2ForImageClassification(GPT2PreTrainedModel):  # type: ignore[misc]
    """Patches of raw pixels in [0, 1] -> linear projection -> GPT2Model -> mean over tokens -> linear classifier.

    `config.image_size` and `config.patch_size` are (height, width); patches are read row by row.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        (self.height, self.width), (self.patch_height, self.patch_width) = image_layout(config)
        self.projection = nn.Linear(self.patch_height * self.patch_width, config.n_embd)
        self.transformer = GPT2Model(config)
        self.classifier = nn.Linear(config.n_embd, config.num_labels)
        self.post_init()

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutput:  # pixel_values (batch, height, width)
        if pixel_values.dim() > 3 or pixel_values.shape[-2:] != (self.height, self.width):
            raise ValueError(
                f"pixel_values has shape {tuple(pixel_values.shape)}; this model reads (batch, {self.height},"
                f" {self.width}), one channel"
            )
        rows, columns = self.height // self.patch_height, self.width // self.patch_width
        grid = pixel_values.reshape(-1, rows, self.patch_height, columns, self.patch_width)
        patches = grid.transpose(2, 3).reshape(-1, rows * columns, self.patch_height * self.patch_width)
        hidden = self.transformer(inputs_embeds=self.projection(patches), use_cache=False).last_hidden_state
        logits = self.classifier(hidden.mean(dim=1))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
