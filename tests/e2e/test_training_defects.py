"""Real jobs that train on wrong samples, whose replicas diverge, whose loss is NaN, or that leak
memory, and healthy ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Severity
from tests.support.jobs import forked, run
from tests.support.jobs_in_turn import job, trainer_job
from tests.support.observed_jobs import Observed, find_finding, list_warnings, plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.untimed,
    pytest.mark.xdist_group("training_defects"),
]
DOCTOR = (sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir")

SAME_BATCHES = {
    "from the same random seed (7)": job("data_sharding", "--no-sampler"),
    "reads the whole stream": job("data_sharding", "--iterable"),
}
AS_THEY_SHOULD_BE = {
    "sampler": job("data_sharding"),
    "constant": job("data_sharding", "--iterable", "--constant"),
}
ONE_ORDER = job("data_sharding", "--no-set-epoch")
OWN_SEEDS = job("data_sharding", "--seeds", "per-rank")
UNDIVIDED = job("data_sharding", "--undivided", "--global-batch-size", "64")
LARGE_BATCH = job("data_sharding", "--global-batch-size", "512", "--lr", "0.001")
FORGOTTEN = job("diverging_replicas", "--wrong", "forgotten")
STALE = job("diverging_replicas", "--wrong", "stale", "--rank", "2", ranks=4)
LATE = job(
    "diverging_replicas",
    *("--wrong", "stale", "--rank", "1", "--at", "85", "--steps", "90"),
    ranks=3,
)
ALIKE = job("diverging_replicas")
INFINITE = job("nan_loss", "--rank", "1", "--value", "inf")
SPOILT = trainer_job("torch-ddp", steps=40, fault="nan:rank=1,step=20")
LEAKING = trainer_job("torch-ddp", batch=4, steps=100, fault="leak:rank=1,mb=1")
PLANTED = {
    "data-duplicated": trainer_job("torch-localsgd", steps=120, fault="same-data"),
    "replicas-diverged": trainer_job("torch-ddp", steps=120, fault="diverge:step=40"),
}
"""Code -> job."""
plan(*SAME_BATCHES.values(), *AS_THEY_SHOULD_BE.values(), ONE_ORDER, OWN_SEEDS)
plan(SPOILT, LEAKING, *PLANTED.values())
plan(UNDIVIDED, LARGE_BATCH, FORGOTTEN, STALE, LATE, ALIKE, INFINITE)


def codes(diagnosis: Diagnosis) -> set[str]:
    """Findings about what is trained."""
    training = ("data-", "seed-", "batch-", "replicas-", "loss-", "lr-", "failed-")
    return {one.code for one in diagnosis.findings if one.code.startswith(training)}


@pytest.mark.parametrize("cause", SAME_BATCHES)
def test_ranks_that_train_on_the_same_batches(observed: Observed, cause: str) -> None:
    diagnosis = diagnose(observed.case_of(SAME_BATCHES[cause]))
    assert codes(diagnosis) == {"data-duplicated"}
    found = find_finding(diagnosis, "data-duplicated")
    assert found is not None
    assert found.severity is Severity.WARNING
    assert found.victims == (0, 1)
    assert cause in found.cause


@pytest.mark.parametrize("how", AS_THEY_SHOULD_BE)
def test_ranks_that_are_fed_as_they_should_be(observed: Observed, how: str) -> None:
    assert codes(diagnose(observed.case_of(AS_THEY_SHOULD_BE[how]))) == set()


def test_an_order_that_never_changes_is_worth_knowing(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(ONE_ORDER))
    found = find_finding(diagnosis, "data-duplicated")
    assert found is not None
    assert found.severity is Severity.INFO
    assert "set_epoch" in found.title


def test_samplers_with_seeds_of_their_own(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(OWN_SEEDS))
    assert codes(diagnosis) == {"seed-inconsistent"}
    found = find_finding(diagnosis, "seed-inconsistent")
    assert found is not None
    assert "25 %" in found.title


def test_a_global_batch_on_every_rank(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(UNDIVIDED))
    assert codes(diagnosis) == {"batch-confusion"}
    found = find_finding(diagnosis, "batch-confusion")
    assert found is not None
    assert "128 samples, not 64" in found.title


def test_the_default_rate_for_a_large_batch(observed: Observed) -> None:
    assert codes(diagnose(observed.case_of(LARGE_BATCH))) == {"lr-unscaled"}


def test_replicas_that_drift_apart(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(FORGOTTEN))
    assert codes(diagnosis) == {"replicas-diverged"}
    found = find_finding(diagnosis, "replicas-diverged")
    assert found is not None
    assert found.since_step == 5
    assert found.culprits == ()
    assert "reduces gradients itself" in found.cause


def test_the_one_replica_that_differs_is_named(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(STALE))
    found = find_finding(diagnosis, "replicas-diverged")
    assert found is not None
    assert [one.rank for one in found.culprits] == [2]
    assert found.victims == (0, 1, 3)


def test_a_replica_that_changes_late_is_named_after_its_optimizer_is_gone(
    observed: Observed,
) -> None:
    found = find_finding(diagnose(observed.case_of(LATE)), "replicas-diverged")
    assert found is not None
    assert [one.rank for one in found.culprits] == [1]


def test_replicas_that_are_as_meant(observed: Observed) -> None:
    assert codes(diagnose(observed.case_of(ALIKE))) == set()


def test_the_rank_whose_loss_was_the_first(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(INFINITE))
    (found,) = list_warnings(diagnosis)
    assert (found.code, [one.rank for one in found.culprits]) == ("loss-nan", [1])
    assert found.since_step == 20
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize("code", PLANTED)
def test_a_trainer_that_learns_less_than_it_seems_to(observed: Observed, code: str) -> None:
    """Stragglers do not count: how fast its ranks are is not planted here, and a neighbour of the
    machine may slow one down."""
    found = list_warnings(diagnose(observed.case_of(PLANTED[code])))
    others = [one for one in found if not one.code.startswith("straggler-")]
    assert [(one.code, one.severity) for one in others] == [(code, Severity.WARNING)]


def test_a_rank_that_leaks_is_named_within_a_hundred_steps(observed: Observed) -> None:
    found_ones = list_warnings(diagnose(observed.case_of(LEAKING)))
    (found,) = [one for one in found_ones if one.code == "leak-host"]
    assert [one.rank for one in found.culprits] == [1]
    assert found.evidence[0].value == pytest.approx(2**20, rel=0.25)


def test_a_gradient_that_spoils_all_ranks_at_once_names_nobody(observed: Observed) -> None:
    (found,) = list_warnings(diagnose(observed.case_of(SPOILT)))
    assert (found.code, found.culprits, found.since_step) == ("loss-nan", (), 20)


@pytest.mark.parametrize("then", ["raise", "exit"])
def test_a_script_that_gives_up_over_its_loss(tmp_path: Path, then: str) -> None:
    gives_up = forked("nan_loss.py", "--rank", "1", "--then", then)
    assert run([*DOCTOR, str(tmp_path), "--", *gives_up]).code != 0
    diagnosis = diagnose(load_recording(tmp_path))
    assert codes(diagnosis) == {"loss-nan"}
    found = diagnosis.findings[0]
    assert (found.severity, [one.rank for one in found.culprits]) == (Severity.CRITICAL, [1])
