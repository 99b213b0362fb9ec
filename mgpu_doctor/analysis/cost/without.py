"""What a step would take without some of the ranks' work."""

from __future__ import annotations

import numpy as np

from mgpu_doctor.analysis.cost.whatif import step_time
from mgpu_doctor.analysis.steps.cells import Floats


def saved_if(own: Floats, communication: Floats, removed: Floats) -> float:
    """Share of the step time, 0..1, that is saved if `removed` (T, R) seconds were not there; what
    is negative is added."""
    now = step_time(own, communication)
    after = step_time(np.maximum(own - removed, 0), communication)
    return max(0.0, 1 - after / now) if now > 0 else 0.0
