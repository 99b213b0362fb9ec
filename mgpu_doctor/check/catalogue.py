"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.check import gpus, kernel, room, software, stacks
from mgpu_doctor.check.model import IMPROVABLE, Check, Machine, Result

CHECKS: tuple[Check, ...] = (
    *gpus.CHECKS,
    *stacks.CHECKS,
    *kernel.CHECKS,
    *software.CHECKS,
    *room.CHECKS,
)


@dataclass(frozen=True, slots=True)
class Checked:
    check: Check
    result: Result

    @property
    def improvable(self) -> bool:
        return self.result.level in IMPROVABLE


def check_all(machine: Machine, checks: Iterable[Check] = CHECKS) -> tuple[Checked, ...]:
    return tuple(Checked(check, check.run(machine)) for check in checks)
