"""The last step of a rank that came to its end. A step lasts until the next batch is asked for; the
next after the last one is that of a validation, so its record holds whatever comes before: saving,
loading, tracing."""

from __future__ import annotations

from mgpu_probes.inprocess.layout import OTHER

from mgpu_doctor.case.model import Records
from mgpu_doctor.recording.columns import phase_of

MOST = 0.5
"""Of the last step: with more that is in no phase, most of it belongs to no step. A choice."""


def without_rest(steps: Records) -> Records:
    """`steps`, all of a rank's, the last one without what is in no phase if that is most of it."""
    if len(steps) < 2:
        return steps
    wall, rest = int(steps["wall_ns"][-1]), float(phase_of(steps, OTHER)[-1]) * 1e9
    if not MOST * wall < rest <= wall:  # neither where it was not measured
        return steps
    changed = steps.copy()
    changed["wall_ns"][-1] -= round(rest)
    changed["end_ns"][-1] -= round(rest)
    changed["phases"][-1, OTHER] = 0.0
    return changed
