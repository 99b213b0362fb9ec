"""Unequal data: one rank that always has more, changing ranks that have more, and equal data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.analysis.measures import Measures, measure
from mgpu_doctor.analysis.structure.load_imbalance import Loads
from mgpu_doctor.case.model import Case
from tests.support.per_step_jobs import Seconds, case_of_seconds, healthy
from tests.support.pipelines import Pipeline, pipeline_case
from tests.support.seeds import at_most
from tests.support.synthetic import Fault, Synthetic, oversubscribed, synthetic_case

UNITS = ("samples", "tokens")


def loads(case: Case) -> Loads:
    found = measure(case).loads
    assert found is not None
    return found


def loaded(job: Synthetic, load: Seconds, unit: str = "samples", fixed: float = 0.2) -> Case:
    """A job whose compute follows the load, but for a fixed share."""
    work = healthy(job)
    for phase in ("forward", "backward"):
        work[phase] *= fixed + (1 - fixed) * load / load.mean()
    return case_of_seconds(work, fields={unit: load})


def lengths(ranks: int, steps: int, seed: int = 3) -> Seconds:
    return np.random.default_rng(seed).integers(200, 1000, (steps, ranks)).astype(float)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
@pytest.mark.parametrize("times", [1.5, 3.0])
def test_a_rank_with_more_data(times: float, make: type[Synthetic], unit: str, ranks: int) -> None:
    load = np.full((120, ranks), 32.0)
    load[:, 1] *= times
    found = loads(loaded(make(ranks=ranks), load, unit)).uneven
    assert found is not None
    assert (found.ranks, found.unit) == ((1,), unit)
    assert (found.load, found.load_of_others) == (32 * times, 32)
    assert found.explained > 0.9


def test_what_equal_batches_would_save() -> None:
    load = np.full((120, 4), 32.0)
    load[:, 1] *= 2
    measures = measure(loaded(Synthetic(), load))
    assert measures.loads is not None
    found = measures.loads.uneven
    assert found is not None
    now = seconds_of(measures)
    even = load.mean() * np.ones((120, 4))
    small = np.full((120, 4), 32.0)
    assert 1 - found.saved == pytest.approx(of(small, load) / now, rel=0.02)
    assert 1 - found.saved_level == pytest.approx(of(even, load) / now, rel=0.02)


def seconds_of(measures: Measures) -> float:
    assert measures.step_seconds is not None
    return measures.step_seconds


def of(load: Seconds, scale: Seconds) -> float:
    """Seconds a step with this load, where the work a sample is as in the other job."""
    work = healthy(Synthetic(ranks=load.shape[1], steps=len(load)))
    for phase in ("forward", "backward"):
        work[phase] *= 0.2 + 0.8 * load / scale.mean()
    return seconds_of(measure(case_of_seconds(work)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("make", [Synthetic, oversubscribed])
def test_sequences_of_unequal_length(make: type[Synthetic], ranks: int) -> None:
    load = lengths(ranks, 120)
    document = loads(loaded(make(ranks=ranks), load, "tokens"))
    assert document.uneven is None
    assert document.varying is not None
    assert document.varying.unit == "tokens"
    assert document.varying.slowest_has_most > 1.5 / ranks
    assert document.varying.saved > 0.05


def test_what_equal_lengths_would_save() -> None:
    load = lengths(4, 200)
    measures = measure(loaded(Synthetic(steps=200), load, "tokens"))
    assert measures.loads is not None
    assert measures.loads.varying is not None
    even = np.broadcast_to(load.mean(axis=1, keepdims=True), load.shape)
    expected = of(np.array(even), load) / seconds_of(measures)
    assert 1 - measures.loads.varying.saved == pytest.approx(expected, rel=0.02)


def test_long_sequences_now_and_then_are_no_stalls() -> None:
    """What more tokens explain is not told a second time as a rank that stalls."""
    load = np.full((300, 4), 500.0)
    load[30::20, 2] = 8000
    measures = measure(loaded(Synthetic(steps=300), load, "tokens"))
    assert measures.stalls == ()
    assert measures.loads is not None
    assert measures.loads.varying is not None


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slow_rank_with_a_little_more_data_is_slow_for_another_reason(ranks: int) -> None:
    case = synthetic_case(Synthetic(ranks=ranks, faults=[Fault(1, "forward", milliseconds=20)]))
    for rank in case.ranks:
        rank.steps["samples"] = 36 if rank.rank == 1 else 32
    assert loads(case) == Loads()


def test_more_data_that_costs_nothing_is_nobodys_trouble() -> None:
    case = synthetic_case(Synthetic())
    for rank in case.ranks:
        rank.steps["samples"] = 64 if rank.rank == 1 else 32
    assert loads(case) == Loads()


def test_loads_that_are_not_known_explain_nothing() -> None:
    case = synthetic_case(Synthetic(faults=[Fault(1, "forward", milliseconds=20)]))
    assert loads(case) == Loads()


def test_a_smaller_last_batch_on_all_ranks_is_well() -> None:
    load = np.full((200, 4), 32.0)
    load[19::20] = 5
    assert loads(loaded(Synthetic(steps=200), load)) == Loads()


@settings(max_examples=at_most(60), deadline=None, derandomize=True)
@given(
    ranks=st.integers(2, 8),
    steps=st.integers(25, 200),
    noise=st.floats(0.01, 0.3),
    seed=st.integers(0, 10**6),
)
def test_lengths_that_work_does_not_follow(ranks: int, steps: int, noise: float, seed: int) -> None:
    work = healthy(Synthetic(ranks=ranks, steps=steps, noise=noise, seed=seed))
    assert loads(case_of_seconds(work, fields={"tokens": lengths(ranks, steps, seed)})) == Loads()


def quiet(ranks: int = 4, steps: int = 120) -> Synthetic:
    return Synthetic(ranks=ranks, steps=steps, noise=0.001, spikes=0, asymmetry=0)


def slow_with(more: float, excess: float) -> Case:
    """Rank 1 has `more` times the samples of the others and takes longer by this share."""
    work = healthy(quiet())
    for phase in work:
        work[phase][:, 1] *= 1 + excess
    load = np.full((120, 4), 100.0)
    load[:, 1] *= more
    return case_of_seconds(work, fields={"samples": load})


@pytest.mark.parametrize(
    ("more", "excess", "found"),
    [
        (1.06, 0.05, True),
        (1.04, 0.04, False),
        (1.10, 0.19, True),
        (1.10, 0.21, False),
        (1.50, 0.20, True),
    ],
)
def test_from_which_load_and_share_it_explains_a_straggler(
    more: float, excess: float, found: bool
) -> None:
    uneven = loads(slow_with(more, excess)).uneven
    assert (uneven is not None) is found
    if uneven is not None:
        assert (uneven.load, uneven.load_of_others) == pytest.approx((100 * more, 100))
        assert uneven.explained == pytest.approx(min(1.0, (more - 1) / excess), rel=0.03)


@pytest.mark.parametrize(("unknown", "found"), [(11, True), (12, False)])
def test_the_load_of_nine_steps_in_ten_must_be_known(unknown: int, found: bool) -> None:
    case = slow_with(1.5, 0.5)
    for rank in case.ranks:
        rank.steps["samples"][5 : 5 + unknown] = 0
    assert (loads(case).uneven is not None) is found


def test_the_load_counts_from_when_the_rank_became_slow() -> None:
    work = healthy(quiet(steps=240))
    load = np.full((240, 4), 100.0)
    for values in work.values():
        values[120:, 1] *= 1.5
    load[120:, 1] = 150
    uneven = loads(case_of_seconds(work, fields={"samples": load})).uneven
    assert uneven is not None
    assert uneven.load == pytest.approx(150)


def varying(spread: float, follows: float = 1.0, steps: int = 120) -> Case:
    """Loads that differ by this share; of the work, so much follows them, and as much varies by
    itself as makes up the rest of its correlation."""
    random = np.random.default_rng(2)
    apart = random.standard_normal((steps, 4))
    other = random.standard_normal((steps, 4))
    work = healthy(quiet(steps=steps))
    differs = follows * apart + np.sqrt(1 - follows**2) * other
    for phase in ("forward", "backward"):
        work[phase] *= 1 + 0.1 * differs
    return case_of_seconds(work, fields={"tokens": 10_000 * (1 + spread * apart)})


@pytest.mark.parametrize(
    ("spread", "follows", "steps", "found"),
    [
        (0.025, 1.0, 120, True),
        (0.015, 1.0, 120, False),
        (0.1, 0.4, 400, True),
        (0.1, 0.2, 1500, False),
        (0.1, 0.45, 60, True),
        (0.1, 0.35, 30, False),
    ],
)
def test_how_far_loads_must_vary_and_work_must_follow_them(
    spread: float, follows: float, steps: int, found: bool
) -> None:
    varies = loads(varying(spread, follows, steps)).varying
    assert (varies is not None) is found
    if varies is not None:
        assert varies.correlation == pytest.approx(follows, abs=0.1)


@pytest.mark.parametrize(("steps", "found"), [(36, False), (44, True)])
def test_work_that_differs_by_its_data_shows_in_enough_steps(steps: int, found: bool) -> None:
    """The correlation of the passes varies about 0.6: here t is less than six, and then nine."""
    random = np.random.default_rng(4)
    common = random.standard_normal((steps, 2))
    work = healthy(quiet(ranks=2, steps=steps))
    for phase in ("forward", "backward"):
        apart = np.sqrt(0.6) * common + np.sqrt(0.4) * random.standard_normal((steps, 2))
        work[phase] *= 1 + 0.1 * apart
    case = case_of_seconds(work, fields={"cpu_s": np.sum(list(work.values()), axis=0)})
    assert (loads(case).work is not None) is found


# --- pipelines ------------------------------------------------------------------------------


def sizes_of(kind: str, stages: int, replicas: int, steps: int = 150, seed: int = 1) -> Seconds:
    """(T, ranks) sizes of the data: each pipeline has its own, or each stage, or all the same."""
    random = np.random.default_rng(seed)
    count = {"pipelines": replicas, "stages": stages * replicas, "alike": 1}[kind]
    drawn = random.uniform(0.4, 2, (steps, count))
    return np.repeat(drawn, stages * replicas // count, axis=1)


def even(sizes: Seconds, forward: Seconds) -> Seconds:
    """The sizes with which each rank has its share of each step's work."""
    per_step = (sizes * forward).sum(axis=1, keepdims=True) / forward.sum()
    return np.asarray(per_step * np.ones_like(sizes))


