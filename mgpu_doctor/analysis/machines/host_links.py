"""What the network between the hosts of a job did while it trained, and which parts of it are slow.
Pure.

Counters of the kernel, of the TCP connections of ranks. Whoever sends measures: a link has two
directions, and a sample of the sender shows one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from mgpu_doctor.analysis.steps.warm_up import (
    LEADING,
    all_after_warm_up,
    spans_after_warm_up,
)
from mgpu_doctor.case.host_samples import HostSample, TcpLink
from mgpu_doctor.case.model import Case

LONG_ROUND_TRIP = 5e-3
"""Seconds from which a round trip is long by itself, as in `preflight`: each step has several."""
USUAL_ROUND_TRIP = 0.5e-3
"""Seconds of a round trip within a data centre: a generous choice."""
MORE_ROUND_TRIP = 3.0
"""Factor by which a round trip must exceed the other pairs' median, and by `USUAL_ROUND_TRIP`."""
SLOW_RATE = 100e6
"""Bytes per second below which a link is slow by itself: less than 1 Gbit/s Ethernet moves."""
LESS_RATE = 0.25
"""Share of the other pairs' median below which a rate is slow. A choice: rates of single bursts
differ by a factor of two."""
LOSSY, LEAST_RESENT = 0.01, 1 << 18
"""Share of the bytes, and bytes, that had to be sent again, from which a link is lossy: with 1 %, a
TCP connection waits for a lost segment many times per second. A choice."""
HELD = 0.5
"""Share of the time with data on its way in which the receiver took no more, from which a low rate
is the receiver's."""
LEAST_PER_STEP, BULK_PER_STEP = 1 << 14, 1 << 20
"""Bytes sent per step, from which a round trip counts, and from which a rate does: less is heard of
the network in the first bursts of a connection."""
LEAST_SAMPLES = 2
BEFORE, LEAST_BEFORE = 900.0, 5
"""Seconds before the examined steps, and samples in them, with which a link is compared to find out
whether it has become slower. Three times as long as the kernel remembers the shortest round trip,
so that most of these samples are older than a change until that shows it."""
LEAST_SINCE = 3
"""Samples since then that must agree."""
SLOWER = 3.0
"""Factor by which bytes must take longer to arrive than before."""
Reading = tuple[float, TcpLink]
"""Seconds since the epoch, and the counters so far."""
MANY = 64
"""Links from which on one of them is compared with all: a single one does not move their median."""


@dataclass(frozen=True, slots=True)
class EarlierLink:
    """What a link did before it became slower: medians of samples."""

    round_trip: float | None
    """Seconds, smoothed by the kernel; None: it has not become three times as long."""
    rate: float | None
    """Bytes per second; None: unknown."""


@dataclass(frozen=True, slots=True)
class HostLink:
    """What `source` sent to `target` while the job trained. None: unknown."""

    source: str
    target: str
    per_second: float
    """Bytes."""
    lost: float
    """Share of the bytes, 0..1, that had to be sent again."""
    resent: float
    """Bytes."""
    held: float
    """Share of the time with data on its way, 0..1, in which the receiver took no more."""
    round_trip: float | None
    """Seconds: the median of samples, each the shortest of five minutes; if it has become longer,
    the least of those that the kernel smoothed."""
    rate: float | None
    """Bytes per second: the best of the samples in which there was more to send; of a link that
    became slower, their median, because the kernel keeps one until there is more to send again."""
    samples: int
    before: EarlierLink | None = None
    """None: it is not known to have become slower."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that is slow. `usual_…`: of the other pairs; None: there are none."""

    link: HostLink
    usual_round_trip: float | None
    usual_rate: float | None
    has_long_round_trip: bool
    has_low_rate: bool
    is_lossy: bool

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.link.source, self.link.target))


