"""All methods by name."""

from zonogpt.errors import OptionError
from zonogpt.methods.baselines import BASELINES
from zonogpt.methods.ellipsoidal import METHOD_E
from zonogpt.methods.ledger import Guarantee
from zonogpt.methods.method import Method
from zonogpt.methods.structured import VARIANTS

METHODS: dict[str, Method] = {"E": METHOD_E, **VARIANTS, **BASELINES}

PARTS = ("name", "summary", "rounding_bounded", "rules", "sizes", "plan", "for_run", "batches", "bound_many")


def register_method(method: Method) -> None:
    """Makes a method known by its name to `verify`, `compare` and the command line's tables, in this process.

    OptionError if it lacks a part of `zonogpt.methods.method.Method`, or if its name is taken.
    """
    missing = [part for part in PARTS if not hasattr(method, part)]
    if missing:
        raise OptionError(f"{type(method).__name__} is no method: it has no {', '.join(missing)}")
    if not isinstance(method.name, str) or not method.name or "," in method.name:
        raise OptionError(f"a method's name is a text without commas; got {method.name!r}")
    if METHODS.get(method.name, method) is not method:
        raise OptionError(f"there is a method {method.name!r} already; choose another name")
    METHODS[method.name] = method


def guarantee(name: str) -> Guarantee:
    """How this method accounts for the rounding of its own bounds: they include it, or it is only estimated."""
    return "bounded" if METHODS[name].rounding_bounded else "estimated"
