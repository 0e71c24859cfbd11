"""All methods by name."""

from zonogpt.methods.method import Method
from zonogpt.methods.structured import VARIANTS

METHODS: dict[str, Method] = {**VARIANTS}
