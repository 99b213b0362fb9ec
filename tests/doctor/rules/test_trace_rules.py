"""Profiler traces: the rank that slows down the others, where the time goes, and healthy jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.case.profiler_case import case_of_traces
from mgpu_doctor.cli import app
from mgpu_doctor.cli import diagnose as verb
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine.subjects import Traces, recognize
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from mgpu_doctor.report.rank_rows import rows
from mgpu_doctor.report.verdict import job_line
from tests.support.kineto import OLD, Job, written

BOUND = Job(transfer=4000, kernel=100)


def examined(folder: Path, job: Job, *, packed: bool = False) -> Diagnosis:
    return diagnose(case_of_traces([written(folder, job, packed=packed)]))


def warnings(found: Diagnosis) -> list[Finding]:
    return [finding for finding in found.findings if finding.severity is not Severity.INFO]


def ran(*words: str) -> Result:
    assert verb.diagnose  # the verb is loaded, as `main` does
    return CliRunner().invoke(app, ["diagnose", *words])


@pytest.mark.parametrize(
    "job",
    [
        Job(slow={2: 1.2}),
        Job(slow={2: 1.2}, collective=OLD),
        Job(slow={2: 1.5}, ranks=3, overlap=False),
        Job(slow={2: 1.2}, once=2e6),
    ],
)
def test_a_slow_device_is_named_and_what_it_costs(tmp_path: Path, job: Job) -> None:
    (found,) = warnings(examined(tmp_path, job, packed=True))
    assert (found.code, [culprit.rank for culprit in found.culprits]) == ("straggler-compute", [2])
    assert 2 not in found.victims
    own = 41 * 200e-6 * (job.slow[2] - 1)
    assert found.cost.seconds_per_step == pytest.approx(own, rel=0.1)


def test_a_slow_loader_is_named(tmp_path: Path) -> None:
    (found,) = warnings(examined(tmp_path, Job(slow_loader={1: 4000})))
    assert (found.code, [culprit.rank for culprit in found.culprits]) == ("straggler-input", [1])


@pytest.mark.parametrize("job", [Job(jitter=0.0), Job(), Job(jitter=0.1), Job(once=2e6)])
def test_ranks_that_are_alike_give_nobody(tmp_path: Path, job: Job) -> None:
    diagnosis = examined(tmp_path, job)
    assert [finding.code for finding in diagnosis.findings] == ["time-split"]
    assert not any(gap.probe == "comparison of ranks" for gap in diagnosis.unexamined)
    assert ran(str(tmp_path)).exit_code == 0


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (BOUND, "communication-bound"),
        (Job(overlap=False, transfer=600), "overlap-poor"),
        (Job(kernel=2, kernels=400, launch=9, transfer=20), "launch-bound"),
        (Job(loader=4000), "input-bound"),
        (Job(loader=4000, once=2e6), "input-bound"),
    ],
)
def test_where_the_time_of_all_ranks_goes(tmp_path: Path, job: Job, code: str) -> None:
    assert [warning.code for warning in warnings(examined(tmp_path, job))] == [code]


def test_few_steps_and_single_ranks_name_nobody_and_say_so(tmp_path: Path) -> None:
    few = examined(tmp_path / "few", Job(steps=3, slow={2: 1.5}))
    assert warnings(few) == []
    assert any("3 steps were profiled" in gap.reason for gap in few.unexamined)
    one = written(tmp_path / "one", BOUND, leave_out=(1, 2, 3)) / "trace_0.json"
    assert isinstance(recognize(str(one)), Traces)
    alone = diagnose(case_of_traces([one]))
    assert warnings(alone) == []
    reasons = " ".join(gap.reason for gap in alone.unexamined)
    assert "no trace of rank 1, 2, 3 of 4" in reasons
    assert "traces of two ranks at least are needed" in reasons
    assert {row.state for row in rows(alone, 8)} == {"traced"}
    assert "end" not in job_line(alone), "a trace does not tell how the job ended"


def test_a_missing_rank_does_not_keep_the_others_from_being_compared(tmp_path: Path) -> None:
    folder = written(tmp_path, Job(slow={2: 1.2}), leave_out=(0,))
    (found,) = warnings(diagnose(case_of_traces([folder])))
    assert [culprit.rank for culprit in found.culprits] == [2]


@pytest.mark.parametrize("packed", [False, True])
def test_a_broken_tail_is_reported_and_the_rest_is_read(tmp_path: Path, packed: bool) -> None:
    folder = written(tmp_path, replace(BOUND, slow={2: 3.0}), packed=packed)
    broken = next(iter(sorted(folder.iterdir())))
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    diagnosis = diagnose(case_of_traces([folder]))
    assert any("ends early" in gap.reason for gap in diagnosis.unexamined)
    assert "straggler-compute" in [finding.code for finding in diagnosis.findings]


def test_the_verb_tells_it_as_text_and_as_json(tmp_path: Path) -> None:
    folder = written(tmp_path, Job(slow={2: 1.2}))
    done = ran(str(folder), "--json")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["subject"]["kind"] == "trace"
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1, 2, 3]
    assert document["findings"][0]["culprits"][0]["rank"] == 2
    assert "Rank 2 is slowing down the other ranks" in ran(str(folder)).stdout


@pytest.mark.parametrize(("name", "late"), [("late", [1]), ("well", [])])
def test_traces_of_real_jobs_on_cpus(name: str, late: list[int]) -> None:
    """Recorded with torch 2.13 and gloo on two busy cores; rank 1 of `late` slept for 80 ms in each
    step."""
    folder = Path(__file__).parents[2] / "recorded" / "traces" / name
    found = warnings(diagnose(case_of_traces([folder])))
    assert [culprit.rank for one in found for culprit in one.culprits] == late


def test_a_trace_of_nothing_is_not_examined(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    done = ran(str(path))
    assert done.exit_code == 3
    assert "holds no event" in done.stderr


def test_two_ranks_are_enough_to_tell_transfer_from_waiting(tmp_path: Path) -> None:
    found = warnings(examined(tmp_path, replace(BOUND, ranks=2)))
    assert [one.code for one in found] == ["communication-bound"]
