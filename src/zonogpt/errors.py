"""What can go wrong through the user's input. Each message says what was given, what was expected, what to do.

And the one thing that must never go wrong, which is nobody's fault but ours.
"""


class ZonoGptError(Exception):
    """Base of every error that zonogpt raises on purpose."""


class ModelError(ZonoGptError):
    """The model cannot be read, or cannot be expressed in the IR."""


class SpecError(ZonoGptError):
    """The input set or the claim does not make sense for this model."""


class OptionError(ZonoGptError):
    """An option of a run (method, dtype, device, budget, timeout) is not one we know."""


class WriteError(OptionError):
    """A file or folder that cannot be written; the message names it."""


class WorkerError(ZonoGptError):
    """Worker processes that die of the same job again and again."""


class RecordError(ZonoGptError):
    """A text that should be a result of zonogpt, and is none."""


class CertificateError(ZonoGptError):
    """A proof has too little room for a certificate, whose checker rounds differently."""


class PrecisionError(ZonoGptError):
    """This machine computes with fewer bits than its arrays hold: no bound could be trusted."""


class UnsoundError(RuntimeError):
    """An input breaks a claim that was certified: a mistake in zonogpt, never in its input."""
