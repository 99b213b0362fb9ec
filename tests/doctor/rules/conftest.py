"""Compares every diagnosis in these tests with golden files of its numbers.

A test here asserts what matters to it. Beyond that, the codes, ranks, fixes and numbers of all its
diagnoses, and of the findings of rules that it applies itself, are those of
tests/recorded/diagnoses: read the difference before committing it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mgpu_doctor.case.model import State
from mgpu_doctor.findings import Diagnosis, Finding
from tests.support.recorded_diagnoses import Golden

ON_A_PROCESS = re.compile(r"(?:--pid|-p|-CONT|-acp [\d,-]+|`kill(?: \d+)*) (\d+)")


def list_dead_pids(diagnosis: Diagnosis) -> list[str]:
    """Pids in the commands of fixes that are of ranks which no longer run."""
    dead = {
        str(rank.pid)
        for rank in diagnosis.case.ranks
        if rank.state not in (State.RUNNING, State.WAITING)
    }
    fixes = [fix for finding in diagnosis.findings for fix in finding.fixes]
    return [pid for fix in fixes for pid in ON_A_PROCESS.findall(fix.how) if pid in dead]


@pytest.fixture(scope="module")
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    file = Golden(request.path.stem.removeprefix("test_"))
    yield file
    file.write()


@pytest.fixture(autouse=True)
def check_diagnoses(
    request: pytest.FixtureRequest, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Left out are property tests, whose jobs differ by profile, slow tests, which the command that
    records does not run, and the pretend driver, whose counters run with the clock."""
    results: list[Diagnosis | Sequence[Finding]] = []

    def keep(**fields: Any) -> Diagnosis:
        diagnosis = Diagnosis(**fields)
        assert list_dead_pids(diagnosis) == []
        results.append(diagnosis)
        return diagnosis

    monkeypatch.setattr("mgpu_doctor.diagnosis.Diagnosis", keep)
    monkeypatch.setattr("tests.support.recorded_diagnoses.keep", results.append)
    yield
    is_left_out = any(map(request.node.get_closest_marker, ("hypothesis", "slow")))
    if not is_left_out and not {"nvml", "libraries"} & {*request.fixturenames}:
        golden.check(request.node.name, results)
