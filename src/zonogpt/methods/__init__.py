"""All methods by name."""

from zonogpt.methods.baselines import BASELINES
from zonogpt.methods.ellipsoidal import METHOD_E
from zonogpt.methods.ledger import Guarantee
from zonogpt.methods.method import Method
from zonogpt.methods.structured import VARIANTS

METHODS: dict[str, Method] = {"E": METHOD_E, **VARIANTS, **BASELINES}


def guarantee(name: str) -> Guarantee:
    """Whether this method's verdicts hold whatever computing its bounds rounds off, or only as far as is estimated."""
    return "bounded" if METHODS[name].rounding_bounded else "estimated"
