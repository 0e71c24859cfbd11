import os

import torch
from hypothesis import settings

# The same examples on every run; failures reproduce. Deadlines measure the machine, not the code.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("ci")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # one worker per core already
