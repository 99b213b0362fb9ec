"""mgpu-doctor: which rank, why, the evidence, the fix and what it will gain.

`phase` and `step` mark loops that no hook can read; `mgpu_doctor.api` diagnoses, compares and plans
from Python (docs/python.md).
"""

from mgpu_doctor.loop_marks import phase, step

__all__ = ["__version__", "phase", "step"]

__version__ = "0.1.0"
