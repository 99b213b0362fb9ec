"""How numbers, rank lists and other people's words are written. Shared by every renderer."""

from __future__ import annotations

import re
from collections.abc import Callable

from mgpu_probes.outside import terminal_text as foreign

from mgpu_doctor.formatting import (
    UNKNOWN,
    format_bytes,
    format_number,
    format_seconds,
    format_share,
)

WIDEST_CODE = 100
"""A single longer line is prose: in a block of code one would have to scroll sideways."""
_SENTENCE = re.compile(r"^[A-Za-z]\w*(?:[,;]? \w[\w'-]*){2,}.*[a-z)]\.$")
"""Words, and a full stop right behind the last one, which no command ends with."""


def clean(text: str) -> str:
    """`text` without terminal escapes, control and invisible characters; newlines stay."""
    if text.isprintable():  # as nearly always: nothing of the below is
        return text
    return foreign.clean(text.replace("\r\n", "\n").expandtabs(4))


def details(how: str, summary: str) -> str:
    """What to type, cleaned; empty where the summary says all of it."""
    words = clean(how).strip("\n")
    return "" if line(words).rstrip(".") == line(summary).rstrip(".") else words


def is_prose(how: str) -> bool:
    """Whether it is a sentence, perhaps with `commands` in it, and no command to copy as it is."""
    if "\n" in how.strip():
        return False
    return "`" in how or len(how) > WIDEST_CODE or _SENTENCE.search(how) is not None


def with_code(words: str, plain: Callable[[str], str], code: Callable[[str], str]) -> str:
    """`words` with `code` applied to text between backticks and `plain` to all else."""
    between = words.split("`")
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
    """A measured value with its unit, as `Evidence` holds it."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return line(value)  # its unit only says what kind of text it is
    known = _UNITS.get(unit)
    return known(value) if known else f"{format_number(value)} {line(unit)}".strip()


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