def measure_links(case: Case, since: float = 0.0) -> tuple[HostLink, ...]:
    """The links over which the job's hosts sent something by TCP, by host: in the steps of the
    case, from `since` (seconds since the epoch) on."""
    hosts = {rank.host for rank in case.ranks if rank.host is not None}
    if len(hosts) < 2:
        return ()
    samples: dict[str, list[HostSample]] = defaultdict(list)
    for sample in case.host_samples:
        if sample.links and sample.host in hosts:
            samples[str(sample.host)].append(sample)
    if not samples:
        return ()
    names = _name_addresses(samples)
    spans = _find_spans(case)
    links = []
    for host, own in samples.items():
        first, begin, end = spans.get(host, (0.0, 0.0, float("inf")))
        begin = max(begin, since)
        series: dict[str, list[Reading]] = defaultdict(list)
        earlier: dict[str, list[Reading]] = defaultdict(list)
        for sample in own:
            for address, link in sample.links.items() if first <= sample.at <= end else ():
                if names.get(address, host) != host:
                    kept = series if sample.at >= begin else earlier
                    kept[address].append((sample.at, link))
        by_target: dict[str, list[HostLink]] = defaultdict(list)
        for address, readings in series.items():
            if len(readings) >= LEAST_SAMPLES:
                now = _sum_up(host, names[address], readings)
                by_target[names[address]].append(_compare(now, readings, earlier[address]))
        # A host with several addresses: the one that carries most.
        links += [max(several, key=lambda one: one.per_second) for several in by_target.values()]
    return tuple(sorted(links, key=lambda link: (link.source, link.target)))


def _name_addresses(samples: Mapping[str, Iterable[HostSample]]) -> dict[str, str]:
    """Address -> host; those that several hosts have, such as a container's, are left out."""
    owners: dict[str, set[str]] = defaultdict(set)
    for host, own in samples.items():
        for sample in own:
            for address in sample.addresses:
                owners[address].add(host)
    return {address: min(hosts) for address, hosts in owners.items() if len(hosts) == 1}


def _find_spans(case: Case) -> dict[str, tuple[float, float, float]]:
    """Host -> from when on samples are of training, and the begin and end of the ranks' steps after
    warm-up, in seconds since the epoch."""
    spans: dict[str, tuple[float, float, float]] = {}
    for rank, span in zip(case.ranks, spans_after_warm_up(case.ranks), strict=True):
        if span is not None:
            _, begin, end = spans.get(rank.host, (0.0, 0.0, float("inf")))
            begin, end = max(begin, span[0]), min(end, span[1])
            has_earlier_steps = int(all_after_warm_up(rank.steps)["step"][0]) > LEADING
            spans[rank.host] = (begin - BEFORE if has_earlier_steps else begin, begin, end)
    return spans


def _sum_up(source: str, target: str, readings: Sequence[Reading]) -> HostLink:
    links = [link for _, link in readings]
    sent = _grown(link.sent for link in links)
    resent = _grown(link.resent for link in links)
    busy = _grown(link.busy for link in links)
    times = _list_known("round_trip", readings)
    return HostLink(
        source=source,
        target=target,
        per_second=_sent_per_second(readings),
        lost=resent / sent if sent else 0.0,
        resent=resent,
        held=_grown(link.held for link in links) / busy if busy else 0.0,
        round_trip=median(times) if times else None,
        rate=max(_list_known("rate", readings), default=None),
        samples=len(links),
    )


def _compare(link: HostLink, readings: Sequence[Reading], before: Sequence[Reading]) -> HostLink:
    """The link, with what it did before, if it has become slower: bytes take longer to arrive
    although no more are sent, so it is not the job's own traffic that fills the link."""
    now = _speed(readings)
    usual = [speed for pair in pairwise(before) if (speed := _speed(pair)) is not None]
    times, earlier = (_list_known("smoothed", part) for part in (readings, before))
    if now is None or len(times) < LEAST_SINCE or min(len(usual), len(earlier)) < LEAST_BEFORE:
        return link
    if now * SLOWER > median(usual) or link.per_second > _sent_per_second(before):
        return link
    rates, old_rates = (_list_known("rate", part) for part in (readings, before))
    rate, old_rate = (median(part) if part else None for part in (rates, old_rates))
    time, old_time = min(times), median(earlier)
    if time <= MORE_ROUND_TRIP * old_time:
        return replace(link, rate=rate, before=EarlierLink(None, old_rate))
    return replace(link, round_trip=time, rate=rate, before=EarlierLink(old_time, old_rate))


