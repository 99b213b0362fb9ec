"""Real jobs that train on wrong samples, whose replicas diverge, or whose loss is NaN, and healthy
ones."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from tests.support import observed_jobs
from tests.support.jobs import forked, forked_trainer, run
from tests.support.observed_jobs import find_finding, list_warnings

pytestmark = [pytest.mark.slow, pytest.mark.untimed]
DOCTOR = (sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir")

diagnose_job = partial(observed_jobs.diagnose_job, launcher=forked)


def codes(diagnosis: Diagnosis) -> set[str]:
    """Findings about what is trained."""
    training = ("data-", "seed-", "batch-", "replicas-", "loss-", "lr-", "failed-")
    return {one.code for one in diagnosis.findings if one.code.startswith(training)}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--no-sampler"], "from the same random seed (7)"),
        (["--iterable"], "reads the whole stream"),
    ],
)
def test_ranks_that_train_on_the_same_batches(
    tmp_path: Path, options: list[str], cause: str
) -> None:
    diagnosis = diagnose_job(tmp_path, "data_sharding", *options)
    assert codes(diagnosis) == {"data-duplicated"}
    found = find_finding(diagnosis, "data-duplicated")
    assert found is not None
    assert found.severity is Severity.WARNING
    assert found.victims == (0, 1)
    assert cause in found.cause


@pytest.mark.parametrize("options", [[], ["--iterable", "--constant"]], ids=["sampler", "constant"])
def test_ranks_that_are_fed_as_they_should_be(tmp_path: Path, options: list[str]) -> None:
    assert codes(diagnose_job(tmp_path, "data_sharding", *options)) == set()


def test_an_order_that_never_changes_is_worth_knowing(tmp_path: Path) -> None:
    diagnosis = diagnose_job(tmp_path, "data_sharding", "--no-set-epoch")
    found = find_finding(diagnosis, "data-duplicated")
    assert found is not None
    assert found.severity is Severity.INFO
    assert "set_epoch" in found.title


def test_samplers_with_seeds_of_their_own(tmp_path: Path) -> None:
    diagnosis = diagnose_job(tmp_path, "data_sharding", "--seeds", "per-rank")
    assert codes(diagnosis) == {"seed-inconsistent"}
    found = find_finding(diagnosis, "seed-inconsistent")
    assert found is not None
    assert "25 %" in found.title


def test_a_global_batch_on_every_rank(tmp_path: Path) -> None:
    options = ("--undivided", "--global-batch-size", "64")
    diagnosis = diagnose_job(tmp_path, "data_sharding", *options)
    assert codes(diagnosis) == {"batch-confusion"}
    found = find_finding(diagnosis, "batch-confusion")
    assert found is not None
    assert "128 samples, not 64" in found.title


def test_the_default_rate_for_a_large_batch(tmp_path: Path) -> None:
    options = ("--global-batch-size", "512", "--lr", "0.001")
    assert codes(diagnose_job(tmp_path, "data_sharding", *options)) == {"lr-unscaled"}


def test_replicas_that_drift_apart(tmp_path: Path) -> None:
    diagnosis = diagnose_job(tmp_path, "diverging_replicas", "--wrong", "forgotten")
    assert codes(diagnosis) == {"replicas-diverged"}
    found = find_finding(diagnosis, "replicas-diverged")
    assert found is not None
    assert found.since_step == 5
    assert found.culprits == ()
    assert "reduces gradients itself" in found.cause


def test_the_one_replica_that_differs_is_named(tmp_path: Path) -> None:
    diagnosis = diagnose_job(
        tmp_path, "diverging_replicas", "--wrong", "stale", "--rank", "2", ranks=4
    )
    found = find_finding(diagnosis, "replicas-diverged")
    assert found is not None
    assert [one.rank for one in found.culprits] == [2]
    assert found.victims == (0, 1, 3)


def test_a_replica_that_changes_late_is_named_after_its_optimizer_is_gone(tmp_path: Path) -> None:
    late = ("--wrong", "stale", "--rank", "1", "--at", "85", "--steps", "90")
    found = find_finding(
        diagnose_job(tmp_path, "diverging_replicas", *late, ranks=3), "replicas-diverged"
    )
    assert found is not None
    assert [one.rank for one in found.culprits] == [1]


def test_replicas_that_are_as_meant(tmp_path: Path) -> None:
    assert codes(diagnose_job(tmp_path, "diverging_replicas")) == set()


def test_the_rank_whose_loss_was_the_first(tmp_path: Path) -> None:
    diagnosis = diagnose_job(tmp_path, "nan_loss", "--rank", "1", "--value", "inf")
    (found,) = list_warnings(diagnosis)
    assert (found.code, [one.rank for one in found.culprits]) == ("loss-nan", [1])
    assert found.since_step == 20
    assert found.severity is Severity.WARNING


def test_a_gradient_that_spoils_all_ranks_at_once_names_nobody(tmp_path: Path) -> None:
    job = forked_trainer("torch-ddp", model="cnn-nano", steps=40, fault="nan:rank=1,step=20")
    ended = run([*DOCTOR, str(tmp_path), "--", *job])
    assert ended.code == 0, ended.err
    (found,) = list_warnings(diagnose(load_recording(tmp_path)))
    assert (found.code, found.culprits, found.since_step) == ("loss-nan", (), 20)


@pytest.mark.parametrize("then", ["raise", "exit"])
def test_a_script_that_gives_up_over_its_loss(tmp_path: Path, then: str) -> None:
    job = forked("nan_loss.py", "--rank", "1", "--then", then)
    assert run([*DOCTOR, str(tmp_path), "--", *job]).code != 0
    diagnosis = diagnose(load_recording(tmp_path))
    assert codes(diagnosis) == {"loss-nan"}
    found = diagnosis.findings[0]
    assert (found.severity, [one.rank for one in found.culprits]) == (Severity.CRITICAL, [1])
