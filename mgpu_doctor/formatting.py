"""Formats numbers, durations, sizes, shares and ranks for findings and views.

The lowest module in the import order: it takes plain numbers and imports neither cases nor
findings.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable

_NAMED_SIGNALS = frozenset(int(number) for number in signal.Signals)
LEAST_REGULAR = 5
"""Ranks equally far apart are listed as `1, 3, 5 … 63` from this many on."""
UNKNOWN = "?"
"""Shown instead of a value that was not measured."""


def format_number(value: float) -> str:
    """Three significant digits, no exponent: 0.0123, 1.24, 31, 12800."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    if float(value).is_integer():
        return str(int(value))
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 9)}f}".rstrip("0").rstrip(".")


def format_seconds(value: float | None) -> str:
    """A duration in readable units: `31 ms`, `1.2 s`, `3 min 12 s`, `3 h 12 min`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 0:
        return f"-{format_seconds(-value)}"
    if value == 0:
        return "0 s"
    for limit, factor, unit in ((0.9995e-3, 1e6, "µs"), (0.9995, 1e3, "ms"), (59.95, 1.0, "s")):
        if value < limit:
            scaled = value * factor
            digits = f"{scaled:.2g}" if scaled < 9.95 else format_number(round(scaled, 1))
            return f"{digits} {unit}"
    whole = round(value)
    for size, unit, smaller_size, smaller_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            count, rest = whole // size, whole % size // smaller_size
            return f"{count} {unit} {rest} {smaller_unit}" if rest else f"{count} {unit}"
    return f"{whole} s"


def format_bytes(value: float | None) -> str:
    """A size with a binary prefix: `512 B`, `1.5 GiB`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{format_number(value)} {unit}"
        value /= 1024
    return f"{format_number(value)} TiB"


def format_share(fraction: float | None) -> str:
    """A share 0..1 as `45 %`; below 10 % with one digit more, `4.3 %`."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    digits = ".2g" if 0 < abs(fraction) < 0.0995 else ".0f"
    return f"{fraction * 100:{digits}} %"


def format_count(count: int, noun: str) -> str:
    """`1 rank`, `4 ranks`, `4 processes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun[-1] == 's' else 's'}"


def format_signal(number: int) -> str:
    """`SIGSEGV`, or `signal 42` if it has no name."""
    return name_signal(number) or f"signal {number}"


def name_signal(number: int | None) -> str | None:
    """`SIGSEGV`; None if the number is not that of a signal with a name."""
    return signal.Signals(number).name if number in _NAMED_SIGNALS else None


def format_ranks(ranks: Iterable[int], *, limit: int = 12) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, `ranks 0-1023`, `ranks 1, 3, 5 … 63`; after `limit` items
    `… and 40 more`."""
    numbers = set(ranks)
    if regular := _format_regular(sorted(numbers)):
        return f"ranks {regular}"
    items: list[str] = []
    for first, last in _find_runs(numbers):
        items += [f"{first}-{last}"] if last - first > 1 else map(str, range(first, last + 1))
    return f"rank{'' if len(numbers) == 1 else 's'} {_join(items, len(numbers), limit)}"


def format_rank_numbers(ranks: Iterable[int], *, limit: int = 12) -> str:
    """For narrow places: `0-2, 5`; after `limit` runs `… and 40 more`."""
    runs = _find_runs(ranks)
    shown = ", ".join(map(_format_run, runs[:limit]))
    left = sum(last - first + 1 for first, last in runs[limit:])
    return f"{shown} and {left} more" if left else shown


def format_cores(cores: Iterable[int]) -> str:
    """CPU cores as `taskset -c` takes them: `0-3,8`."""
    return ",".join(map(_format_run, _find_runs(cores)))


def _format_regular(numbers: list[int]) -> str | None:
    """`1, 3, 5 … 63`; None if the numbers are few, adjacent or not equally far apart."""
    if len(numbers) < LEAST_REGULAR or numbers[1] - numbers[0] == 1:
        return None
    if numbers != list(range(numbers[0], numbers[-1] + 1, numbers[1] - numbers[0])):
        return None
    return f"{', '.join(map(str, numbers[:3]))} … {numbers[-1]}"


def _join(items: list[str], count: int, limit: int) -> str:
    """`0, 1 and 3`; of more than `limit` items, how many of `count` are not listed."""
    if len(items) > limit:
        shown = items[:limit]
        listed = sum(_count_in(item) for item in shown)
        return f"{', '.join(shown)} and {count - listed} more"
    *others, last = items or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _count_in(item: str) -> int:
    first, _, last = item.partition("-")
    return int(last) - int(first) + 1 if last else 1


def _format_run(run: tuple[int, int]) -> str:
    first, last = run
    return str(first) if first == last else f"{first}-{last}"


def _find_runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def suggest(typed: str, names: Iterable[str], *, most: int = 1) -> str:
    """`Did you mean X?`, or `Did you mean X, Y?`, with the names that are nearest to `typed`, else
    those that contain it; empty if there are none."""
    import difflib  # only needed after a mistake

    known = list(names)
    near = difflib.get_close_matches(typed, known, n=most)
    near = near or [name for name in known if len(typed) > 2 and typed in name][:most]
    return f"Did you mean {', '.join(near)}?" if near else ""
