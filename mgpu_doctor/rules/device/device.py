"""Rules that need a GPU."""

from __future__ import annotations

from mgpu_doctor.rules.device import precision, replicas, throttled, transfer, utilization
from mgpu_doctor.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *throttled.RULES,
    *utilization.RULES,
    *transfer.RULES,
    *precision.RULES,
    *replicas.RULES,
)
