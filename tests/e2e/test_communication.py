"""Real jobs that communicate too often, inefficiently or needlessly, and healthy ones without
findings.

The scripts of `tests/jobs` know nothing of the doctor. `--link` pretends a slow network.
"""

from __future__ import annotations

import re

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, Finding
from tests.support.jobs_in_turn import job
from tests.support.observed_jobs import Observed, list_warnings, plan

pytestmark = pytest.mark.slow

OURS = {
    "accumulation-syncs",
    "communication-bound",
    "overlap-poor",
    "sync-excess",
    "unused-parameter-scan",
}


FEW_STEPS, STEPS = ("--steps", "36"), ("--steps", "60")
MICRO_BATCHES = job("ddp_settings", *FEW_STEPS, "--accumulate", "4", "--link", "200")
ONE_BUCKET = job("ddp_settings", *FEW_STEPS, "--buckets", "1000", "--link", "100")
SLOW_LINK = job("ddp_settings", *FEW_STEPS, "--link", "60")
plan(MICRO_BATCHES, ONE_BUCKET, SLOW_LINK)
FINDS_NONE = job("ddp_settings", *STEPS, "--find-unused", "--branches", "1000")
SKIPPING = {
    every: job("ddp_settings", *STEPS, "--find-unused", "--spare", str(every)) for every in (2, 15)
}
"""Every 15th pass is none that torch samples for its log."""
IN_EVERY_STEP = job("ddp_settings", *FEW_STEPS, "--barrier", "--log-every-step")
plan(FINDS_NONE, *SKIPPING.values(), IN_EVERY_STEP)


def the(code: str, diagnosis: Diagnosis) -> Finding:
    (found,) = (one for one in diagnosis.findings if one.code == code)
    return found


def codes(diagnosis: Diagnosis) -> set[str]:
    return {one.code for one in diagnosis.findings}


def test_gradients_exchanged_in_every_micro_batch(observed: Observed) -> None:
    diagnosis = diagnose(observed.case_of(MICRO_BATCHES))
    found = the("accumulation-syncs", diagnosis)
    assert list_warnings(diagnosis) == [found]
    assert "4 times per update" in found.title
    # Four exchanges of 40 ms each, of which one is needed, beside some tens of ms of computing.
    assert found.cost.step_fraction is not None
    assert 0.3 < found.cost.step_fraction < 0.75


@pytest.mark.untimed
@pytest.mark.xdist_group("ddp_settings")
def test_a_search_for_unused_parameters_that_finds_none(observed: Observed) -> None:
    found = the("unused-parameter-scan", diagnose(observed.case_of(FINDS_NONE)))
    assert found.confidence > 0.9
    assert found.cost.seconds_per_step is not None
    assert found.cost.seconds_per_step > 0


@pytest.mark.untimed
@pytest.mark.xdist_group("ddp_settings")
@pytest.mark.parametrize("every", SKIPPING)
def test_a_layer_that_is_skipped_at_times_needs_the_search(observed: Observed, every: int) -> None:
    assert "unused-parameter-scan" not in codes(diagnose(observed.case_of(SKIPPING[every])))


def test_one_bucket_for_all_gradients(observed: Observed) -> None:
    found = the("overlap-poor", diagnose(observed.case_of(ONE_BUCKET)))
    assert "bucket_cap_mb=1000" in found.cause
    assert re.search(r"bucket_cap_mb=(1|2|5|10|25)\)", found.fixes[0].how)


def test_a_slow_link(observed: Observed) -> None:
    """Cores that others keep busy as well are named, and then it is no warning."""
    found = the("communication-bound", diagnose(observed.case_of(SLOW_LINK)))
    assert "communication" in found.evidence[0].measure
    assert isinstance(found.evidence[0].value, float)
    assert found.evidence[0].value > 0.5


@pytest.mark.untimed  # what is in every step is counted
@pytest.mark.xdist_group("ddp_settings")
def test_a_barrier_and_a_logged_loss_in_every_step(observed: Observed) -> None:
    found = the("sync-excess", diagnose(observed.case_of(IN_EVERY_STEP)))
    assert "barrier at " in found.title
    assert "ddp_settings.py:" in found.title
    assert {one.measure.split()[0] for one in found.evidence} == {"barrier", "all_reduce"}
    assert [fix.id for fix in found.fixes] == ["no-barrier", "less-often"]


@pytest.mark.parametrize(
    ("script", "ranks"), [("plain_ddp", 4), ("manual_allreduce", 4), ("accumulate", 2)]
)
def test_healthy_jobs_exchange_as_they_should(observed: Observed, script: str, ranks: int) -> None:
    diagnosis = observed.diagnosis(script, "--steps", "60", ranks=ranks)
    assert codes(diagnosis) & OURS <= {"communication-bound"}
    assert all(one.code not in OURS for one in list_warnings(diagnosis))
