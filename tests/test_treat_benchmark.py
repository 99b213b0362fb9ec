"""`benchmarks.treat --jobs`: every treatment has jobs or a reason, and a run that ended goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import treat_trials
from benchmarks.treat_jobs import ALL_JOBS, NO_JOBS
from benchmarks.treat_trials import Row, list_jobs, read_rows, render_table, run_jobs
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS


def test_every_treatment_has_jobs_or_a_reason_why_not() -> None:
    on_gpus = {name for name, treatment in TREATMENTS.items() if treatment.needs_gpu}
    assert [name for name in TREATMENTS if name in ALL_JOBS.keys() | NO_JOBS.keys() | on_gpus] == [
        *TREATMENTS
    ]
    assert ALL_JOBS.keys().isdisjoint(NO_JOBS.keys() | on_gpus)
    for name, jobs in ALL_JOBS.items():
        TREATMENTS[name].check_value(jobs.value)


def test_rows_that_the_table_has_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six jobs, the second of which had no time for a verdict at first."""
    measured: list[tuple[str, str]] = []
    lacks_time = {("gc-freeze", "same")}

    def measure(name: str, job: str, _: Sequence[str], limit: float) -> Row:
        assert limit == 100.0
        measured.append((name, job))
        is_right = None if (name, job) in lacks_time else True
        return Row(
            name, job, "helps", is_right, 0.5, 0.4, 0.6, 0.45, None, 2, "", load=1.0, seconds=9.0
        )

    monkeypatch.setattr(treat_trials, "measure", measure)
    table = tmp_path / "rows.jsonl"
    assert run_jobs(["gc-freeze"], within=50.0, limit=100.0, table=table) == []  # no time for any
    run_jobs(["gc-freeze"], within=1e6, limit=100.0, table=table)
    assert measured == [("gc-freeze", kind) for kind in ("helps", "same", "placebo")]
    lacks_time.clear()
    rows = run_jobs(["gc-freeze", "tf-prefetch"], within=1e6, limit=100.0, table=table)
    assert measured[3:] == [
        ("tf-prefetch", "helps"),
        ("tf-prefetch", "same"),
        ("gc-freeze", "same"),
        ("tf-prefetch", "placebo"),
    ]
    assert len(rows) == len(read_rows(table)) == 6
    text = render_table(rows)
    assert "| `gc-freeze` | 50 % (40 % to 60 %) | 45 % |" in text
    assert "| `tf32` | untried: needs a GPU |" in text
    assert "Right: 4 of 4 verdicts" in text
    assert "Of 2 placebos, 2 are said to help." in text


def test_the_jobs_that_tell_most_come_first() -> None:
    kinds = [kind for _, kind, _ in list_jobs(ALL_JOBS)]
    assert kinds == sorted(kinds, key=["helps", "breaks", "same", "placebo"].index)
