"""What a job's collectives cost, by the flight recorders of its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mgpu_doctor.analysis.collectives.collective_durations import GroupTimes, TimedCollective
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Evidence, Finding, Severity
from mgpu_doctor.formatting import (
    format_count,
    format_rank_numbers,
    format_seconds,
    format_share,
)
from mgpu_doctor.rules.rule import Limits, Rule

CODE = "collective-times"
SOURCE = "flight recorder"
MOST_GROUPS = 8
MOST_LAST = 4
WORST = 5
WORST_RANKS = 8


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    times = measures.collective_times
    if times is None or not times.groups:
        return
    yield Finding(
        code=CODE,
        severity=Severity.INFO,
        confidence=0.9,
        title=_title(times.groups[0]),
        cause=_cause(times.groups, times.unmatched),
        evidence=tuple(_evidence(times.groups, measures.step_seconds)),
    )


def _title(group: GroupTimes) -> str:
    transfer, wait = group.transfer_share, group.wait_share
    name = _name(group)
    if transfer is None or wait is None:
        return (
            f"In collectives of {name}, data moves for {format_seconds(group.transfer)}, and ranks "
            f"wait {format_seconds(group.wait)} for the last one to arrive"
        )
    return (
        f"In collectives of {name}, data moves for {format_share(transfer)} of the time, and ranks "
        f"wait {format_share(wait)} of the time for the last one to arrive"
    )


def _cause(groups: tuple[GroupTimes, ...], unmatched: int) -> str:
    count = sum(len(group.collectives) for group in groups)
    untimed = sum(group.untimed for group in groups)
    texts = [
        f"Timed on all of their ranks: {format_count(count, 'collective')}. The rank that spends "
        "the least time in a collective arrived last; that time is the transfer. Computation may "
        "hide both transfer and wait."
    ]
    if untimed:
        texts.append(f"Not timed on all ranks, or left out: {untimed} more in between.")
    if unmatched:
        texts.append(
            f"{format_count(unmatched, 'group')} left out: no collective was timed on all ranks."
        )
    return " ".join(texts)


def _evidence(groups: tuple[GroupTimes, ...], step: float | None) -> Iterator[Evidence]:
    for group in groups[:MOST_GROUPS]:
        name = _name(group)
        for what, share, seconds in (
            ("transfer", group.transfer_share, group.transfer),
            ("wait for the last rank, mean of the ranks", group.wait_share, group.wait),
        ):
            if share is None:
                yield Evidence(f"{what}, {name}", seconds, "s", None, SOURCE)
                continue
            yield Evidence(f"share of the time: {what}, {name}", share, "fraction", None, SOURCE)
            if step is not None:
                yield Evidence(f"per step: {what}, {name}", share * step, "s", None, SOURCE)
        for rank, times in group.last_arrivals.most_common(MOST_LAST):
            total = len(group.collectives)
            yield Evidence(f"rank {rank} arrived last, {name}", times, "collectives", total, SOURCE)
    worst = [(one, group) for group in groups for one in group.worst(WORST)]
    worst.sort(key=lambda pair: -pair[0].longest)
    for one, group in worst[:WORST]:
        yield from _collective_evidence(one, group)


def _collective_evidence(timed: TimedCollective, group: GroupTimes) -> Iterator[Evidence]:
    name = f"{timed.call.operation} {timed.sequence} of group {group.group}"
    site = timed.call.site
    where = None if site is None else f"{site[0]}:{site[1]}"
    last = "" if timed.last is None else f" (rank {timed.last} arrived last)"
    yield Evidence(f"{name}: transfer{last}", timed.transfer, "s", None, SOURCE, where)
    longest_first = sorted(timed.seconds.items(), key=lambda item: (-item[1], item[0]))
    for rank, seconds in longest_first[:WORST_RANKS]:
        yield Evidence(f"{name}: rank {rank}, arrival to end", seconds, "s", None, SOURCE)


def _name(group: GroupTimes) -> str:
    return f"group {group.group} (ranks {format_rank_numbers(group.ranks)})"


RULES: tuple[Rule, ...] = (
    Rule(
        code=CODE,
        family="slow",
        summary="How long collectives take: transfer, and waiting for the last rank.",
        measured="In dumps of torch's flight recorder, if the job timed its collectives "
        "(`mgpu-doctor trace --collectives`, or TORCH_NCCL_ENABLE_TIMING=1): NCCL's events on each "
        "rank's device, from the rank's arrival to the end, joined by group and sequence number. "
        "Compiled code is included, CUDA graphs are not. No clocks are compared. Left out: sends, "
        "receives, and collectives that some ranks leave early (broadcast, reduce, gather, "
        "scatter, all-to-all).",
        thresholds="No threshold. A rank counts as the last to arrive if it was 50 µs later than "
        "every other.",
        fixes="None: it only shows where the time goes. If one rank is nearly always last, run the "
        "job under `mgpu-doctor run`, which finds out why.",
        examine=_examine,
        unverified="on GPUs: the dumps of the tests are written in torch's format",
    ),
)
