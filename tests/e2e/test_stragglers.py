"""Real jobs with a planted slow rank: the right rank, the right cause; silence where all is well.

The scripts of `tests/jobs` know nothing of the doctor.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mgpu_doctor.findings import Severity
from tests.support.examining import Observed, examined, loud

pytestmark = pytest.mark.slow

CODES = {
    "input": "straggler-input",
    "forward": "straggler-compute",
    "backward": "straggler-compute",
    "optimizer": "straggler-optimizer",
    "between": "straggler-other",
}
PLAIN = [("plain_ddp", place) for place in CODES]
PLANTED = [
    *PLAIN,
    ("no_loader", "between"),
    ("manual_allreduce", "forward"),
    ("manual_allreduce", "between"),
]
"""Some of what `benchmarks.blame` has: all of it takes an hour."""
STEPS = ("--steps", "60")
LONG = ("--steps", "100")
PERCENT, MILLISECONDS = ("--percent", "50"), ("--ms", "40")
"""The benchmark has smaller ones, on a quiet machine: beside much other work 30 % in 50 steps did
not stand out enough to be told."""


@pytest.mark.parametrize(
    ("script", "place", "size"),
    [*((*job, PERCENT) for job in PLANTED), ("plain_ddp", "backward", MILLISECONDS)],
)
def test_the_slow_rank_and_its_cause_are_named(
    tmp_path: Path, script: str, place: str, size: tuple[str, str]
) -> None:
    diagnosis = examined(tmp_path, script, *LONG, "--fault", place, "--rank", "2", *size, ranks=4)
    first = diagnosis.findings[0]
    # Without a module nothing tells the time between steps from forward.
    bare = script == "manual_allreduce" and place == "between"
    code = "straggler-compute" if bare else CODES[place]
    assert (first.code, [one.rank for one in first.culprits]) == (code, [2])
    assert not bare or "between steps" in first.title
    assert first.severity is Severity.WARNING
    assert first.victims == (0, 1, 3)
    assert [one for one in loud(diagnosis) if one.culprits and one is not first] == []


@pytest.mark.parametrize("script", ["plain_ddp", "no_loader", "manual_allreduce"])
def test_healthy_jobs_get_no_warning(observed: Observed, script: str) -> None:
    diagnosis = observed.diagnosis(script, *STEPS, ranks=4)
    assert loud(diagnosis) == []
    assert diagnosis.coverage is not None
    assert diagnosis.coverage >= 0.9
    assert diagnosis.ranks[0].phases["communication"] is not None


def test_every_rank_slow_in_its_loader_is_a_job_bound_by_input(tmp_path: Path) -> None:
    slow = ("--fault", "input", "--rank", "-1", "--ms", "40")
    diagnosis = examined(tmp_path, "plain_ddp", *STEPS, *slow, ranks=4)
    (found,) = loud(diagnosis)
    assert found.code == "input-bound"
    assert "num_workers=0" in found.cause
    assert "persistent_workers=True" in found.fixes[0].how
