"""All methods by name."""

from zonogpt.methods.baselines import BASELINES
from zonogpt.methods.ellipsoidal import METHOD_E
from zonogpt.methods.method import Method
from zonogpt.methods.structured import VARIANTS

METHODS: dict[str, Method] = {"E": METHOD_E, **VARIANTS, **BASELINES}
