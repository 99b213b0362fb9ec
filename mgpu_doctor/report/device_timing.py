"""Which clock measured the phases, how far hosts are ahead of their GPUs, and GPUs that are busy
waiting, in words.
"""

from __future__ import annotations

from collections.abc import Sequence

from mgpu_doctor.case.device_times import BoundBy, RunAhead
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.findings import BusyWaiting, RankSummary
from mgpu_doctor.formatting import UNKNOWN, format_ranks, format_seconds, format_share

ALIKE = 0.1
"""Share by which the two bounds of a run-ahead may differ to be written as one number."""
BOUND = {BoundBy.HOST: "host-bound: ", BoundBy.DEVICE: "device-bound: "}


def format_run_ahead(lead: RunAhead | None) -> str:
    """Returns `23 ms`, `> 20 ms` or `< 2 ms` for tables, as far as known."""
    return _bounded(lead, "> ", "< ")


def _bounded(lead: RunAhead | None, at_least: str, at_most: str) -> str:
    if lead is None:
        return UNKNOWN
    if lead.most is not None and lead.most - lead.least <= ALIKE * lead.most:
        return format_seconds(lead.most)
    if lead.least > 0:
        return f"{at_least}{format_seconds(lead.least)}"
    return UNKNOWN if lead.most is None else f"{at_most}{format_seconds(lead.most)}"


def describe_timing(rank: RankSummary) -> str | None:
    """Returns what measured a rank's phases, and how far its host was ahead; None if it computes on
    the CPU, or if no step was recorded."""
    if rank.clock is PhaseClock.HOST:
        return "phases unknown: the host's clock does not show what the GPU did"
    if rank.clock is not PhaseClock.DEVICE:
        return None
    ahead = _bounded(rank.run_ahead, "at least ", "at most ")
    lead = (
        f"the host is {ahead} ahead" if ahead != UNKNOWN else "how far the host is ahead is unknown"
    )
    return f"phases by the GPU's clock; {BOUND[rank.bound_by] if rank.bound_by else ''}{lead}"


def name_clocks(ranks: Sequence[RankSummary]) -> str:
    """Returns `by the GPUs' own clocks`, with the ranks of each clock if there are several; empty
    if no clock is a GPU's."""
    by_clock: dict[PhaseClock, list[int]] = {}
    for rank in ranks:
        if rank.clock is not None and rank.rank is not None:
            by_clock.setdefault(rank.clock, []).append(rank.rank)
    if {*by_clock} <= {PhaseClock.CPU}:
        return ""
    clock_names = {
        PhaseClock.DEVICE: "by the GPUs' own clocks",
        PhaseClock.CPU: "by the host's clock",
        PhaseClock.HOST: "unknown, as only the host's clock measured them,",
    }
    if len(by_clock) == 1:
        return clock_names[next(iter(by_clock))].rstrip(",")
    return ", ".join(
        f"{clock_names[clock]} on {format_ranks(numbers)}" for clock, numbers in by_clock.items()
    )


def summarize_timing(ranks: Sequence[RankSummary]) -> str:
    """Returns sentences: which ranks are host-bound or device-bound, and which GPUs are busy
    waiting for which ranks; empty if unknown."""
    bound = {
        side: [rank.rank for rank in ranks if rank.bound_by is side and rank.rank is not None]
        for side in BoundBy
    }
    sentences = []
    if slow := bound[BoundBy.HOST]:
        verb, gpus = ("is", "its GPU waits") if len(slow) == 1 else ("are", "their GPUs wait")
        owner = "its host" if len(slow) == 1 else "their hosts"
        subject = format_ranks(slow).capitalize()
        sentences.append(f"{subject} {verb} host-bound: {gpus} for {owner}.")
    if busy := bound[BoundBy.DEVICE]:
        verb = "is" if len(busy) == 1 else "are"
        sentences.append(f"{format_ranks(busy).capitalize()} {verb} device-bound.")
    if waiting := summarize_busy_waiting(ranks):
        sentences.append(f"{waiting}.")
    return " ".join(sentences)


def describe_busy_waiting(waiting: BusyWaiting) -> str:
    """`100 % busy, but at least 60 % of it waiting for rank 3`."""
    awaited = "other ranks" if waiting.waits_for is None else f"rank {waiting.waits_for}"
    part = f"at least {format_share(waiting.waiting)}" if waiting.waiting < 1 else "all"
    return f"{format_share(waiting.utilization)} busy, but {part} of it waiting for {awaited}"


def summarize_busy_waiting(ranks: Sequence[RankSummary]) -> str:
    """Returns the same for the largest group of ranks that wait for one rank, with the lowest of
    their values; empty if no GPU is busy waiting."""
    groups: dict[int | None, list[RankSummary]] = {}
    for rank in ranks:
        if rank.busy_waiting is not None and rank.rank is not None:
            groups.setdefault(rank.busy_waiting.waits_for, []).append(rank)
    if not groups:
        return ""
    largest = max(groups.values(), key=len)
    busy_waits = [rank.busy_waiting for rank in largest if rank.busy_waiting is not None]
    least = BusyWaiting(
        busy_waits[0].gpu,
        min(wait.utilization for wait in busy_waits),
        min(wait.waiting for wait in busy_waits),
        busy_waits[0].waits_for,
    )
    numbers = [rank.rank for rank in largest if rank.rank is not None]
    gpus = "The GPU" if len(numbers) == 1 else "The GPUs"
    verb = "is" if len(numbers) == 1 else "are"
    return f"{gpus} of {format_ranks(numbers)} {verb} {describe_busy_waiting(least)}"
