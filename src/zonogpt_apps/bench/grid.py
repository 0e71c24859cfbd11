"""What the paper's benchmark consists of: 16 models, five radii, and how many inputs and claims for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonogpt.errors import ModelError, OptionError

if TYPE_CHECKING:
    from transformers import GPT2Config

    from zonogpt.model.ir import Model

MNIST, SST = "mnist", "sst"
TASKS = (MNIST, SST)
SIZES = {"small": (768, 12), "medium": (1024, 16), "tiny": (32, 2)}  # width, heads; tiny: to try the chain out
DEPTHS = {"small": (2, 4, 8, 12), "medium": (2, 4, 8, 24)}
RADII = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3)
IMAGES, SENTENCES = 4, 18  # per model and radius
MOVED = (1, 3)  # token embeddings that move: one claim each
ROWS, N_CLASSES = 28, {MNIST: 10, SST: 2}
SENTENCE_TOKENS = 48  # the longest sentence; the paper pads to 32 or 48, we never pad
LAYER_NORM_EPSILON = 1e-5  # GPT-2's own
SEED = 0


@dataclass(frozen=True)
class ModelId:
    task: str
    size: str
    blocks: int

    def __str__(self) -> str:
        return f"{self.task}-{self.size}-{self.blocks}"

    @staticmethod
    def parse(text: str) -> ModelId:
        task, _, rest = text.partition("-")
        size, _, blocks = rest.partition("-")
        if task not in TASKS or size not in SIZES or not (blocks.isascii() and blocks.isdecimal() and int(blocks) > 0):
            raise OptionError(
                f"model {text!r} is unknown; they are called TASK-SIZE-BLOCKS with task {' or '.join(TASKS)},"
                f" size {', '.join(SIZES)}, as mnist-small-2"
            )
        return ModelId(task, size, int(blocks))

    @property
    def place(self) -> tuple[int, int, int]:
        """A sort key: models in the order of the paper's table."""
        return TASKS.index(self.task), list(SIZES).index(self.size), self.blocks


PAPER_MODELS = tuple(ModelId(task, size, blocks) for task in TASKS for size in DEPTHS for blocks in DEPTHS[size])


def parse_models(text: str | None) -> tuple[ModelId, ...]:
    """ "mnist-small-2,sst-medium-24", "mnist" or "sst" for all of a task; None for all sixteen."""
    if text is None:
        return PAPER_MODELS
    chosen: list[ModelId] = []
    for part in text.split(","):
        whole = [model for model in PAPER_MODELS if model.task == part]
        chosen += [model for model in whole or [ModelId.parse(part)] if model not in chosen]
    return tuple(chosen)


def config(model: ModelId, vocabulary: int) -> GPT2Config:
    """Hugging Face's GPT-2 configuration; only sizes are chosen here. `vocabulary` is for texts."""
    from transformers import GPT2Config  # slow

    width, heads = SIZES[model.size]
    images = model.task == MNIST
    out = GPT2Config(
        n_embd=width,
        n_head=heads,
        n_layer=model.blocks,
        n_positions=ROWS if images else SENTENCE_TOKENS,
        vocab_size=1 if images else vocabulary,
        num_labels=N_CLASSES[model.task],
        bos_token_id=None if images else vocabulary - 1,
        eos_token_id=None if images else vocabulary - 1,
        pad_token_id=None if images else vocabulary - 1,
    )
    if images:
        out.image_size, out.patch_size = (ROWS, ROWS), (1, ROWS)
    return out


def check_shape(net: Model, model: ModelId) -> None:
    """ModelError unless the network has the shape that its name stands for, which a hash of weights does not cover."""
    width, heads = SIZES[model.size]
    said = {
        "width": (net.width, width),
        "heads": (net.n_heads, heads),
        "blocks": (len(net.blocks), 2 * model.blocks),
        "hidden units": (net.hidden, 4 * width),
        "outputs": (net.n_outputs, N_CLASSES[model.task]),
        "input": (net.embedding.reads, "images" if model.task == MNIST else "texts"),
        "pool": (net.head.read, "mean" if model.task == MNIST else "last"),
        "layer_norm_epsilon": ({norm.tau for norm in net.norms}, {LAYER_NORM_EPSILON}),
    }
    for name, (found, wanted) in said.items():
        if found != wanted:
            raise ModelError(f"{net.name} is no {model}: {name} is {found}, not {wanted}")


def check_radii(radii: Sequence[float]) -> tuple[float, ...]:
    if not radii or any(not 0 < radius < float("inf") for radius in radii) or list(radii) != sorted(set(radii)):
        raise OptionError(f"radii must be positive and increase, each once; got {', '.join(f'{r:g}' for r in radii)}")
    return tuple(radii)
