"""Trainers of PyTorch: each file here is a strategy, what they share is in `common`."""

import os

LAUNCHER = os.getppid()
"""Taken before torch is loaded, which takes seconds."""
