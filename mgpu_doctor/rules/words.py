"""Small things that several rules say alike."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Culprit, Severity

WARNING_COST = 0.05
"""Share of total time from which a finding about speed is a warning (the contract's severity)."""


def seconds(value: float) -> str:
    """A duration for people: `23.6 ms`, `1.42 s`."""
    if abs(value) < 1e-3:
        return f"{value * 1e6:.0f} µs" if value else "0 s"
    return f"{value * 1e3:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"


def duration(value: float) -> str:
    """A long one for people, roughly: `40 s`, `12 min`, `3.5 h`, `9.2 days`."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if value < limit:
            return f"{value / unit:.{value < 10 * unit:d}f} {name}"
    return f"{value / 86_400:.{value < 864_000:d}f} days"


def percent(share: float) -> str:
    """A share 0..1 for people: `4.2 %`, `38 %`."""
    return f"{share * 100:.1f} %" if abs(share) < 0.1 else f"{share * 100:.0f} %"


def size(count: float) -> str:
    """Bytes for people: `512 B`, `1.5 GiB`, `64 MiB`."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    shown = f"{value:.1f}" if value < 100 and value != int(value) else f"{value:.0f}"
    return f"{shown} {unit}"


def ranks(numbers: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, `ranks 0-1023`."""
    known = set(numbers)
    if len(known) == 1:
        return f"rank {min(known)}"
    parts = []
    for low, high in _spans(known):
        parts += [f"{low}-{high}"] if high - low > 1 else [str(n) for n in range(low, high + 1)]
    head, last = parts[:-1], parts[-1]
    return f"ranks {', '.join(head)} and {last}" if head else f"ranks {last}"


def plural(count: int, noun: str) -> str:
    """`1 core`, `2 cores`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def core_list(cores: Iterable[int]) -> str:
    """As `taskset -c` takes it: `0-3,8`."""
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in _spans(cores))


def _spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def culprit(measures: Measures, number: int) -> Culprit:
    """The rank with its host, device and pid as far as they are known."""
    rank = measures.rank(number)
    if rank is None:
        return Culprit(number)
    return Culprit(number, host=rank.host, device=rank.device, pid=rank.pid)


def by_cost(fraction: float) -> Severity:
    """The severity of something that costs a share of the step time."""
    return Severity.WARNING if fraction >= WARNING_COST else Severity.INFO
