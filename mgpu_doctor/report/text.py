"""How numbers, rank lists and other people's words are written. Shared by every renderer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from mgpu_probes.outside import text as foreign

UNKNOWN = "?"
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
    """`words` with what stands between two backticks as `code` and all else as `plain`."""
    between = words.split("`")
    told = []
    while between:
        told.append(plain(between.pop(0)))
        if len(between) < 2:
            told += [plain(f"`{rest}") for rest in between]
            break
        inside = between.pop(0)
        told.append(code(inside) if inside.strip() else plain(f"`{inside}`"))
    return "".join(told)


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


def number(value: float) -> str:
    """Three significant digits, no exponent: 0.0123, 1.24, 31, 12800."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    if float(value).is_integer():
        return str(int(value))
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 9)}f}".rstrip("0").rstrip(".")


def seconds(value: float | None) -> str:
    """A duration as people say it: `31 ms`, `1.24 s`, `3 min 12 s`, `3 h 12 min`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0:
        return f"-{seconds(-value)}"
    if value == 0:
        return "0 s"
    for limit, factor, unit in ((0.9995e-3, 1e6, "µs"), (0.9995, 1e3, "ms"), (59.95, 1.0, "s")):
        if value < limit:
            scaled = value * factor
            return f"{scaled:.2g} {unit}" if scaled < 9.95 else f"{number(round(scaled, 1))} {unit}"
    whole = round(value)
    for size, unit, part, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {small}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def size(value: float | None) -> str:
    """Bytes with binary prefixes: `512 B`, `1.5 GiB`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{number(value)} {unit}"
        value /= 1024
    return f"{number(value)} TiB"


def percent(fraction: float | None) -> str:
    """A share 0..1 as `45 %`; below 10 % with one digit more."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{fraction * 100:.2g} %" if 0 < abs(fraction) < 0.0995 else f"{fraction * 100:.0f} %"


def quantity(value: float | int | str | None, unit: str) -> str:
    """A measured value with its unit, as `Evidence` holds it."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return line(value)  # its unit only says what kind of text it is
    known = _UNITS.get(unit)
    return known(value) if known else f"{number(value)} {line(unit)}".strip()


_UNITS: dict[str, Callable[[float], str]] = {
    "s": seconds,
    "seconds": seconds,
    "B": size,
    "bytes": size,
    "bytes/s": lambda value: f"{size(value)}/s",
    "1": percent,
    "fraction": percent,
    "share": percent,
    "ratio": lambda value: f"{number(value)} times",
    "code": lambda value: f"{value:.0f}",
    "Hz": lambda value: f"{number(round(value / 1e6))} MHz",
}


def ranks(numbers: Iterable[int], *, limit: int = 12) -> str:
    """`0-2, 5`; after `limit` runs: `… and 40 more`."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(numbers)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:limit])
    left = sum(b - a + 1 for a, b in runs[limit:])
    return f"{shown} and {left} more" if left else shown


def name_ranks(numbers: Sequence[int], *, limit: int = 12) -> str:
    """`rank 2`, `ranks 0-2, 5`."""
    plural = "" if len(set(numbers)) == 1 else "s"
    return f"rank{plural} {ranks(numbers, limit=limit)}"


def count(many: int, thing: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{many} {thing}" if many == 1 else f"{many} {thing}s"
