"""Where the collectives of ranks diverge: real dumps of gloo jobs, simulated ones, and healthy
ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.analysis.collectives.divergence import Divergence, Kind
from mgpu_doctor.analysis.collectives.first_divergence import diverged, doubt
from mgpu_doctor.case.flight_records import Collective, Flight
from tests.support.flight_records import Call, recorded, schedule, simulated
from tests.support.seeds import at_most

LATE = 30.0
LINES = {
    "the extra one": 54,
    "second of three": 71,
    "third of three": 72,
    "gradients": 75,
    "the wrong one": 80,
    "the wrong type": 82,
    "the rank's own branch": 84,
    "metrics": 86,
}
"""Of `tests/jobs/mismatches.py`, as it was when these dumps were made."""


def find_divergence(flights: tuple[Flight, ...]) -> Divergence:
    divergence = diverged(flights)
    assert divergence is not None
    return divergence


def line(one: Collective | None) -> int | None:
    return one.site[1] if one is not None and one.site is not None else None


FAULTS = {
    "skip": (Kind.SKIPPED, 25, "gradients", "metrics"),
    "silent": (Kind.SKIPPED, 20, "second of three", "third of three"),
    "silent-ended": (Kind.SKIPPED, 20, "second of three", "third of three"),
    "extra": (Kind.EXTRA, 25, "gradients", "the extra one"),
    "operation": (Kind.OPERATION, 26, "metrics", "the wrong one"),
    "branch": (Kind.OPERATION, 26, "metrics", "the rank's own branch"),
    "dtype": (Kind.DTYPE, 26, "metrics", "the wrong type"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_the_first_divergence_of_real_jobs(kind: str) -> None:
    what, sequence, expected, called = FAULTS[kind]
    divergence = find_divergence(recorded(kind, LATE))
    assert divergence.kind is what
    assert divergence.culprits == (2,)
    assert divergence.sequence == sequence
    assert line(divergence.expected) == LINES[expected]
    assert line(divergence.deviating[2]) == LINES[called]
    assert divergence.expecting == (0, 1, 3)
    assert divergence.agreed == sequence - 1


@pytest.mark.parametrize("kind", ["skip", "extra", "operation", "branch", "dtype", "silent"])
def test_a_mismatch_is_seen_at_once(kind: str) -> None:
    """It needs no waiting to be one."""
    assert find_divergence(recorded(kind)).culprits == (2,)


@pytest.mark.parametrize(("kind", "beyond"), [("silent", 12), ("silent-ended", 39), ("dtype", 38)])
def test_how_far_a_job_went_on_after_a_mismatch(kind: str, beyond: int) -> None:
    divergence = find_divergence(recorded(kind))
    assert (divergence.beyond, divergence.calls) == (beyond, 1)
    assert (divergence.is_blocked, divergence.seconds) == (False, None)


@pytest.mark.parametrize("kind", ["asleep", "asleep-json"])
def test_a_rank_that_never_comes(kind: str) -> None:
    divergence = find_divergence(recorded(kind, LATE))
    assert divergence.kind is Kind.BEHIND
    assert divergence.culprits == (2,)
    assert divergence.sequence == 25
    assert divergence.waiting == (0, 1, 3)
    assert divergence.deviating == {2: None}
    assert divergence.seconds is not None
    assert divergence.seconds >= LATE


def test_between_two_ranks_who_never_comes() -> None:
    divergence = find_divergence(recorded("asleep-two", LATE))
    assert (divergence.kind, divergence.culprits) == (Kind.BEHIND, (1,))


@pytest.mark.parametrize("kind", ["asleep", "asleep-json", "deadlock-json"])
def test_a_short_wait_is_no_hang(kind: str) -> None:
    assert diverged(recorded(kind, 2.0)) is None


@pytest.mark.parametrize("kind", ["deadlock", "deadlock-json"])
def test_a_ring_over_groups_is_reported_with_who_left_the_usual_order(kind: str) -> None:
    """Ranks 1 and 2 began with their second pair, as they never did before."""
    divergence = find_divergence(recorded(kind, LATE))
    assert divergence.kind is Kind.DEADLOCK
    assert divergence.culprits == (1, 2)
    assert set(divergence.deviating) == {0, 1, 2}
    assert len({one.group for one in divergence.deviating.values() if one}) == 3


def test_a_ring_needs_no_time_for_call_stacks() -> None:
    """The order of calls proves it; that it was no moment in passing, any time at all does."""
    divergence = find_divergence(recorded("deadlock", -9.0))
    assert (divergence.kind, divergence.is_blocked) == (Kind.DEADLOCK, True)
    assert diverged(recorded("deadlock", -14.0)) is None


def test_without_call_sites_a_left_out_call_is_known_by_routine() -> None:
    divergence = find_divergence(recorded("skip-json", LATE))
    assert (divergence.kind, divergence.culprits) == (Kind.SKIPPED, (2,))
    assert divergence.sequence == 25


@pytest.mark.parametrize(
    "kind", ["healthy", "healthy-fast", "healthy-groups", "healthy-ddp", "healthy-json"]
)
@pytest.mark.parametrize("stood", [-14.0, 0.0, 2.0, 4.9])
def test_healthy_jobs_give_nothing(kind: str, stood: float) -> None:
    assert diverged(recorded(kind, stood)) is None


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("gone", [0, 1, 3])
def test_a_missing_dump_changes_no_verdict(kind: str, gone: int) -> None:
    flights = tuple(one for one in recorded(kind, LATE) if one.rank != gone)
    divergence = find_divergence(flights)
    assert divergence.culprits in ((2,), ())
    # Rank 3 is in no sub-group, so that gloo kept the group of all ranks in its dump alone.
    assert divergence.missing == (() if gone == 3 else (gone,))


@pytest.mark.parametrize("kind", FAULTS)
def test_without_the_culprits_dump_nobody_else_is_blamed(kind: str) -> None:
    flights = tuple(one for one in recorded(kind, LATE) if one.rank != 2)
    divergence = diverged(flights)
    assert divergence is None or divergence.culprits == (2,)


def test_all_dumps_but_one_wait_so_it_is_the_missing_one() -> None:
    flights = tuple(one for one in recorded("asleep", LATE) if one.rank != 2)
    divergence = find_divergence(flights)
    assert (divergence.kind, divergence.culprits, divergence.missing) == (Kind.BEHIND, (2,), (2,))


def test_a_file_copied_later_does_not_tell_how_long_it_stood() -> None:
    divergence = find_divergence(recorded("asleep", 90_000.0))
    assert divergence.culprits == (2,)
    assert divergence.seconds is None
    assert not divergence.is_blocked


def test_a_lost_beginning_changes_no_verdict() -> None:
    flights = recorded("skip", LATE)
    cut = replace(flights[1], collectives=flights[1].collectives[-8:], lost=18)
    divergence = find_divergence((flights[0], cut, *flights[2:]))
    assert (divergence.kind, divergence.culprits, divergence.sequence) == (Kind.SKIPPED, (2,), 25)


def test_why_nothing_can_be_reported() -> None:
    flights = recorded("healthy")
    assert doubt(()) is None
    assert doubt(recorded("healthy", -14.0)) is None
    nameless = tuple(replace(flight, rank=None) for flight in flights)
    empty = tuple(replace(flight, collectives=()) for flight in flights)
    for dumps, said in (
        (flights[:1], "only one rank"),
        ((flights[0], *flights[2:]), "no dump of rank 1"),
        (nameless, "which ranks"),
        (empty, "no collectives"),
    ):
        assert diverged(dumps) is None
        doubted = doubt(dumps)
        assert doubted is not None
        assert said in doubted.reason
        assert doubted.remedy


def test_a_wait_that_may_be_a_moment_in_passing_is_said_to_be_one() -> None:
    flights = recorded("asleep", -6.0)
    assert diverged(flights) is None
    doubted = doubt(flights)
    assert doubted is not None
    assert f"all_reduce at mismatches.py:{LINES['gradients']}" in doubted.reason
    assert "rank 2 had not called, for 0 to 9 s" in doubted.reason
    assert "later" in doubted.remedy


LINES_OF_A_STEP = (10, 20, 30)


def steps(count: int, skipped: int | None = None, at: int = 12) -> list[Call]:
    """A loop of three alike calls; `skipped` of them is left out in step `at`."""
    return [
        Call("0", line=line)
        for step in range(count)
        for index, line in enumerate(LINES_OF_A_STEP)
        if not (step == at and index == skipped)
    ]


@pytest.mark.parametrize("nccl", [False, True])
@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_a_call_left_out_long_ago_is_reported_where_it_was(skipped: int, nccl: bool) -> None:
    """All went on for a hundred calls with wrong partners; what stands is the end of the loop."""
    programs = {rank: steps(50, skipped if rank == 2 else None) for rank in range(4)}
    flights = simulated(programs, {"0": (0, 1, 2, 3)}, lambda _: 400.0, nccl=nccl)
    divergence = find_divergence(flights)
    assert (divergence.kind, divergence.culprits) == (Kind.SKIPPED, (2,))
    assert divergence.sequence == 12 * 3 + skipped + 1
    assert line(divergence.expected) == LINES_OF_A_STEP[skipped]


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_between_two_ranks_the_routine_tells_who_left_out_a_call(skipped: int) -> None:
    programs = {0: steps(50), 1: steps(50, skipped)}
    divergence = find_divergence(simulated(programs, {"0": (0, 1)}, lambda _: 400.0))
    assert divergence.kind in (Kind.SKIPPED, Kind.BEHIND, Kind.AHEAD)
    assert divergence.culprits in ((1,), ())


def test_other_sizes_are_reported_with_both() -> None:
    programs = {
        rank: [*steps(5), Call("0", size=9 if rank == 1 else 8, line=40)] for rank in range(3)
    }
    divergence = find_divergence(simulated(programs, {"0": (0, 1, 2)}, lambda _: 60.0))
    assert (divergence.kind, divergence.culprits) == (Kind.SHAPE, (1,))
    assert divergence.expected is not None
    assert divergence.expected.inputs == ((8,),)
    one = divergence.deviating[1]
    assert one is not None
    assert one.inputs == ((9,),)


def test_two_against_two_is_undecided() -> None:
    programs = {rank: [*steps(5), Call("0", size=8 + rank // 2, line=40)] for rank in range(4)}
    divergence = find_divergence(simulated(programs, {"0": (0, 1, 2, 3)}, lambda _: 60.0))
    assert divergence.kind is Kind.SHAPE
    assert divergence.culprits == ()


def test_one_that_is_ahead_is_not_blamed_nor_are_the_others() -> None:
    """It waits in something new; whether it is too much or the others are late nothing tells."""
    programs = {
        rank: [*steps(5), *([Call("0", line=99)] if rank == 1 else [])] for rank in (0, 1, 2)
    }
    divergence = find_divergence(simulated(programs, {"0": (0, 1, 2)}, lambda _: 60.0))
    assert divergence.kind is Kind.AHEAD
    assert divergence.culprits == ()
    assert divergence.expecting == (1,)


def test_the_chain_of_waiting_ends_at_who_waits_for_nobody() -> None:
    """Rank 0 waits for 1 in their pair, 1 for 2 in theirs; 2 is in its own code."""
    groups = {"0": (0, 1, 2), "1": (0, 1), "2": (1, 2)}
    before = [Call("0", line=1) for _ in range(5)]
    pair = {
        0: [Call("1", line=2)],
        1: [Call("2", line=3), Call("1", line=2)],
        2: [Call("2", line=3)],
    }
    programs = {rank: [*before, *pair[rank]] * 6 for rank in groups["0"]}
    programs[2] = programs[2][:-1]
    divergence = find_divergence(simulated(programs, groups, lambda _: 60.0))
    assert (divergence.kind, divergence.culprits) == (Kind.BEHIND, (2,))
    assert line(divergence.expected) == 3


def pipeline(rounds: int) -> dict[int, list[Call]]:
    """Four stages that hand their results on; after the last round all meet."""
    programs: dict[int, list[Call]] = {rank: [] for rank in range(4)}
    for _ in range(rounds):
        for rank in range(4):
            if rank:
                programs[rank].append(Call("0", f"recv {rank}<-{rank - 1}", line=50))
            if rank < 3:
                programs[rank].append(Call("0", f"send {rank}->{rank + 1}", line=60))
    return programs


@pytest.mark.parametrize("stuck", [0, 1, 2])
def test_in_a_pipeline_the_stage_that_stands_is_found_through_receives(stuck: int) -> None:
    programs = pipeline(6)
    programs[stuck].pop()
    for rank, calls in programs.items():
        if rank != stuck:
            calls.append(Call("0", line=90))
    flights = simulated(programs, {"0": (0, 1, 2, 3)}, lambda _: 60.0, nccl=True)
    divergence = find_divergence(flights)
    assert (divergence.kind, divergence.culprits) == (Kind.BEHIND, (stuck,))


@pytest.mark.parametrize("moment", range(20))
def test_a_pipeline_in_motion_gives_nothing(moment: int) -> None:
    programs = pipeline(10)
    flights = simulated(
        programs, {"0": (0, 1, 2, 3)}, lambda rank: (moment + rank % 3) * 0.02, nccl=True
    )
    assert diverged(flights) is None


def test_what_nccl_has_given_up_needs_no_clock() -> None:
    """Retired and not completed: it has timed out (torch's FlightRecorder.hpp)."""
    programs = {rank: steps(5)[: 15 - (rank == 2)] for rank in range(4)}
    flights = simulated(programs, {"0": (0, 1, 2, 3)}, lambda _: 60.0, nccl=True)
    late = tuple(replace(flight, at=None) for flight in flights)
    assert not find_divergence(late).is_blocked
    given_up = tuple(
        replace(
            flight,
            collectives=(*flight.collectives[:-1], replace(flight.collectives[-1], retired=True)),
        )
        for flight in late
    )
    divergence = find_divergence(given_up)
    assert (divergence.kind, divergence.culprits, divergence.is_blocked) == (
        Kind.BEHIND,
        (2,),
        True,
    )


def test_queued_is_not_waiting() -> None:
    """The host runs ahead of its device: a call made long ago may have begun only now."""
    programs = {rank: steps(5)[: 15 - (rank == 2)] for rank in range(4)}
    flights = simulated(programs, {"0": (0, 1, 2, 3)}, lambda _: 60.0, nccl=True)
    begun = tuple(
        replace(
            flight,
            collectives=(
                *flight.collectives[:-1],
                replace(flight.collectives[-1], started=(flight.at or 0.0) - 1.0),
            ),
        )
        for flight in flights
    )
    assert find_divergence(flights).culprits == (2,)
    assert diverged((*begun[:2], flights[2], begun[3])) is None


def test_where_receives_are_not_recorded_nobody_is_blamed() -> None:
    """gloo tells of no receive: the rank that is late may be in one."""
    flights = recorded("asleep", LATE)
    receiving = (*flights[:2], replace(flights[2], unseen=6), flights[3])
    divergence = find_divergence(receiving)
    assert (divergence.kind, divergence.culprits) == (Kind.AHEAD, ())
    assert all(flight.unseen == 0 for flight in flights)
    assert any(flight.unseen for flight in recorded("healthy-groups"))


def test_a_dump_made_earlier_is_no_delay() -> None:
    """Rank 0's recorder was read 20 s before the others', who have gone on since."""
    programs = {rank: steps(2000) for rank in range(3)}
    flights = simulated(programs, {"0": (0, 1, 2)}, lambda rank: 20.0 if rank else 0.5)
    assert diverged(flights) is None


healthy = st.tuples(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 30))


