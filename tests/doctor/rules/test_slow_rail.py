"""slow-link by timed collectives: a slow rail, or the network between some hosts, is named, and
never a rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from mgpu_probes.outside.flight.flight_dumps import parse_dump

from mgpu_doctor.case.flight_records import Flight, flight_of
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.synthetic import Synthetic, synthetic_case
from tests.support.timed_dumps import timed_entry

USUAL, SLOW = 2.0, 8.0
"""Milliseconds of a transfer; a call every 10 ms."""
LOCAL, CALLS = 4, 20
Members = tuple[int, ...]
Milliseconds = Callable[[Members], float]


def within(hosts: int) -> list[Members]:
    """A group of the ranks of each host."""
    return [tuple(range(host * LOCAL, (host + 1) * LOCAL)) for host in range(hosts)]


def rails(hosts: Iterable[int]) -> list[Members]:
    """A group of the k-th rank of each of these hosts, for each k."""
    return [tuple(host * LOCAL + k for host in hosts) for k in range(LOCAL)]


def job(
    hosts: int,
    groups: Iterable[Members],
    transfer: Milliseconds,
    *,
    late: Mapping[int, float] | None = None,
    calls: int = CALLS,
    noise: float = 0.05,
    sizes: Mapping[Members, int] | None = None,
) -> Case:
    """A job with four ranks per host, `a`, `b` and so on, whose groups make timed calls. `late`:
    rank -> milliseconds by which it arrives later than the others; `sizes`: of other tensors."""
    made = synthetic_case(Synthetic(ranks=hosts * LOCAL))
    names = "abcdefgh"[:hosts]
    placed = [
        replace(rank, host=names[(rank.rank or 0) // LOCAL], local_rank=(rank.rank or 0) % LOCAL)
        for rank in made.ranks
    ]
    chance = np.random.default_rng(7)
    entries: dict[int, list[dict[str, object]]] = {rank: [] for rank in range(hosts * LOCAL)}
    named = {str(number): members for number, members in enumerate(groups, 1)}
    for name, members in named.items():
        last = max((late or {}).get(rank, 0.0) for rank in members)
        size = (sizes or {}).get(members, 1024)
        for number in range(1, calls + 1):
            moved = transfer(members) * (1 + noise * chance.uniform(-1, 1))
            for rank in members:
                waited = last - (late or {}).get(rank, 0.0)
                call = timed_entry(number, moved + waited, process_group=(name, "rail"))
                entries[rank].append({**call, "input_sizes": [[size]], "output_sizes": [[size]]})
    config = {name: {"name": name, "ranks": str(list(ranks))} for name, ranks in named.items()}
    flights = tuple(_flight(rank, own, config) for rank, own in entries.items())
    return replace(
        made,
        ranks=tuple(placed),
        flights=flights,
        job=replace(made.job, hosts=tuple(names)),
    )


def _flight(
    rank: int, entries: list[dict[str, object]], config: Mapping[str, Mapping[str, str]]
) -> Flight:
    mine = {name: group for name, group in config.items() if rank in json.loads(group["ranks"])}
    dump = {"version": "2.10", "entries": entries, "pg_config": mine, "pg_status": {}}
    form = parse_dump(json.dumps(dump).encode(), source="dump")
    return replace(flight_of(form), rank=rank)


def slow_rail(number: int) -> Milliseconds:
    """Slow in groups of this local rank on several hosts."""

    def transfer(members: Members) -> float:
        own = {rank % LOCAL for rank in members} == {number}
        return SLOW if own else USUAL

    return transfer


def between(first: set[int], second: set[int]) -> Milliseconds:
    """Slow in groups with hosts of both sides."""

    def transfer(members: Members) -> float:
        hosts = {rank // LOCAL for rank in members}
        return SLOW if hosts & first and hosts & second else USUAL

    return transfer


def links_of(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.code == "slow-link"]


def test_a_slow_rail_is_named_and_no_rank_is() -> None:
    (finding,) = links_of(job(2, [*within(2), *rails(range(2))], slow_rail(3), noise=0.0))
    assert finding.title == (
        "The network of rail 3 (local rank 3 of each host) is slow: a collective takes 8 ms there, "
        "and 2 ms elsewhere"
    )
    assert (finding.culprits, finding.victims) == ((), ())
    assert finding.severity is Severity.WARNING
    assert "as fast as others do" in finding.cause
    # 8 of every 10 ms are transfers; as fast as elsewhere, it is 6 ms less.
    assert finding.cost.step_fraction == pytest.approx(0.6, abs=0.05)
    (slow,) = [item for item in finding.evidence if item.baseline is not None]
    assert slow.where == "ranks 3, 7"
    assert slow.value == pytest.approx(0.008)


def test_nobody_is_blamed_for_a_slow_rail_by_any_rule() -> None:
    case = job(2, [*within(2), *rails(range(2))], slow_rail(3))
    assert [finding.code for finding in diagnose(case).findings if finding.culprits] == []


def test_a_slow_rail_without_groups_within_hosts() -> None:
    def transfer(members: Members) -> float:
        return SLOW if members[0] % LOCAL == 1 and len(members) == 3 else USUAL

    (finding,) = links_of(job(3, rails(range(3)), transfer))
    assert finding.title.startswith("The network of rail 1 (local rank 1 of each host)")
    assert "not ruled out" in finding.cause  # no groups within hosts


def test_a_slow_pair_of_hosts_is_no_rail() -> None:
    pairs = [*rails((0, 1)), *rails((0, 2)), *rails((1, 2))]
    (finding,) = links_of(job(3, [*within(3), *pairs], between({0}, {2})))
    assert finding.title.startswith("The network between a and c is slow")
    assert finding.culprits == ()


def test_a_slow_switch_between_two_sets_of_hosts() -> None:
    pairs = [*rails((0, 1)), *rails((2, 3)), *rails((0, 2)), *rails((1, 3))]
    (finding,) = links_of(job(4, [*within(4), *pairs], between({0, 1}, {2, 3})))
    assert finding.title.startswith("The network between a, b and c, d is slow")


def test_a_late_rank_is_no_slow_rail() -> None:
    groups = [*within(2), *rails(range(2))]
    assert links_of(job(2, groups, lambda _: USUAL, late={3: 6.0})) == []


def test_a_slow_host_is_no_slow_rail() -> None:
    groups = [*within(3), *rails(range(3))]
    late = dict.fromkeys(range(LOCAL), 6.0)
    assert links_of(job(3, groups, lambda _: USUAL, late=late)) == []


def test_ranks_that_are_slow_within_their_host_are_no_slow_rail() -> None:
    def transfer(members: Members) -> float:
        return SLOW if 3 in members else USUAL

    groups = [*within(3), *rails(range(3))]
    assert links_of(job(3, groups, transfer)) == []


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_a_healthy_job_is_silent(noise: float) -> None:
    groups = [*within(4), *rails(range(4))]
    assert links_of(job(4, groups, lambda _: USUAL, noise=noise)) == []


def test_a_rail_that_moves_more_data_is_not_compared() -> None:
    groups = [*within(2), *rails(range(2))]
    assert links_of(job(2, groups, slow_rail(3), sizes={(3, 7): 8192})) == []


def test_too_few_calls_show_nothing() -> None:
    groups = [*within(2), *rails(range(2))]
    assert links_of(job(2, groups, slow_rail(3), calls=7)) == []


def test_slow_groups_without_anything_in_common_show_nothing() -> None:
    def transfer(members: Members) -> float:
        return SLOW if members in ((0, 4), (1, 9)) else USUAL

    pairs = [*rails((0, 1)), *rails((0, 2)), *rails((1, 2))]
    assert links_of(job(3, [*within(3), *pairs], transfer)) == []


def test_a_rail_whose_hosts_are_in_no_other_group_is_not_told_from_these_hosts() -> None:
    groups = [*within(4), rails((0, 1))[3], *rails((2, 3))[:3]]
    assert links_of(job(4, groups, slow_rail(3))) == []


def test_ranks_on_unknown_hosts_are_not_compared() -> None:
    case = job(2, [*within(2), *rails(range(2))], slow_rail(3))
    unknown = tuple(replace(rank, host="") for rank in case.ranks)
    assert links_of(replace(case, ranks=unknown)) == []


def test_without_known_local_ranks_no_rail_is_named() -> None:
    case = job(2, [*within(2), *rails(range(2))], slow_rail(3))
    unknown = tuple(replace(rank, local_rank=None) for rank in case.ranks)
    assert links_of(replace(case, ranks=unknown)) == []
