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
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"


def percent(share: float) -> str:
    """A share 0..1 for people: `4.2 %`, `38 %`."""
    return f"{share * 100:.1f} %" if abs(share) < 0.1 else f"{share * 100:.0f} %"


def ranks(numbers: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, `ranks 0-1023`."""
    known = sorted(set(numbers))
    if len(known) == 1:
        return f"rank {known[0]}"
    spans: list[list[int]] = []
    for number in known:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    parts = []
    for low, high in spans:
        parts += [f"{low}-{high}"] if high - low > 1 else [str(n) for n in range(low, high + 1)]
    head, last = parts[:-1], parts[-1]
    return f"ranks {', '.join(head)} and {last}" if head else f"ranks {last}"


def culprit(measures: Measures, number: int) -> Culprit:
    """The rank with its host, device and pid as far as they are known."""
    rank = measures.rank(number)
    if rank is None:
        return Culprit(number)
    return Culprit(number, host=rank.host, device=rank.device, pid=rank.pid)


def by_cost(fraction: float) -> Severity:
    """The severity of something that costs a share of the step time."""
    return Severity.WARNING if fraction >= WARNING_COST else Severity.INFO
