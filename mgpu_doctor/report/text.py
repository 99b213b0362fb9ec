"""Formats numbers, rank lists and untrusted text. Shared by every renderer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from mgpu_probes.outside import terminal_text as foreign

from mgpu_doctor.formatting import (
    UNKNOWN,
    format_bytes,
    format_number,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from mgpu_doctor.findings import Evidence

WIDEST_CODE = 100
"""Characters from which a single line is prose: in a block of code it would need scrolling."""
_SENTENCE = re.compile(r"^[A-Za-z]\w*(?:[,;]? \w[\w'-]*){2,}.*[a-z)]\.$")
"""Words ending with a full stop, which no command does."""


def clean(text: str) -> str:
    """`text` without terminal escapes, control and invisible characters; newlines stay."""
    if text.isprintable():  # the usual case: nothing to remove
        return text
    return foreign.clean(text.replace("\r\n", "\n").expandtabs(4))


def details(how: str, summary: str) -> str:
    """Returns the commands of a fix, cleaned; empty if the summary contains them."""
    instructions = clean(how).strip("\n")
    return "" if line(instructions).rstrip(".") == line(summary).rstrip(".") else instructions


def is_prose(how: str) -> bool:
    """Returns whether it is a sentence, perhaps with `commands` in it, and not a command to
    copy."""
    if "\n" in how.strip():
        return False
    return "`" in how or len(how) > WIDEST_CODE or _SENTENCE.search(how) is not None


def with_code(message: str, plain: Callable[[str], str], code: Callable[[str], str]) -> str:
    """Returns `message` with `code` applied to text between backticks and `plain` to the rest."""
    between = message.split("`")
    parts = []
    while between:
        parts.append(plain(between.pop(0)))
        if len(between) < 2:
            parts += [plain(f"`{rest}") for rest in between]
            break
        inside = between.pop(0)
        parts.append(code(inside) if inside.strip() else plain(f"`{inside}`"))
    return "".join(parts)


def line(text: str) -> str:
    """`clean(text)` on one line, runs of white space as one space."""
    return " ".join(clean(text).split())


def cut(text: str, width: int) -> str:
    """`text` in at most `width` characters: the middle of a long one is left out."""
    if len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def cut_words(text: str, width: int) -> str:
    """`text` with each word longer than `width` cut in the middle (paths, tensor shapes, …)."""
    return re.sub(r"\S+", lambda word: cut(word.group(), width), text)


def quantity(value: float | int | str | None, unit: str) -> str:
    """Returns a measured value of an `Evidence` with its unit."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return line(value)  # its unit only says what kind of text it is
    formatter = _UNITS.get(unit)
    return formatter(value) if formatter else f"{format_number(value)} {line(unit)}".strip()


def compared(evidence: Evidence) -> str:
    """Returns the value of an `Evidence`, with its baseline if there is one."""
    value = quantity(evidence.value, evidence.unit)
    if evidence.baseline is None:
        return value
    return f"{value} vs {quantity(evidence.baseline, evidence.unit)}"


_UNITS: dict[str, Callable[[float], str]] = {
    "s": format_seconds,
    "seconds": format_seconds,
    "B": format_bytes,
    "bytes": format_bytes,
    "bytes/s": lambda value: f"{format_bytes(value)}/s",
    "1": format_share,
    "fraction": format_share,
    "share": format_share,
    "ratio": lambda value: f"{format_number(value)} times",
    "code": lambda value: f"{value:.0f}",
    "Hz": lambda value: f"{format_number(round(value / 1e6))} MHz",
}
