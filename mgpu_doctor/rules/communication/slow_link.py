"""The network between hosts slows down the job: communication takes long although no rank is
late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mgpu_doctor.analysis.cost.communication_cost import measure_core_contention
from mgpu_doctor.analysis.machines.host_links import (
    LONG_ROUND_TRIP,
    SLOW_RATE,
    USUAL_ROUND_TRIP,
    HostLink,
    SlowLink,
    find_common_host,
    find_slow_links,
)
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Cost, Culprit, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_bytes, format_count, format_seconds, format_share
from mgpu_doctor.rules.communication import slow_rail
from mgpu_doctor.rules.communication.exposed_communication import exchanged, exposed_share
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule

MOST_LINKS = 4
"""Links that are listed in evidence."""
MOST_HOSTS = 8
"""Hosts in the command of a fix."""
SOURCE = "the kernel's counters of the ranks' TCP connections"
LOSS_COST = 0.2
"""Exposed communication, as a share of the step, from which a lossy link counts: what the loss
itself costs is not known."""
BUSY_EXPLAINS = 0.1
"""Share of the usual rate below which overloaded cores do not explain a low one, as in
`preflight`."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The slow links of a job, and what they cost."""

    slow: tuple[SlowLink, ...]
    links: tuple[HostLink, ...]
    share: float
    """Exposed communication, of the step."""
    step: float
    """Seconds per step."""
    source: str
    saved: float | None
    """Share of the step time that links like the others would save; None: unknown."""


def measure_link_cost(measures: Measures, least: float) -> LinkCost | None:
    """None: no link is known to be slow, or what it costs is less than `least` of the step."""
    step, links, longer = measures.step_seconds, measures.network.links, measures.network.longer
    moved = exposed_share(measures, exchanged(measures)) if links else None
    if moved is None or not step:
        return None
    share, source = moved
    if longer is not None:
        share, step = longer.moving.share, longer.step_seconds
    crowd = measure_core_contention(measures.case.ranks, measures.surroundings, share)
    crowded = crowd is not None and crowd.short
    slow = tuple(
        one for one in find_slow_links(links, step) if not (crowded and _is_busy_ends(one))
    )
    if not slow:
        return None
    costs = [_saved(one, share * step, step) for one in slow]
    known = max((cost for cost in costs if cost is not None), default=None)
    if known is not None and known >= least:
        slow = tuple(one for one, cost in zip(slow, costs, strict=True) if cost or one.is_lossy)
        return LinkCost(slow, links, share, step, source, known)
    lossy = tuple(one for one in slow if one.is_lossy)
    if not lossy or share < LOSS_COST:
        return None
    return LinkCost(lossy, links, share, step, source, None)


def _is_busy_ends(one: SlowLink) -> bool:
    """Whether overloaded cores may be all that is wrong with a link."""
    usual = one.usual_rate or SLOW_RATE
    alone = one.has_low_rate and not (one.has_long_round_trip or one.is_lossy)
    return alone and (one.link.rate or 0.0) >= BUSY_EXPLAINS * usual


def _saved(one: SlowLink, exposed: float, step: float) -> float | None:
    """Share of the step that a usual link would save: of the exposed seconds, those in which bytes
    move at its rate, and the rest, in which ranks wait for round trips."""
    link = one.link
    moving = min(exposed, link.per_second * step / link.rate) if link.rate else 0.0
    saved = None
    if one.has_long_round_trip and link.round_trip:
        usual = one.usual_round_trip or USUAL_ROUND_TRIP
        usual = usual if usual < LONG_ROUND_TRIP else USUAL_ROUND_TRIP  # the others are slow, too
        saved = (exposed - moving) * max(0.0, 1 - usual / link.round_trip)
    if one.has_low_rate and link.rate:
        usual = max(one.usual_rate or 0.0, SLOW_RATE)
        saved = (saved or 0.0) + moving * max(0.0, 1 - link.rate / usual)
    return None if saved is None else saved / step


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = measure_link_cost(measures, limits["cost"])
    if found is None:
        return
    step, longer = found.step, measures.network.longer
    host = find_common_host(found.slow, found.links)
    where = _place(found, host)
    yield Finding(
        code="slow-link",
        severity=Severity.WARNING if found.saved is None else severity_of_cost(found.saved),
        confidence=0.7 if found.saved is None else 0.85,
        title=f"{where[0].upper()}{where[1:]} is slowing down the job: {_describe(found.slow)}",
        cause="In each step, all ranks communicate for "
        f"{format_seconds(found.share * step)} ({format_share(found.share)}) after the last one "
        "has arrived, so no rank and no host is late. Suspect the interface that the ranks use "
        "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), its cable and switch port, and other traffic "
        "on it.",
        culprits=(Culprit(None, host=host),) if host is not None else (),
        evidence=(
            Evidence(
                "exposed communication, of the step", found.share, "fraction", None, found.source
            ),
            *(row for one in found.slow[:MOST_LINKS] for row in _list_evidence(one, step)),
        ),
        since_step=longer.step if longer is not None else 0,
        cost=Cost() if found.saved is None else Cost(found.saved, found.saved * step),
        fixes=tuple(_list_fixes(found)),
    )


