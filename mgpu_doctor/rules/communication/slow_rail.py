"""A rail, or the network between some hosts, is slow: by timed collectives of groups that span
hosts."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.collectives.slow_paths import (
    LEAST_CALLS,
    LEAST_OTHERS,
    SlowPath,
    find_slow_path,
)
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted
from mgpu_doctor.formatting import format_rank_numbers, format_seconds
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.rule import Detector, Limits

SOURCE = "flight recorder"
MOST_GROUPS = 8
"""Groups of each sort that are listed in evidence."""
MOST_HOSTS = 8
"""Hosts that are named on each side."""
MEASURED = (
    "If the job timed its collectives (see `collective-times`), process groups with one rank on "
    "each of several hosts are compared with each other: those of the same size, in calls of the "
    "same operation, shapes and types. Only the transfer counts, from the arrival of the last rank "
    "to the end, so no late rank causes this. If all slow groups are of one local rank, or of a "
    "few, and no others are, these rails are named; if all slow groups go between two sets of "
    "hosts, or two hosts, and no others do, these hosts. Otherwise nothing is reported."
)
THRESHOLDS = (
    "Of timed groups, the fastest slow one must take twice as long as the slowest other one, and "
    "0.1 ms more per collective; their quartiles must not overlap. "
    f"At least {LEAST_OTHERS} groups must be fast, most rails must be, and each kind of call must "
    f"have been timed {LEAST_CALLS} times. If groups within a host are slow among the same ranks, "
    "nothing is reported. These are choices."
)


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    path = find_slow_path(measures.collective_times, measures.case.ranks)
    if path is None or path.saved is None or path.saved < limits["cost"]:
        return
    step = measures.step_seconds
    worst = max(path.slow, key=lambda group: group.seconds)
    where = _place(path)
    yield Finding(
        code="slow-link",
        severity=severity_of_cost(path.saved),
        confidence=0.8 if path.within_hosts else 0.65,
        title=f"{where[0].upper()}{where[1:]} is slow: a collective takes "
        f"{format_seconds(worst.seconds)} there, and {format_seconds(path.usual)} elsewhere",
        cause=_explain(path),
        evidence=tuple(_list_evidence(path)),
        cost=Cost(path.saved, None if step is None else path.saved * step),
        fixes=(_fix(path),),
    )


def _place(path: SlowPath) -> str:
    """What is slow, in words."""
    if path.rails:
        numbers = format_rank_numbers(path.rails)
        if len(path.rails) == 1:
            return f"the network of rail {numbers} (local rank {numbers} of each host)"
        return f"the network of rails {numbers} (local ranks {numbers} of each host)"
    first, second = (_name_hosts(side) for side in path.sides)
    return f"the network between {first} and {second}"


def _name_hosts(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:MOST_HOSTS])
    more = len(hosts) - MOST_HOSTS
    return f"{shown} and {more} more" if more > 0 else shown


def _explain(path: SlowPath) -> str:
    texts = [
        "These times begin when the last rank of a group has arrived, and other groups of the same "
        "size make the same calls faster, so no rank is late."
    ]
    if path.rails:
        texts.append(
            "The same hosts are as fast as usual over other rails. Suspect the interface that "
            "these local ranks use on one of the hosts, its cable, its switch, and other traffic "
            "there."
        )
    else:
        texts.append(
            "Suspect the switches and cables between these hosts, and other traffic there."
        )
    if path.within_hosts:
        texts.append("Within their hosts, these ranks exchange data as fast as others do.")
    else:
        texts.append(
            "No groups within hosts were compared, so a slow path between a GPU and its interface "
            "is not ruled out."
        )
    return " ".join(texts)


def _list_evidence(path: SlowPath) -> Iterable[Evidence]:
    for group in path.slow[:MOST_GROUPS]:
        name = f"transfer of a collective, median, group {group.times.group}"
        where = f"ranks {format_rank_numbers(group.ranks)}"
        yield Evidence(name, group.seconds, "s", path.usual, SOURCE, where)
    for group in path.fast[:MOST_GROUPS]:
        name = f"transfer of a collective, median, group {group.times.group} (not slow)"
        where = f"ranks {format_rank_numbers(group.ranks)}"
        yield Evidence(name, group.seconds, "s", None, SOURCE, where)


def _fix(path: SlowPath) -> Fix:
    hosts = sorted({host for group in path.slow for host in group.hosts})[:MOST_HOSTS]
    how = (
        f"`mgpu-doctor preflight --hosts {','.join(hosts)} --pairs` measures round trips and rates "
        "over the default interface. Then use `ib_write_bw`, `ethtool -S` or `ibqueryerrors` on "
        "the interface of these ranks: NCCL_DEBUG=INFO shows which one each rank uses "
        "(`NET/IB : Using`). Until it is repaired, NCCL_IB_HCA and NCCL_SOCKET_IFNAME choose other "
        "interfaces."
    )
    saved = path.saved or 0.0
    basis = "what-if, at most: the transfers of these groups as long as the others'"
    predicted = Predicted(1 - saved, None, basis)
    return Fix("repair-link", "Test this part of the network, and repair it", how, predicted)


DETECTOR = Detector(_examine, MEASURED, needs=("collective_times",), fallback=True)
