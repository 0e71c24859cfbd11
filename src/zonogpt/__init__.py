"""zonogpt: proves that a GPT-2 model's answer does not change when its input moves inside a ball.

>>> import zonogpt
>>> model = zonogpt.load(zonogpt.zoo.path("digits"))
>>> images, labels = zonogpt.zoo.samples("digits")
>>> spec = zonogpt.image_ball(model, images[0], radius=1e-4)
>>> zonogpt.verify(model, spec).status
'verified'

The names in `__all__` are the public interface. From 0.1 on, a name or an argument that is to go, or to mean something
else, warns for one release first (docs/python.md, "Stability").
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zonogpt._version import __version__

if TYPE_CHECKING:
    from zonogpt.datasets import Dataset, open_dataset
    from zonogpt.errors import (
        CertificateError,
        ModelError,
        OptionError,
        PrecisionError,
        RecordError,
        SpecError,
        UnsoundError,
        WorkerError,
        WriteError,
        ZonoGptError,
    )
    from zonogpt.methods import METHODS, register_method
    from zonogpt.methods.ledger import Ledger, LedgerEntry
    from zonogpt.model import zoo
    from zonogpt.model.hf import load
    from zonogpt.model.ir import Model, logits
    from zonogpt.model.names import text
    from zonogpt.model.tokenizer import Text
    from zonogpt.model.vision import GPT2ForImageClassification
    from zonogpt.search.descent import Attack, attack
    from zonogpt.spec.spec import Spec, embedding_ball, image_ball
    from zonogpt.studies.accuracy.certification import Certification, certify
    from zonogpt.studies.radii.comparison import Comparison, compare
    from zonogpt.studies.radii.radius import CertifiedRadius, certified_radius
    from zonogpt.verification.api import verify, verify_many
    from zonogpt.verification.certificate import write_certificate
    from zonogpt.verification.inspection import Inspection, inspect
    from zonogpt.verification.result import Result
    from zonogpt.verification.verifier import Verifier

__all__ = [
    "METHODS",
    "Attack",
    "CertificateError",
    "Certification",
    "CertifiedRadius",
    "Comparison",
    "Dataset",
    "GPT2ForImageClassification",
    "Inspection",
    "Ledger",
    "LedgerEntry",
    "Model",
    "ModelError",
    "OptionError",
    "PrecisionError",
    "RecordError",
    "Result",
    "Spec",
    "SpecError",
    "Text",
    "UnsoundError",
    "Verifier",
    "WorkerError",
    "WriteError",
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
    "register_method",
    "text",
    "verify",
    "verify_many",
    "write_certificate",
    "zoo",
]

# Where each name comes from. It is imported when it is first asked for: torch takes a second, `--version` needs none.
_HOMES = {
    name: home
    for home, names in {
        "datasets": "Dataset open_dataset",
        "errors": "CertificateError ModelError OptionError PrecisionError RecordError SpecError UnsoundError"
        " WorkerError WriteError ZonoGptError",
        "methods": "METHODS register_method",
        "methods.ledger": "Ledger LedgerEntry",
        "model": "zoo",
        "model.hf": "load",
        "model.ir": "Model logits",
        "model.names": "text",
        "model.tokenizer": "Text",
        "model.vision": "GPT2ForImageClassification",
        "search.descent": "Attack attack",
        "spec.spec": "Spec embedding_ball image_ball",
        "studies.accuracy.certification": "Certification certify",
        "studies.radii.comparison": "Comparison compare",
        "studies.radii.radius": "CertifiedRadius certified_radius",
        "verification.api": "verify verify_many",
        "verification.certificate": "write_certificate",
        "verification.inspection": "Inspection inspect",
        "verification.result": "Result",
        "verification.verifier": "Verifier",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zonogpt' has no attribute {name!r}")
    home = import_module(f"zonogpt.{_HOMES[name]}")
    value = import_module(f"{home.__name__}.{name}") if name == "zoo" else getattr(home, name)
    globals()[name] = value  # from now on found without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
