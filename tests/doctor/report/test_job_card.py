"""The card of what ran, from the job and from its ranks' metadata, which may hold anything."""

from __future__ import annotations

from dataclasses import replace

from mgpu_doctor.case.model import Outcome, Rank, Subject
from mgpu_doctor.case.untrusted_json import Json
from mgpu_doctor.findings import Diagnosis, Predicted
from mgpu_doctor.report.job_card import facts
from mgpu_doctor.report.redaction.redact import make_redactor, no_redaction
from mgpu_doctor.report.verdict import gains, job_line, whole_run
from tests.support import diagnoses
from tests.support.metadata import with_metadata


def born(birth: dict[str, Json]) -> Diagnosis:
    made = diagnoses.straggler()
    ranks = tuple(
        with_metadata(replace(rank, device="cuda:0"), **birth) for rank in made.case.ranks
    )
    return replace(made, case=replace(made.case, ranks=ranks))


def test_versions_devices_and_settings_are_reported() -> None:
    birth: dict[str, Json] = {
        "framework_version": "2.13.0", "python": "3.11.7", "backend": "nccl",
        "device_name": "NVIDIA H200", "precision": "bfloat16", "threads": 1, "affinity": 8,
        "loaders": [{"batch_size": 32, "workers": 4}, {"batch_size": 1}],
        "optimizers": [{"class": "AdamW", "lr": 0.001}],
    }  # fmt: skip
    told = facts(born(birth), no_redaction())
    assert told["framework"].endswith("2.13.0, Python 3.11.7")
    assert told["devices"] == "4 × NVIDIA H200"
    assert told["threads"] == "1 a rank, on 8 cores"
    assert told["loader"] == "batches of 32, 4 workers"
    assert told["optimizer"] == "AdamW, learning rate 0.001"


def test_a_birth_of_other_kinds_is_left_out() -> None:
    odd: dict[str, Json] = {
        "framework_version": 2, "python": None, "threads": "many", "precision": [],
        "loaders": {"batch_size": 1}, "optimizers": ["x"], "device_name": 7,
    }  # fmt: skip
    told = facts(born(odd), no_redaction())
    assert not {"precision", "threads", "loader", "optimizer"} & told.keys()
    assert told["devices"] == "4 × cuda"


def test_hosts_are_hidden_in_what_ranks_reported_too() -> None:
    made = born({"device_name": "GPU of node-a"})
    assert facts(made, make_redactor(made))["devices"] == "4 × GPU of host-1"


def test_what_the_run_would_have_taken_is_reported_when_it_is_over() -> None:
    made = diagnoses.straggler()
    steps = (made.furthest_step or 0) + 1
    made = replace(made, step_seconds=2.0)
    half = Predicted(0.5, None, "what-if")
    job = replace(made.case.job, outcome=Outcome.COMPLETED)
    over = replace(made, case=replace(made.case, job=job))
    told = whole_run(over, half)
    assert told is not None
    assert told.startswith(f"this run's {steps} steps in ")
    job = replace(job, outcome=Outcome.RUNNING)
    assert whole_run(replace(over, case=replace(over.case, job=job)), half) is None
    assert whole_run(over, Predicted(1.2, None, "what-if")) is None
    assert whole_run(over, None) is None


def test_a_run_that_counts_on_took_only_its_own_steps() -> None:
    made = replace(diagnoses.straggler(), step_seconds=2.0)
    ranks = [replace(rank, lost_records=0) for rank in made.case.ranks]
    late = [replace(rank, steps=rank.steps[300:]) for rank in ranks]
    job = replace(made.case.job, outcome=Outcome.COMPLETED)
    steps = (made.furthest_step or 0) + 1

    def told(ranks: list[Rank], kind: str = "command") -> tuple[str, str | None]:
        subject = Subject(kind, "x")
        case = replace(made.case, job=job, ranks=tuple(ranks), subject=subject)
        now = replace(made, case=case)
        return job_line(now), whole_run(now, Predicted(0.5, None, "what-if"))

    line, gained = told(late)
    assert f"; {steps - 300} steps, " in line
    assert gained is not None
    assert gained.startswith(f"this run's {steps - 300} steps in ")
    assert f"; {steps - 300} steps, " in told(late, "trace")[0]
    assert (told(late, "trace")[1] or "").startswith("these ")
    # The ring let its first steps go: the run was longer than what it holds.
    assert f"; {steps} steps, " in told([replace(rank, lost_records=300) for rank in late])[0]


def test_what_two_fixes_gain_alike_is_reported_once() -> None:
    made = diagnoses.straggler()
    first, other = made.findings[0].fixes
    alike = replace(other, predicted=first.predicted)
    finding = replace(made.findings[0], fixes=(first, alike))
    assert len(gains(made, finding, first)) == 2
    assert gains(made, finding, alike) == ["the same gain"]
    assert gains(made, made.findings[0], other) == []
