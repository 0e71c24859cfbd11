"""Re-checks certificates of zonogpt without sharing a line of code with it: numpy and safetensors only."""

__version__ = "0.1.0"  # the same as zonogpt's, which requires this one