@settings(max_examples=at_most(150), deadline=None)
@given(healthy, st.lists(st.floats(0.0, 3.0), min_size=6, max_size=6), st.booleans(), st.booleans())
def test_no_healthy_schedule_diverges(
    shape: tuple[int, int, int], moments: list[float], frames: bool, nccl: bool
) -> None:
    """Whenever each rank was dumped, and with torch's delay in writing call stacks."""
    seed, ranks, count = shape
    programs, groups = schedule(seed, ranks, count)
    flights = simulated(
        programs,
        groups,
        lambda rank: moments[rank],
        written=lambda rank: 4 * moments[-1 - rank] if frames else 0.0,
        keep=60,
        frames=frames,
        nccl=nccl,
    )
    assert diverged(flights) is None


@settings(max_examples=at_most(150), deadline=None)
@given(healthy, st.data())
def test_no_wrong_rank_is_named(shape: tuple[int, int, int], data: st.DataObject) -> None:
    """One rank leaves out a call, makes another, one of another size or none at all any more."""
    seed, ranks, count = shape
    programs, groups = schedule(seed, max(3, ranks), 8 + count)
    guilty = data.draw(st.sampled_from(sorted(programs)))
    calls = programs[guilty]
    if len(calls) < 6:
        return
    place = data.draw(st.integers(len(calls) // 2, len(calls) - 2))
    fault = data.draw(st.sampled_from(("skip", "extra", "again", "size", "operation", "stop")))
    own = calls[place]
    if fault == "skip":
        del calls[place]
    elif fault == "stop":
        del calls[place:]
    elif fault == "again":
        calls.insert(place, replace(own, line=777))
    elif fault == "extra":
        calls.insert(place, replace(own, line=777, size=own.size + 1))
    elif fault == "size":
        calls[place] = replace(own, size=own.size + 1)
    else:
        calls[place] = replace(own, operation="reduce", line=778)
    divergence = diverged(simulated(programs, groups, lambda _: 1000.0))
    if divergence is None:
        # What ends in order for all, or is a size that may differ.
        assert fault in ("skip", "size", "extra", "again")
        return
    assert divergence.culprits in ((guilty,), ())
    if len(groups[own.group]) > 2 and fault in ("operation", "extra"):
        assert divergence.culprits == (guilty,)
        assert divergence.group == own.group
