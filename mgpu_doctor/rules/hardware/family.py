"""All rules about hardware."""

from __future__ import annotations

from mgpu_doctor.rules.hardware import (
    ecc,
    lost,
    missing,
    numa,
    nvlink,
    pcie,
    throttled,
    topology,
    xid,
)
from mgpu_doctor.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *lost.RULES,
    *xid.RULES,
    *ecc.RULES,
    *nvlink.RULES,
    *pcie.RULES,
    *throttled.RULES,
    *topology.RULES,
    *numa.RULES,
    *missing.RULES,
)
