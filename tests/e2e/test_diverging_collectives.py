"""Real gloo jobs whose ranks call different collectives, and healthy ones: right rank, right line.

The script of `tests/jobs` knows nothing of the doctor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from mgpu_probes.outside.flight.live_recorders import ask_by_socket
from mgpu_probes.outside.stacks import worker_socket

from mgpu_doctor.case.flight_records import Flight, flight_of, read_flights
from mgpu_doctor.case.model import Case, Job, Outcome, Subject
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from tests.support.jobs import JOBS, run, started, until

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

SCRIPT = JOBS / "mismatches.py"
LINES = SCRIPT.read_text(encoding="utf-8").splitlines()
RANKS = 4


def line_of(comment: str) -> str:
    """`mismatches.py:71`, where the script says so."""
    (number,) = (i for i, line in enumerate(LINES, 1) if line.endswith(f"# {comment}"))
    return f"{SCRIPT.name}:{number}"


def findings(flights: tuple[Flight, ...]) -> tuple[Finding, ...]:
    nothing = (None, None, None, None, None)
    job = Job("", (), *nothing, (), None, None, Outcome.UNKNOWN, None, None, None)
    return diagnose(Case(Subject("trace", "dumps"), job, 0.0, (), flights=flights)).findings


def dumped(folder: Path, *options: str) -> tuple[Flight, ...]:
    """The dumps that a job leaves, by their files; its ranks end each other, so its code says
    nothing."""
    run([sys.executable, str(SCRIPT), *options, "--dump", str(folder)])
    flights = read_flights(folder)
    assert [flight.rank for flight in flights] == list(range(RANKS))
    return flights


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[None]:
    """The job while it runs, each of its ranks with torch's worker server."""
    with started([sys.executable, str(SCRIPT), *options, "--sockets", str(folder)]):
        until(lambda: all((folder / f"{rank}.sock").exists() for rank in range(RANKS)))
        yield


def live(folder: Path) -> tuple[Flight, ...]:
    """What all ranks tell now; a server that was only just made may not yet answer."""
    flights: list[Flight] = []
    for rank in range(RANKS):
        ask = partial(worker_socket.ask_worker, str(folder / f"{rank}.sock"), timeout=10.0)
        with suppress(ConnectionError):
            flights.append(flight_of(ask_by_socket(ask, rank=rank)))
    return tuple(flights)


FAULTS = {
    "skip": ("skipped all_reduce", "gradients"),
    "extra": ("which ranks 0, 1 and 3 did not", "the extra one"),
    "operation": ("called all_gather", "the wrong one"),
    "silent": ("skipped all_reduce", "second of three"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_the_first_divergence_is_named_with_its_line(kind: str, tmp_path: Path) -> None:
    said, comment = FAULTS[kind]
    (finding,) = findings(dumped(tmp_path, kind, "--pause", "0.02", "--after", "4"))
    assert finding.code == "hang-collective-mismatch"
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert said in finding.title
    assert line_of(comment) in finding.title


@pytest.mark.parametrize("kind", ["healthy", "healthy-groups", "healthy-ddp"])
def test_dumps_of_a_healthy_job_in_motion_give_nothing(kind: str, tmp_path: Path) -> None:
    assert not findings(dumped(tmp_path, kind, "--after", "0.5"))


def test_a_rank_that_sleeps_is_reported_live(tmp_path: Path) -> None:
    with serving(tmp_path, "asleep", "--pause", "0.01"):
        until(lambda: bool(findings(live(tmp_path))))
        (finding,) = findings(live(tmp_path))
    assert finding.code == "hang-rank-behind"
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)


def test_a_ring_of_groups_is_reported_live(tmp_path: Path) -> None:
    with serving(tmp_path, "deadlock", "--pause", "0.01"):
        until(lambda: bool(findings(live(tmp_path))))
        (finding,) = findings(live(tmp_path))
    assert finding.code == "hang-collective-mismatch"
    assert [culprit.rank for culprit in finding.culprits] == [1, 2]


def test_a_healthy_job_is_asked_again_and_again_and_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, "healthy-groups"):
        until(lambda: sum(len(one.collectives) > 100 for one in live(tmp_path)) == RANKS)
        before = live(tmp_path)
        for _ in range(8):
            assert not findings(live(tmp_path))
        after = live(tmp_path)
        assert len(before) == len(after) == RANKS

    def last(flight: Flight) -> float:
        return max(one.created or 0.0 for one in flight.collectives)

    assert all(last(new) > last(old) for old, new in zip(before, after, strict=True))
