"""Runs all checks and reports them in order, as text for a terminal or as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mgpu_doctor.check import kernel_checks, software_checks, stack_checks, storage_checks
from mgpu_doctor.check.check_result import Check, CheckedMachine, CheckedResult, Level
from mgpu_doctor.report import text

CHECKS: tuple[Check, ...] = (
    *software_checks.GPU_CHECKS,
    *stack_checks.CHECKS,
    *kernel_checks.CHECKS,
    *software_checks.SOFTWARE_CHECKS,
    *storage_checks.CHECKS,
)


def check_all(
    machine: CheckedMachine, checks: Iterable[Check] = CHECKS
) -> tuple[CheckedResult, ...]:
    """Runs the checks; returns their results in the same order."""
    return tuple(CheckedResult(check, check.run(machine)) for check in checks)


SCHEMA = "mgpu-doctor/check/1"
NARROWEST, WIDEST = 40, 100
MARKS = {Level.PASS: "✓", Level.NOTE: "·", Level.WARN: "!", Level.FAIL: "✗"}
_ASCII = str.maketrans("✓·✗×→", "+-xx>")
_COLOURS = {Level.PASS: "32", Level.NOTE: "2", Level.WARN: "1;33", Level.FAIL: "1;31"}
"""Select Graphic Rendition: ECMA-48."""
_TITLE = 15


def render_text(
    results: Sequence[CheckedResult],
    *,
    width: int,
    colour: bool,
    unicode: bool,
    headline: str | None = None,
) -> str:
    """One line per check, with its remedy below; ends in a newline. Each level has its own mark."""
    width = max(NARROWEST, min(width, WIDEST))
    lines = [*_wrapped(headline or _headline(results), width), ""]
    for checked in results:
        lines += _lines(checked, width, colour)
    printed = "".join(f"{line}\n" for line in lines)
    return printed if unicode else printed.translate(_ASCII).encode("ascii", "replace").decode()


def render_json(results: Sequence[CheckedResult], more: Mapping[str, Any] | None = None) -> str:
    """Returns one JSON object. `more`: further keys of it."""
    listed = [
        {
            "id": checked.check.id,
            "title": checked.check.title,
            "level": checked.result.level.value,
            "said": checked.result.message,
            "remedy": checked.result.remedy or None,
        }
        for checked in results
    ]
    improvable = sum(checked.is_improvable for checked in results)
    document = {"schema": SCHEMA, "improvable": improvable, "checks": listed, **(more or {})}
    return json.dumps(document, indent=2) + "\n"


def _headline(results: Sequence[CheckedResult]) -> str:
    improvable = sum(checked.is_improvable for checked in results)
    if not improvable:
        return "Everything that mgpu-doctor can observe is available on this machine."
    return f"{improvable} of {len(results)} checks can be improved; → says how."


def _lines(result: CheckedResult, width: int, colour: bool) -> list[str]:
    level = result.result.level
    margin = " " * (_TITLE + 5)
    room = width - len(margin)
    message = _wrapped(result.result.message, room) or [""]
    mark = _style(MARKS[level], _COLOURS[level], colour)
    lines = [f" {mark} {result.check.title:<{_TITLE}}  {message[0]}"]
    lines += [margin + line for line in message[1:]]
    for i, line in enumerate(_wrapped(result.result.remedy, room - 2)):
        lines.append(margin + _style(f"{'→ ' if i == 0 else '  '}{line}", "36", colour))
    return lines


def _wrapped(message: str, width: int) -> list[str]:
    # People copy options and package names, so these must not be broken.
    return textwrap.wrap(text.line(message), width, break_on_hyphens=False)


def _style(label: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{label}\x1b[0m" if colour else label
