"""Re-checks certificates of zonogpt without sharing a line of code with it: numpy and safetensors only."""
