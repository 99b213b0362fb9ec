"""All checks in display order, as text for a terminal and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mgpu_doctor.check import kernel_checks, software_checks, stack_checks, storage_checks
from mgpu_doctor.check.check_result import IMPROVABLE, Check, CheckedMachine, Level, Result
from mgpu_doctor.report import text

CHECKS: tuple[Check, ...] = (
    *software_checks.GPU_CHECKS,
    *stack_checks.CHECKS,
    *kernel_checks.CHECKS,
    *software_checks.SOFTWARE_CHECKS,
    *storage_checks.CHECKS,
)


@dataclass(frozen=True, slots=True)
class Checked:
    check: Check
    result: Result

    @property
    def improvable(self) -> bool:
        return self.result.level in IMPROVABLE


def check_all(machine: CheckedMachine, checks: Iterable[Check] = CHECKS) -> tuple[Checked, ...]:
    return tuple(Checked(check, check.run(machine)) for check in checks)


SCHEMA = "mgpu-doctor/check/1"
NARROWEST, WIDEST = 40, 100
MARKS = {Level.PASS: "✓", Level.NOTE: "·", Level.WARN: "!", Level.FAIL: "✗"}
_ASCII = str.maketrans("✓·✗×→", "+-xx>")
_COLOURS = {Level.PASS: "32", Level.NOTE: "2", Level.WARN: "1;33", Level.FAIL: "1;31"}
"""Select Graphic Rendition: ECMA-48."""
_TITLE = 15


def render(checked: Sequence[Checked], *, width: int, colour: bool, unicode: bool) -> str:
    """A line each, with what to do below it; ends in a newline. The marks tell without colours."""
    width = max(NARROWEST, min(width, WIDEST))
    lines = [*_wrapped(_headline(checked), width), ""]
    for one in checked:
        lines += _lines(one, width, colour)
    printed = "".join(f"{line}\n" for line in lines)
    return printed if unicode else printed.translate(_ASCII).encode("ascii", "replace").decode()


def as_json(checked: Sequence[Checked]) -> str:
    listed = [
        {
            "id": one.check.id,
            "title": one.check.title,
            "level": one.result.level.value,
            "said": one.result.said,
            "remedy": one.result.remedy or None,
        }
        for one in checked
    ]
    improvable = sum(one.improvable for one in checked)
    whole = {"schema": SCHEMA, "improvable": improvable, "checks": listed}
    return json.dumps(whole, indent=2) + "\n"


def _headline(checked: Sequence[Checked]) -> str:
    many = sum(one.improvable for one in checked)
    if not many:
        return "This machine lets the doctor see all that it can show."
    return f"{many} of {len(checked)} checks: something can be improved (→ how)."


def _lines(checked: Checked, width: int, colour: bool) -> list[str]:
    level = checked.result.level
    margin = " " * (_TITLE + 5)
    room = width - len(margin)
    said = _wrapped(checked.result.said, room) or [""]
    mark = _style(MARKS[level], _COLOURS[level], colour)
    lines = [f" {mark} {checked.check.title:<{_TITLE}}  {said[0]}"]
    lines += [margin + line for line in said[1:]]
    for i, line in enumerate(_wrapped(checked.result.remedy, room - 2)):
        lines.append(margin + _style(f"{'→ ' if i == 0 else '  '}{line}", "36", colour))
    return lines


def _wrapped(words: str, width: int) -> list[str]:
    # Options and package names are to be copied whole.
    return textwrap.wrap(text.line(words), width, break_on_hyphens=False)


def _style(words: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{words}\x1b[0m" if colour else words