def _list_known(name: str, readings: Iterable[Reading]) -> list[float]:
    values = (getattr(link, name) for _, link in readings)
    return [value for value in values if value is not None]


def _sent_per_second(readings: Sequence[Reading]) -> float:
    (first, _), (last, _) = readings[0], readings[-1]
    return _grown(link.sent for _, link in readings) / max(last - first, 1e-9)


def _speed(readings: Sequence[Reading]) -> float | None:
    """Bytes per second in which a connection had some on their way and the receiver took them;
    None: none were sent."""
    links = [link for _, link in readings]
    sent, busy, held = (
        _grown(getattr(link, name) for link in links) for name in ("sent", "busy", "held")
    )
    return sent / (busy - held) if sent and busy > held else None


def _grown(counter: Iterable[float | None]) -> float:
    """How much a counter grew; where it fell, connections were closed."""
    grown, before = 0.0, None
    for now in counter:
        if now is not None and before is not None:
            grown += max(0.0, now - before)
        before = now if now is not None else before
    return grown


def find_slow_links(links: Sequence[HostLink], step: float) -> tuple[SlowLink, ...]:
    """The links that are slow, of those that carry something in each step of `step` seconds."""
    used = [link for link in links if link.per_second * step >= LEAST_PER_STEP]
    of_all = _find_usual(used)
    slow = []
    for link in used:
        usual_time, usual_rate = of_all
        if len(used) < MANY:
            ends = {link.source, link.target}
            usual_time, usual_rate = _find_usual(
                [one for one in used if {one.source, one.target} != ends]
            )
        if link.before is not None:
            usual_rate = link.before.rate
            usual_time = usual_time if link.before.round_trip is None else link.before.round_trip
        found = SlowLink(
            link,
            usual_time,
            usual_rate,
            has_long_round_trip=_is_long(link.round_trip, usual_time),
            has_low_rate=link.per_second * step >= BULK_PER_STEP
            and link.held < HELD
            and _is_low(link.rate, usual_rate),
            is_lossy=link.lost >= LOSSY and link.resent >= LEAST_RESENT,
        )
        if found.has_long_round_trip or found.has_low_rate or found.is_lossy:
            slow.append(found)
    return tuple(slow)


def _find_usual(links: Sequence[HostLink]) -> tuple[float | None, float | None]:
    """The medians of round trips and rates."""
    times = [one.round_trip for one in links if one.round_trip is not None]
    rates = [one.rate for one in links if one.rate is not None]
    return median(times) if times else None, median(rates) if rates else None


def _is_long(seconds: float | None, usual: float | None) -> bool:
    if seconds is None:
        return False
    more = usual is not None and seconds > MORE_ROUND_TRIP * usual
    return seconds >= LONG_ROUND_TRIP or (more and seconds - (usual or 0.0) > USUAL_ROUND_TRIP)


def _is_low(rate: float | None, usual: float | None) -> bool:
    if rate is None:
        return False
    return rate < SLOW_RATE or (usual is not None and rate < LESS_RATE * usual)


def find_common_host(slow: Sequence[SlowLink], links: Sequence[HostLink]) -> str | None:
    """The host at which all slow links end, if it has no other links and at least two pairs; None:
    there is no such host."""
    common = frozenset.intersection(*(one.ends for one in slow)) if slow else frozenset()
    for host in sorted(common):
        pairs = {frozenset((one.source, one.target)) for one in links}
        of_host = {pair for pair in pairs if host in pair}
        if len(of_host) >= 2 and of_host == {one.ends for one in slow}:
            return host
    return None
