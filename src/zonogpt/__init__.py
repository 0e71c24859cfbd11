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
from zonogpt.datasets import Dataset, open_dataset
from zonogpt.errors import CertificateError, ModelError, OptionError, SpecError, ZonoGptError
from zonogpt.methods import METHODS
from zonogpt.methods.ledger import Ledger, LedgerEntry
from zonogpt.model import zoo
from zonogpt.model.hf import load
from zonogpt.model.ir import Model, logits
from zonogpt.search.descent import Attack, attack
from zonogpt.spec.spec import Spec, embedding_ball, image_ball
from zonogpt.studies.accuracy.certification import Certification, certify
from zonogpt.studies.radii.comparison import Comparison, compare
from zonogpt.studies.radii.radius import CertifiedRadius, certified_radius
from zonogpt.verification.api import verify, verify_many
from zonogpt.verification.certificate import write_certificate
from zonogpt.verification.inspection import inspect
from zonogpt.verification.result import Result

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
