"""imbalance-data: which rank has more, what the others lose, and the fixes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.model import Case, Event
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from tests.support.per_step_jobs import Seconds, case_of_seconds, healthy
from tests.support.pipelines import Pipeline, pipeline_case
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import Synthetic


def case_of(load: Seconds, unit: str, **more: Any) -> Case:
    work = healthy(Synthetic(ranks=load.shape[1], steps=len(load)))
    for phase in ("input", "forward", "backward"):
        work[phase] *= load / load.min()
    return case_of_seconds(work, fields={unit: load}, **more)


def diagnose_warnings(case: Case) -> list[Finding]:
    return [finding for finding in diagnose(case).findings if finding.severity is not Severity.INFO]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_the_rank_with_more_is_named_and_nothing_else_reported_of_it(unit: str, ranks: int) -> None:
    load = np.full((120, ranks), 32.0)
    load[:, 1] = 64
    (finding,) = diagnose_warnings(case_of(load, unit))
    assert (finding.code, [culprit.rank for culprit in finding.culprits]) == ("imbalance-data", [1])
    assert finding.victims == tuple(rank for rank in range(ranks) if rank != 1)
    assert f"100 % more {unit}" in finding.title
    first = finding.evidence[0]
    assert (first.value, first.baseline, first.unit) == (64, 32, unit)
    even, same_total = (fix.predicted for fix in finding.fixes)
    assert even is not None
    assert same_total is not None
    assert even.step_time_ratio == pytest.approx(1 - (finding.cost.step_fraction or 0))
    assert (same_total.step_time_ratio or 0) > (even.step_time_ratio or 0)


def test_the_loaders_say_why() -> None:
    load = np.full((120, 2), 32.0)
    load[:, 1] = 64
    births = {rank: {"loaders": [{"batch_size": 32 * (rank + 1)}]} for rank in (0, 1)}
    (finding,) = diagnose_warnings(case_of(load, "samples", births=births))
    assert "batch_size=64, the others' have batch_size=32" in finding.cause


def test_two_ranks_with_more() -> None:
    load = np.full((120, 8), 32.0)
    load[:, [2, 5]] = 64
    (finding,) = diagnose_warnings(case_of(load, "samples"))
    assert finding.code == "imbalance-data"
    assert sorted(culprit.rank or 0 for culprit in finding.culprits) == [2, 5]
    assert finding.victims == (0, 1, 3, 4, 6, 7)
    assert "100 % more samples" in finding.title


def test_by_turns_nobody_is_to_blame() -> None:
    load = np.random.default_rng(1).integers(200, 1000, (150, 4)).astype(float)
    (finding,) = diagnose_warnings(case_of(load, "tokens"))
    assert (finding.code, finding.culprits, finding.victims) == ("imbalance-data", (), (0, 1, 2, 3))
    assert "tokens" in finding.title
    assert "group_by_length" in finding.fixes[0].how
    assert finding.evidence[1].value == pytest.approx(1, abs=0.1)


def test_equal_loads_are_well() -> None:
    assert diagnose_warnings(case_of(np.full((120, 4), 32.0), "samples")) == []


def uncounted(load: Seconds, phases: tuple[str, ...] = ("forward", "backward")) -> Case:
    """A job whose work in these phases follows a load that nothing counts, as its threads' CPU
    time does."""
    work = healthy(Synthetic(ranks=load.shape[1], steps=len(load)))
    for phase in phases:
        work[phase] *= load
    return case_of_seconds(work, fields={"cpu_s": np.sum(list(work.values()), axis=0)})


def uneven(ranks: int = 4) -> Seconds:
    return np.random.default_rng(1).uniform(0.3, 1.7, (150, ranks))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_work_alone_shows_uneven_data(ranks: int) -> None:
    load = uneven(ranks)
    (finding,) = diagnose_warnings(uncounted(load))
    assert (finding.code, finding.culprits) == ("imbalance-data", ())
    assert finding.victims == tuple(range(ranks))
    assert finding.confidence == 0.8
    assert float(finding.evidence[1].value or 0) > 0.95
    even = diagnose_warnings(uncounted(np.repeat(load.mean(axis=1, keepdims=True), ranks, axis=1)))
    assert even == []
    passes, other = 0.022, 0.0067
    longest = load.max(axis=1)
    saved = passes * (longest - load.mean(axis=1)).mean() / (passes * longest.mean() + other)
    assert finding.cost.step_fraction == pytest.approx(saved, rel=0.2)


def test_pipelines_with_data_of_different_size_blame_no_stage() -> None:
    """Two pipelines of three stages, the second of which is always heavier."""
    sizes = np.repeat(np.random.default_rng(1).uniform(0.4, 2, (150, 2)), 3, axis=1)
    job = Pipeline((0.004, 0.006, 0.004), replicas=2, steps=150, sizes=sizes)
    found = {each.code: each for each in diagnose(pipeline_case(job)).findings}
    assert found["imbalance-data"].culprits == ()
    assert found["imbalance-data"].victims == tuple(range(6))
    assert found["imbalance-data"].severity is Severity.WARNING
    assert not {"straggler-compute", "straggler-transient"} & found.keys()


def test_work_that_no_data_makes_uneven() -> None:
    by_phase = uncounted(uneven(), phases=("forward",))
    lasting = uncounted(np.repeat(uneven()[::10], 10, axis=0))
    waited = uncounted(uneven())
    for rank in waited.ranks:
        rank.steps["cpu_s"][:] = 0.02
    for case in (by_phase, lasting, waited):
        assert [found.code for found in diagnose_warnings(case)] == []


def test_what_ranks_compile_now_and_then_is_no_uneven_data() -> None:
    load = np.ones((150, 4))
    load[5::6] = np.random.default_rng(1).uniform(2, 8, (25, 4))
    case = uncounted(load)
    compiling = tuple(Event("recompile", 0.0, step, 0.05, 1.0, "") for step in range(5, 150, 6))
    compiled = replace(case, ranks=tuple(replace(rank, events=compiling) for rank in case.ranks))
    for job, is_uneven in ((case, True), (compiled, False)):
        loads = measure(job).loads
        assert loads is not None
        assert (loads.work is not None) is is_uneven


def test_unequal_data_that_cost_as_much_as_the_limit_are_reported() -> None:
    load = np.full((120, 4), 32.0)
    load[:, 1] = 64
    lengths = np.random.default_rng(1).integers(200, 1000, (150, 4)).astype(float)
    for case, limit in (
        (case_of(load, "samples"), "cost"),
        (case_of(lengths, "tokens"), "cost"),
        (uncounted(uneven()), "spread"),
        (uncounted(uneven()), "warned"),
    ):
        (finding,) = diagnose_warnings(case)
        cost = finding.cost.step_fraction
        assert equal_counts_as(case, "imbalance-data", limit, cost) == "more"
