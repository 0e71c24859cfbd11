"""A small text classifier whose labels have names, with a tokenizer beside it that adds tokens of its own."""

from __future__ import annotations

from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import GPT2TokenizerFast

from builders import config, text_classifier

LABELS = {0: "NEGATIVE", 1: "POSITIVE", 2: "NEUTRAL"}
SENTENCES = ["a good film", "a bad film", "good acting and an unforgettable story", "it is not good"]


def save_named_model(folder: Path, adds_tokens: bool = False, **changes: object) -> Path:
    """The tokenizer knows "good" as one token and spells "unforgettably" with several."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(SENTENCES * 9, vocab_size=320, min_frequency=1, special_tokens=["<s>", "</s>"])
    if adds_tokens:
        bpe._tokenizer.post_processor = TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    tokenizer = GPT2TokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<s>")
    tokenizer.save_pretrained(folder)
    labels = {"id2label": LABELS, "label2id": {name: k for k, name in LABELS.items()}}
    text_classifier(cfg=config(vocab_size=330, n_positions=32, **(labels | changes))).save_pretrained(folder)
    return folder
