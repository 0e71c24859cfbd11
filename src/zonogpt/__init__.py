"""zonogpt: proves that a GPT-2 model's answer does not change when its input moves inside a ball.

>>> import zonogpt
>>> model = zonogpt.load(zonogpt.zoo.path("digits"))
>>> images, labels = zonogpt.zoo.samples("digits")
>>> spec = zonogpt.image_ball(model, images[0], radius=1e-4)
>>> zonogpt.verify(model, spec).status
'verified'
"""

from typing import TYPE_CHECKING, Any

from zonogpt._version import __version__
from zonogpt.certificate import write_certificate
from zonogpt.certify import Certification, certify
from zonogpt.compare import Comparison, compare
from zonogpt.datasets import Dataset, open_dataset
from zonogpt.errors import CertificateError, ModelError, OptionError, SpecError, ZonoGptError
from zonogpt.inspection import inspect
from zonogpt.methods import METHODS
from zonogpt.model import zoo
from zonogpt.model.hf import load
from zonogpt.model.ir import Model, logits
from zonogpt.radius import CertifiedRadius, certified_radius
from zonogpt.result import Ledger, LedgerEntry, Result
from zonogpt.search.attack import Attack, attack
from zonogpt.spec.spec import Spec, embedding_ball, image_ball
from zonogpt.verify import verify, verify_many

if TYPE_CHECKING:
    from zonogpt.model.vision import GPT2ForImageClassification

__all__ = [
    "METHODS",
    "Attack",
    "CertificateError",
    "Certification",
    "CertifiedRadius",
    "Comparison",
    "Dataset",
    "GPT2ForImageClassification",
    "Ledger",
    "LedgerEntry",
    "Model",
    "ModelError",
    "OptionError",
    "Result",
    "Spec",
    "SpecError",
    "ZonoGptError",
    "__version__",
    "attack",
    "certified_radius",
    "certify",
    "compare",
    "embedding_ball",
    "image_ball",
    "inspect",
    "load",
    "logits",
    "open_dataset",
    "verify",
    "verify_many",
    "write_certificate",
    "zoo",
]


def __getattr__(name: str) -> Any:
    """GPT2ForImageClassification on first use: it pulls in transformers' modelling code, which proofs do not need."""
    if name == "GPT2ForImageClassification":
        from zonogpt.model.vision import GPT2ForImageClassification

        return GPT2ForImageClassification
    raise AttributeError(f"module 'zonogpt' has no attribute {name!r}")
