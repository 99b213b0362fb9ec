"""slow-link: the network between hosts is named if all ranks wait for it, and only then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from mgpu_doctor.analysis.machines.host_links import measure_links
from mgpu_doctor.case.host_samples import HostSample, TcpLink
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Fault, Synthetic, synthetic_case

LONG = 0.060
"""Communication of a step of 27 ms of work."""
HEALTHY: Mapping[str, Any] = {
    "round_trip": 1e-4,
    "smoothed": 4e-4,
    "speed": 1e8,
    "rate": 1_000_000_000,
    "lost": 0.0,
    "held": 0.0,
}
PER_STEP = 2_000_000
Pair = tuple[str, str]


def job(
    hosts: int = 2,
    links: Mapping[Pair, Mapping[str, Any]] | None = None,
    *,
    later: Mapping[Pair, Mapping[str, Any]] | None = None,
    more: int = 1,
    per_step: int = PER_STEP,
    communication: float = LONG,
    **fields: Any,
) -> Case:
    """A job with two ranks per host, `a`, `b` and so on. `links`: what differs from a healthy
    link, of the sender's direction; `later`: the same, in the second half of the steps, which send
    `more` times as much."""
    made = synthetic_case(Synthetic(ranks=2 * hosts, communication=communication, **fields))
    names = "abcdefgh"[:hosts]
    placed = [replace(rank, host=names[(rank.rank or 0) // 2]) for rank in made.ranks]
    ends = placed[0].steps["end_ns"] * 1e-9
    shapes = [
        {pair: {**HEALTHY, **(changes or {}).get(pair, {})} for pair in permutations(names, 2)}
        for changes in (links, {**(links or {}), **(later or {})})
    ]
    samples = []
    counters = dict.fromkeys(permutations(names, 2), TcpLink(sent=0, resent=0, busy=0.0, held=0.0))
    before = 0
    for step in np.linspace(0, len(ends) - 1, 41).astype(int):
        half = int(step > len(ends) // 2)
        sent = per_step * float(step - before) * (1, more)[half]
        for pair, counter in counters.items():
            counters[pair] = _counters(counter, sent, shapes[half][pair])
        before = step
        for source in names:
            links_of = {_address(to): link for (at, to), link in counters.items() if at == source}
            sample = HostSample(
                at=float(ends[step]), host=source, addresses=(_address(source),), links=links_of
            )
            samples.append(sample)
    return replace(
        made,
        ranks=tuple(placed),
        host_samples=tuple(samples),
        job=replace(made.job, hosts=tuple(names)),
    )


def _address(host: str) -> str:
    return f"10.0.0.{ord(host)}"


def _counters(so_far: TcpLink, sent: float, shape: Mapping[str, Any]) -> TcpLink:
    busy = sent / shape["speed"]
    return TcpLink(
        sent=(so_far.sent or 0) + int(sent),
        resent=(so_far.resent or 0) + int(sent * shape["lost"]),
        busy=(so_far.busy or 0.0) + busy,
        held=(so_far.held or 0.0) + busy * shape["held"],
        round_trip=shape["round_trip"],
        smoothed=shape["smoothed"],
        rate=shape["rate"],
    )


def both(*pairs: Pair, **shape: Any) -> dict[Pair, Mapping[str, Any]]:
    return {way: shape for one, other in pairs for way in ((one, other), (other, one))}


def only(case: Case) -> Finding:
    (finding,) = diagnose(case).findings
    return finding


def codes(case: Case) -> list[str]:
    return [finding.code for finding in diagnose(case).findings]


def test_a_long_round_trip() -> None:
    finding = only(job(2, both(("a", "b"), round_trip=0.020)))
    assert (finding.code, finding.severity) == ("slow-link", Severity.WARNING)
    assert finding.culprits == ()
    assert "between a and b" in finding.title
    assert "20 ms" in finding.title
    # Of 60 ms, 2 move bytes; the rest would take a fortieth: 56.5 ms of a step of about 89.
    assert finding.cost.seconds_per_step == pytest.approx(0.0565, rel=0.02)
    assert "--hosts a,b --pairs" in finding.fixes[0].how


def test_a_low_rate_in_one_direction() -> None:
    finding = only(job(2, {("b", "a"): {"rate": 40_000_000}}))
    assert finding.code == "slow-link"
    assert "arrive from b at a" in finding.title
    assert {row.where for row in finding.evidence} == {None, "b to a"}
    # 2 MB take 50 ms of 60, and would take 20 at 100 MB/s.
    assert finding.cost.seconds_per_step == pytest.approx(0.030, rel=0.02)


def test_a_lossy_link_costs_what_is_unknown() -> None:
    finding = only(job(2, {("a", "b"): {"lost": 0.03}}))
    assert (finding.code, finding.severity) == ("slow-link", Severity.WARNING)
    assert "3 % of the bytes from a to b had to be sent again" in finding.title
    assert finding.cost.step_fraction is None


def test_the_network_of_one_host_of_four() -> None:
    pairs = [("a", "c"), ("b", "c"), ("d", "c")]
    finding = only(job(4, both(*pairs, round_trip=0.020)))
    assert "The network of host c" in finding.title
    assert [(one.rank, one.host) for one in finding.culprits] == [(None, "c")]


def test_one_pair_of_three_hosts() -> None:
    finding = only(job(3, both(("a", "c"), round_trip=0.004)))
    assert "The network between a and c" in finding.title
    assert finding.culprits == ()


def test_all_pairs_of_three_hosts() -> None:
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    finding = only(job(3, both(*pairs, round_trip=0.020)))
    assert "The network between all 3 hosts" in finding.title
    assert finding.culprits == ()


def test_a_link_that_costs_nothing_is_not_named() -> None:
    slow = both(("a", "b"), round_trip=0.020)
    assert codes(job(2, slow, communication=0.001)) == []
    assert codes(job(2, slow, communication=LONG, per_step=200)) == ["communication-bound"]
    assert codes(job(2, {("a", "b"): {"lost": 0.03}}, communication=0.004)) == []


WORSE: Mapping[str, Any] = {"smoothed": 0.021, "speed": 1e7}
"""The shortest round trip of five minutes stays as it was."""


def test_a_link_that_becomes_slower_is_named_from_then_on() -> None:
    finding = only(job(2, later=both(("a", "b"), **WORSE), communication=0.002, longer=30.0))
    assert finding.code == "slow-link"
    assert finding.since_step == pytest.approx(60, abs=2)
    assert "21 ms" in finding.title
    (trip, *_) = [row for row in finding.evidence if row.measure == "smoothed round trip"]
    assert (trip.value, trip.baseline) == (0.021, 4e-4)
    # The new step takes 87 ms, of which 60 are communication.
    assert finding.cost.seconds_per_step == pytest.approx(0.057, rel=0.05)
    slow = {("a", "b"): {"speed": 1e7, "rate": 12_000_000}}
    finding = only(job(2, later=slow, communication=0.002, longer=30.0))
    assert finding.code == "slow-link"
    assert finding.since_step == pytest.approx(60, abs=2)
    assert "11.4 MiB/s arrive from a at b" in finding.title


def test_of_a_running_job_older_samples_show_what_was_usual() -> None:
    """Only the newest steps are judged, all of them after the change."""
    case = job(2, later=both(("a", "b"), **WORSE), communication=0.002, longer=30.0, steps=1200)
    finding = only(replace(case, job=replace(case.job, outcome=Outcome.RUNNING)))
    assert finding.code == "slow-link"
    assert "21 ms" in finding.title


def test_congestion_of_the_jobs_own_traffic_is_no_slower_link() -> None:
    # Round trips are long in the queues that the job fills itself, from the beginning.
    assert "slow-link" not in codes(job(2, both(("a", "b"), **WORSE)))
    # They become longer, but bytes arrive as quickly; or become long because more is sent.
    for shape in ({**WORSE, "speed": 5e7}, {"speed": 1e7}):
        case = job(2, later=both(("a", "b"), **shape), communication=0.002, longer=30.0)
        assert "slow-link" not in codes(case)
    # Their length stays the same, however long it is.
    long = both(("a", "b"), smoothed=0.021)
    slower = both(("a", "b"), **WORSE)
    assert "slow-link" not in codes(job(2, long, later=slower, communication=0.002, longer=30.0))
    more = job(2, later=slower, more=100, communication=0.002, longer=30.0)
    assert "slow-link" not in codes(more)


def test_samples_of_one_moment_are_no_division_by_zero() -> None:
    case = job(2, later=both(("a", "b"), **WORSE), communication=0.002, longer=30.0)
    since = float(case.ranks[0].steps["end_ns"][60]) * 1e-9
    samples = (
        structs.replace(one, at=one.at if one.at > since else since - 0.001)
        for one in case.host_samples
    )
    links = measure_links(replace(case, host_samples=tuple(samples)), since)
    assert [(link.source, link.target) for link in links] == [("a", "b"), ("b", "a")]


def test_a_healthy_network_is_not_named() -> None:
    assert codes(job(2)) == ["communication-bound"]
    assert codes(job(3, both(("a", "b"), round_trip=5e-4))) == ["communication-bound"]
    # Too few bytes, or a receiver that does not read, say nothing about the network.
    assert "slow-link" not in codes(job(2, {("a", "b"): {"rate": 10**7}}, per_step=900_000))
    assert "slow-link" not in codes(job(2, {("a", "b"): {"rate": 10**7, "held": 0.9}}))


def test_overloaded_cores_explain_a_rate_but_not_a_round_trip() -> None:
    crowded = {"clock": "cpu", "affinity": 2, "backend": "gloo"}
    low = {("a", "b"): {"rate": 40_000_000}}
    assert codes(job(2, low, birth=crowded)) == ["communication-bound"]
    assert codes(job(2, {("a", "b"): {"rate": 5_000_000}}, birth=crowded)) == ["slow-link"]
    assert codes(job(2, both(("a", "b"), round_trip=0.020), birth=crowded)) == ["slow-link"]


def test_a_slow_rank_and_a_slow_host_are_no_slow_link() -> None:
    slow = both(("a", "b"), round_trip=0.020)
    late = [Fault(3, "backward", 40.0)]
    assert codes(job(2, slow, communication=0.002, faults=late)) == ["straggler-compute"]
    assert codes(job(2, slow, communication=0.002, faults=[Fault(2, "backward", 40.0), *late])) == [
        "slow-host"
    ]


def test_an_address_that_several_hosts_have_says_nothing() -> None:
    case = job(2, both(("a", "b"), round_trip=0.020))
    shared = tuple(
        structs.replace(sample, addresses=("10.0.0.97", "10.0.0.98"))
        for sample in case.host_samples
    )
    assert codes(replace(case, host_samples=shared)) == ["communication-bound"]


def test_a_cost_of_the_limit_counts() -> None:
    case = job(2, both(("a", "b"), round_trip=0.020))
    assert equal_counts_as(case, "slow-link", "cost", only(case).cost.step_fraction) == "more"