def _place(found: LinkCost, host: str | None) -> str:
    """What is slow, in words."""
    if host is not None:
        return f"the network of host {host}"
    pairs = sorted({tuple(sorted(one.ends)) for one in found.slow})
    if len(pairs) == 1:
        return f"the network between {pairs[0][0]} and {pairs[0][1]}"
    every = {frozenset((link.source, link.target)) for link in found.links}
    if len(every) == len(pairs):
        return f"the network between all {len({end for pair in pairs for end in pair})} hosts"
    shown = ", ".join("-".join(pair) for pair in pairs[:MOST_LINKS])
    return f"the network between {format_count(len(pairs), 'pair')} of hosts ({shown})"


def _describe(slow: Sequence[SlowLink]) -> str:
    parts = []
    times = [one for one in slow if one.has_long_round_trip]
    if times:
        worst = max(times, key=lambda one: one.link.round_trip or 0.0)
        parts.append(f"a round trip takes {format_seconds(worst.link.round_trip)}")
    low = [one for one in slow if one.has_low_rate]
    if low:
        worst = min(low, key=lambda one: one.link.rate or 0.0)
        parts.append(
            f"{format_bytes(worst.link.rate)}/s arrive from {worst.link.source} at "
            f"{worst.link.target}"
        )
    lossy = [one for one in slow if one.is_lossy]
    if lossy:
        worst = max(lossy, key=lambda one: one.link.lost)
        parts.append(
            f"{format_share(worst.link.lost)} of the bytes from {worst.link.source} to "
            f"{worst.link.target} had to be sent again"
        )
    return ", and ".join(parts)


def _list_evidence(one: SlowLink, step: float) -> Iterable[Evidence]:
    link = one.link
    where = f"{link.source} to {link.target}"
    usual = one.usual_round_trip
    if link.round_trip is not None:
        is_smoothed = link.before is not None and link.before.round_trip is not None
        kind = "smoothed" if is_smoothed else "shortest"
        yield Evidence(f"{kind} round trip", link.round_trip, "s", usual, SOURCE, where)
    if link.rate is not None:
        yield Evidence(
            f"{'highest' if link.before is None else 'median'} rate while there was more to send",
            link.rate,
            "bytes/s",
            one.usual_rate,
            SOURCE,
            where,
        )
    yield Evidence("bytes sent again, of all", link.lost, "fraction", None, SOURCE, where)
    yield Evidence("sent per step", link.per_second * step, "bytes", None, SOURCE, where)


def _list_fixes(found: LinkCost) -> Iterable[Fix]:
    ends = sorted({end for one in found.slow for end in one.ends})[:MOST_HOSTS]
    predicted = None
    if found.saved is not None:
        predicted = Predicted(
            1 - found.saved,
            None,
            "what-if, at most: the time in which all ranks communicate, with the round trip and "
            "rate of the other pairs of hosts, or else 0.5 ms and 100 MB/s",
        )
    yield Fix(
        "repair-link",
        "Test the link without the job, and repair or avoid it",
        f"`mgpu-doctor preflight --hosts {','.join(ends)} --pairs` measures round trips and rates "
        "in both directions. `ip -s link` and `ethtool -S` on both hosts count errors and drops. "
        "If the hosts have another network, choose it with GLOO_SOCKET_IFNAME and "
        "NCCL_SOCKET_IFNAME.",
        predicted,
    )
    yield Fix(
        "communicate-less",
        "Send less over this link",
        "Until it is repaired, accumulate gradients over several batches; if parameters are "
        "sharded, shard them within hosts and replicate them between hosts.",
    )


SLOW_LINK = Rule(
    code="slow-link",
    family="slow",
    summary="The network between hosts is slow, all of it or one rail, and ranks wait for it.",
    measured="Linux measures each TCP connection of a rank anyway (tcp_info): shortest and "
    "smoothed round trip, rate while there was more to send, bytes sent again. These are sampled "
    "on each host and joined by address. Whether communication takes long is measured in steps, as "
    "for `communication-bound`: the time in collectives after the last rank has arrived.",
    thresholds="A round trip is long from 5 ms on, or from three times that of the other pairs of "
    "hosts and 0.5 ms more. A rate is low below 100 MB/s, or a quarter of the other pairs', if at "
    "least 1 MiB per step is sent, the receiver did not slow down the sender, and cores are not "
    "overloaded (or the rate is a tenth). A link is lossy if 1 % of its bytes are sent again; what "
    "that costs is not known, so communication must take a fifth of the step. All of these are "
    "choices, the absolute ones those of `preflight`. If all slow links end at one host, and it "
    "has no other, that host's network is named. The kernel remembers the shortest round trip for "
    "five minutes. So if bytes take three times as long to arrive as in the 15 minutes before, "
    "although no more are sent, the smoothed round trip counts, the least of at least three "
    "samples, if it is three times the earlier median; and rates are compared with the earlier "
    "ones. If communication takes 1.5 times as long from some step on, later steps are examined. "
    + slow_rail.THRESHOLDS,
    fixes="Test the link (`mgpu-doctor preflight --hosts A,B --pairs`), choose another interface "
    "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), or replace cable or port.",
    examine=_examine,
    needs=("step_seconds",),
    alternatives=(slow_rail.DETECTOR,),
    limits=(
        Limit(
            "cost",
            0.05,
            "fraction",
            "minimum share of the step time that a usual link would save (the contract's limit for "
            "a warning).",
        ),
    ),
    unverified="on GPUs, on a real network, and over RDMA, whose traffic these counters do not "
    "see; the times of rails were written in torch's format for the tests, not recorded",
)
RULES = (SLOW_LINK,)
