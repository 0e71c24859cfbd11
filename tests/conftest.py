import os

import torch
from hypothesis import settings

# The same examples on every run; failures reproduce. Deadlines measure the machine, not the code.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("ci")

if "PYTEST_XDIST_WORKER" in os.environ:
    # One worker per core already. Programs that a test starts inherit the variable: with two threads each they would
    # spin at OpenMP's barriers beside another worker, three times as slow, and for minutes when two of them meet.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
