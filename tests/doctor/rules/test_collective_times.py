"""Timed collectives in flight-recorder dumps: transfer, waits, and the rank that arrived last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.flight.flight_dumps import parse_dump

from mgpu_doctor.analysis.collectives.collective_durations import (
    CollectiveTimes,
    GroupTimes,
    time_collectives,
)
from mgpu_doctor.case.flight_records import Flight, flight_of, read_flights
from mgpu_doctor.case.profiler_case import case_of_flights
from mgpu_doctor.cli import app
from mgpu_doctor.cli import diagnose as verb
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from tests.support.flight_records import recorded
from tests.support.timed_dumps import dump_of, timed_entry, write_dumps

LATE = [[6.0, 5.0, 7.0, 6.0], [2.0, 2.0, 2.0, 2.0], [4.0, 3.0, 3.0, 4.0]]
"""Milliseconds of three ranks: rank 1 arrives last, and moving the data takes 2 ms."""


def flights_of(*ranks: list[dict[str, Any]]) -> tuple[Flight, ...]:
    dumps = (json.dumps(dump_of(entries, len(ranks))).encode() for entries in ranks)
    forms = (parse_dump(dump, source="dump") for dump in dumps)
    return tuple(replace(flight_of(form), rank=rank) for rank, form in enumerate(forms))


def the_group(times: CollectiveTimes | None) -> GroupTimes:
    assert times is not None
    (group,) = times.groups
    return group


@pytest.mark.parametrize("pickled", [True, False])
def test_the_last_rank_the_transfer_and_the_waits(tmp_path: Path, *, pickled: bool) -> None:
    flights = read_flights(write_dumps(tmp_path / "dumps", LATE, pickled=pickled))
    group = the_group(time_collectives(flights))
    assert group.last_arrivals == {1: 4}
    assert group.ranks == (0, 1, 2)
    (worst, second) = group.worst(2)
    assert (worst.sequence, worst.call.operation) == (3, "all_reduce")
    assert second.sequence == 1
    assert worst.transfer == pytest.approx(0.002)
    assert [worst.wait_of(rank) for rank in range(3)] == pytest.approx([0.005, 0.0, 0.001])
    # 30 ms lie between the calls of the first and the last; the last is not within them.
    assert group.window == pytest.approx(0.030, rel=1e-4)
    assert group.transfer_share == pytest.approx(3 * 2 / 30, rel=1e-4)
    assert group.wait_share == pytest.approx((4 + 3 + 5 + 2 + 1 + 1) / 3 / 30, rel=1e-4)


def test_dumps_without_times_say_nothing_about_times() -> None:
    assert time_collectives(recorded("healthy-ddp")) is None
    assert time_collectives(()) is None


def test_a_collective_that_a_rank_did_not_time_is_left_out() -> None:
    ranks = [[timed_entry(n, 2.0 + rank) for n in range(1, 6)] for rank in range(2)]
    del ranks[1][2]["duration_ms"]
    group = the_group(time_collectives(flights_of(*ranks)))
    assert [collective.sequence for collective in group.collectives] == [1, 2, 4, 5]
    assert group.untimed == 1


def test_without_the_dump_of_a_rank_nothing_is_concluded() -> None:
    ranks = [[timed_entry(n, 2.0 + rank) for n in range(1, 6)] for rank in range(3)]
    assert time_collectives(flights_of(*ranks)[:2]) == CollectiveTimes((), 1)


@pytest.mark.parametrize(
    "other",
    [
        {"profiling_name": "nccl:broadcast"},
        {"profiling_name": "nccl:all_to_all"},
        {"profiling_name": "nccl:send 0->1", "is_p2p": True},
    ],
)
def test_what_ranks_leave_at_different_times_is_left_out(other: dict[str, Any]) -> None:
    ranks = [[timed_entry(n, 2.0 + rank, **other) for n in range(1, 6)] for rank in range(2)]
    times = time_collectives(flights_of(*ranks))
    assert times is not None
    assert times.groups == ()


def test_different_operations_under_one_number_are_not_compared() -> None:
    first, second = timed_entry(1, 2.0), timed_entry(1, 9.0, profiling_name="nccl:barrier")
    assert time_collectives(flights_of([first], [second])) == CollectiveTimes((), 1)


@pytest.mark.parametrize("wrong", [-1.0, 1e12, float("nan"), True, 2, "2.0", [2.0], None])
def test_what_is_no_duration_is_unknown(wrong: object) -> None:
    entries = [timed_entry(1, 2.0, duration_ms=wrong)]
    assert flights_of(entries)[0].collectives[0].duration is None


def test_ranks_that_arrive_together_have_no_last_one() -> None:
    ranks = [[timed_entry(n, 2.0 + 0.01 * rank) for n in range(1, 6)] for rank in range(4)]
    assert not the_group(time_collectives(flights_of(*ranks))).last_arrivals


@given(
    st.lists(st.floats(0, 0.2), min_size=2, max_size=8),
    st.floats(1e-4, 0.1),
    st.randoms(use_true_random=False),
)
def test_arrivals_are_recovered(arrivals: list[float], transfer: float, chance: Any) -> None:
    """The rank that was latest is named, or nobody if another came within 50 µs."""
    chance.shuffle(arrivals)
    end = max(arrivals) + transfer
    ranks = [[timed_entry(1, (end - arrival) * 1e3)] for arrival in arrivals]
    (one,) = the_group(time_collectives(flights_of(*ranks))).collectives
    assert one.transfer == pytest.approx(transfer)
    if one.last is not None:
        assert arrivals[one.last] == max(arrivals)
    else:
        assert max(arrivals) - sorted(arrivals)[-2] < 51e-6


def examined(folder: Path) -> Diagnosis:
    return diagnose(case_of_flights(read_flights(folder), "dumps"))


def test_the_finding_names_shares_and_the_worst_collectives_first(tmp_path: Path) -> None:
    diagnosis = examined(write_dumps(tmp_path / "dumps", LATE))
    (finding,) = diagnosis.findings
    assert (finding.code, finding.severity) == ("collective-times", Severity.INFO)
    assert finding.culprits == ()
    assert "20 % of the time" in finding.title
    by_measure = {item.measure: item for item in finding.evidence}
    last = by_measure["rank 1 arrived last, group 0 (ranks 0-2)"]
    assert (last.value, last.baseline) == (4, 4)
    numbered = [item.measure for item in finding.evidence if "all_reduce" in item.measure]
    assert numbered[0] == "all_reduce 3 of group 0: transfer (rank 1 arrived last)"
    assert by_measure[numbered[0]].where == "/home/me/train.py:41"
    assert by_measure["all_reduce 3 of group 0: rank 0, arrival to end"].value == pytest.approx(
        0.007
    )


def test_a_file_is_diagnosed_and_written_as_json(tmp_path: Path) -> None:
    assert verb.diagnose
    folder = write_dumps(tmp_path / "dumps", LATE)
    result = CliRunner().invoke(app, ["diagnose", str(folder), "--json"])
    assert result.exit_code == 0
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["code"] == "collective-times"
    shares = [item["value"] for item in finding["evidence"] if item["unit"] == "fraction"]
    assert shares == pytest.approx([0.2, 16 / 90], rel=1e-4)