@pytest.mark.parametrize(
    ("kind", "stages", "replicas", "micro_batches"),
    [
        ("pipelines", 2, 2, 4),
        ("pipelines", 4, 4, 8),
        ("stages", 2, 1, 4),
        ("stages", 4, 1, 8),
    ],
)
@pytest.mark.parametrize("heavier", [1.0, 1.5])
def test_what_even_work_would_save_in_pipelines(
    kind: str, stages: int, replicas: int, micro_batches: int, heavier: float
) -> None:
    """The same pipelines with even work show it; a stage that is always heavier stays so."""
    forward = [0.004] * stages
    forward[1] *= heavier
    sizes = sizes_of(kind, stages, replicas)
    job = Pipeline(forward, micro_batches, replicas, steps=len(sizes), sizes=sizes)
    work = loads(pipeline_case(job)).work
    assert work is not None
    assert work.in_stages
    levelled = replace(job, sizes=even(sizes, np.array(forward * replicas)))
    then, now = (seconds_of(measure(pipeline_case(each))) for each in (levelled, job))
    assert work.saved == pytest.approx(1 - then / now, rel=0.1, abs=0.012)
    assert work.slowest_most_often < 2 / (stages * replicas)


@pytest.mark.parametrize(
    "job",
    [
        Pipeline((0.004, 0.007), sizes=np.ones((120, 2))),
        Pipeline((0.004, 0.007), sizes=sizes_of("alike", 2, 1, 120)),
        Pipeline((0.004, 0.007), replicas=2, sizes=sizes_of("alike", 2, 2, 120)),
        Pipeline((0.004, 0.004), replicas=2, noise=0.2, sizes=np.ones((120, 4))),
        Pipeline(
            (0.004, 0.004),
            sizes=np.where(np.arange(120)[:, None] < 60, 1.0, [[1.0, 1.6]]),
        ),
    ],
    ids=["a heavier stage", "of one size", "in all pipelines", "noise", "slower from step 60 on"],
)
def test_pipelines_whose_data_is_even(job: Pipeline) -> None:
    assert loads(pipeline_case(job)) == Loads()
