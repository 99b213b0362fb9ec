"""Loops with short steps, of which most are not timed: only their wall time is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import OUT_OF_TURN, UNTIMED

from mgpu_doctor.analysis.comparing.compared_run import losses_of
from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.device_times import on_one_clock, timed
from mgpu_doctor.case.model import Case, Now, Rank
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.export.step_table import columns, rows
from mgpu_doctor.live.job_progress import measure_progress
from tests.support.synthetic import Fault, Synthetic, synthetic_case

STEPS, FULL, EVERY = 12_000, 400, 16
SHORT = {
    "input": 2e-5,
    "forward": 8e-5,
    "backward": 9e-5,
    "optimizer": 3e-5,
    "other": 1e-5,
}


def sampled(whole: Case) -> Case:
    """The same job as it is recorded if its hooks rest after some steps."""

    def forget(rank: Rank) -> Rank:
        steps = rank.steps.copy()
        steps["samples"], steps["loss"] = 8, 0.5
        rest = (steps["step"] >= FULL) & (steps["step"] % EVERY != 0)
        late = (steps["step"] >= FULL) & (steps["step"] % (10 * EVERY) == 1)
        rest &= ~late
        steps["flags"][rest] |= UNTIMED
        steps["flags"][late] |= OUT_OF_TURN
        for name in ("phases", "loss", "cpu_s", "gc_s"):
            steps[name][rest] = np.nan
        for name in ("samples", "tokens", "micro_batches", "collectives"):
            steps[name][rest] = 0
        return replace(rank, steps=steps)

    return replace(whole, ranks=tuple(map(forget, whole.ranks)))


def job(*faults: Fault, ranks: int = 4) -> Case:
    return sampled(
        synthetic_case(
            Synthetic(ranks=ranks, steps=STEPS, base=SHORT, communication=2e-5, faults=faults)
        )
    )


@pytest.mark.parametrize(
    ("phase", "code"),
    [("forward", "straggler-compute"), ("input", "straggler-input")],
)
def test_a_slow_rank_is_named_by_the_timed_steps(phase: str, code: str) -> None:
    found = diagnose(job(Fault(2, phase, milliseconds=0.03)))
    assert [(f.code, [c.rank for c in f.culprits]) for f in found.findings] == [(code, [2])]
    assert [rank.last_step for rank in found.ranks] == [STEPS - 1] * 4
    for rank in found.ranks:
        assert rank.phases["backward"] == pytest.approx(9e-5, rel=0.05)


def test_a_healthy_job_is_healthy_and_its_phases_explain_its_time() -> None:
    seen = job()
    found = diagnose(seen)
    assert not found.findings
    assert found.coverage == pytest.approx(
        measure(synthetic_case(Synthetic(base=SHORT))).coverage, abs=0.05
    )
    assert "stalls in single steps" in {missing.probe for missing in found.unexamined}


def test_only_timed_steps_are_compared_and_all_count_as_progress() -> None:
    seen = job()
    for rank in seen.ranks:
        known = on_one_clock(rank)
        assert len(known.steps) == FULL + (STEPS - FULL) // EVERY
        assert not (known.steps["flags"] & UNTIMED).any()
        assert len(timed(rank.steps[FULL + 1 : FULL + 3])) == 0
    wall = float(np.mean([rank.steps["wall_ns"] for rank in seen.ranks])) * 1e-9
    measures = measure(seen)
    assert measures.step_seconds == pytest.approx(wall, rel=0.02)
    end = float(seen.ranks[0].steps["end_ns"][-1]) * 1e-9
    going = measure_progress(replace(seen, observed=end))
    assert going.samples == pytest.approx(4 * 8 / wall, rel=0.05)
    losses = losses_of(seen.ranks)
    assert losses is not None


def test_a_long_step_between_timed_ones_still_shows() -> None:
    (rank,) = (whole := job(ranks=1)).ranks
    steps = rank.steps.copy()
    for step in range(FULL + 5, STEPS, 100):
        steps["wall_ns"][step] = 20_000_000
    long = measure(replace(whole, ranks=(replace(rank, steps=steps),))).long_steps
    assert long is not None
    assert long.seconds == pytest.approx(0.02)
    assert long.period == pytest.approx(100)


def test_the_current_activity_knows_of_steps_whose_records_are_not_written_yet() -> None:
    rank = job().ranks[0]
    ahead = Now("other", 0.0, STEPS + 10, None, None)
    assert replace(rank, now=ahead).last_step == STEPS + 9
    assert replace(rank, now=replace(ahead, step=20)).last_step == STEPS - 1
    assert replace(rank, now=ahead, steps=rank.steps[:0]).last_step is None


def test_exports_say_nothing_of_what_was_not_counted() -> None:
    rank = job().ranks[0]
    table = columns(rank)
    hidden = rank.steps["flags"] & UNTIMED != 0
    for name in ("micro_batches", "collectives", "samples", "forward_seconds", "loss"):
        assert (np.ma.getmaskarray(table[name]) == hidden).all()
    assert not np.ma.getmaskarray(table["step_seconds"]).any()
    listed = list(rows(rank))
    assert (listed[FULL + 1]["collectives"], listed[FULL]["collectives"]) == (None, 3)
