"""Roles of ranks, pipeline stages, and blame for the rank where the slowness begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.steps.step_alignment import join
from mgpu_doctor.analysis.steps.work_and_wait import attribute
from mgpu_doctor.analysis.structure.job_structure import structure_of
from mgpu_doctor.analysis.structure.pipeline_stages import pipeline_seconds
from mgpu_doctor.case.model import Rank
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.pipelines import Pipeline, pipeline_case, step_of_pairs
from tests.support.synthetic import Fault, Synthetic, make_case, make_rank, synthetic_case

NOTHING = np.zeros(0, dtype=STEP_DTYPE)


def ranks_of(sends: dict[int, list[int]], **facts: Any) -> list[Rank]:
    """Ranks that know only to whom they send."""
    return [
        make_rank(number, NOTHING, birth={"sends_to": send, **facts})
        for number, send in sends.items()
    ]


@pytest.mark.parametrize(
    ("sends", "stages"),
    [
        ({0: [1], 1: [0]}, ((0,), (1,))),
        ({0: [1], 1: [0, 2], 2: [1, 3], 3: [2]}, ((0,), (1,), (2,), (3,))),
        ({0: [2], 2: [0, 1], 1: [2, 3], 3: [1]}, ((0,), (2,), (1,), (3,))),
        ({0: [1], 1: [0], 2: [3], 3: [2]}, ((0, 2), (1, 3))),
        ({0: [2], 1: [3], 2: [0], 3: [1]}, ((0, 1), (2, 3))),
        ({0: [1, 3], 1: [0, 2], 2: [1, 3], 3: [0, 2]}, ((0,), (1,), (2,), (3,))),
    ],
    ids=["two", "four", "in another order", "two chains", "crossed chains", "looped"],
)
def test_a_chain_of_neighbours_is_a_pipeline(
    sends: dict[int, list[int]], stages: tuple[tuple[int, ...], ...]
) -> None:
    assert structure_of(ranks_of(sends)).stages == stages


@pytest.mark.parametrize(
    "sends",
    [
        {},
        {0: [], 1: []},
        {0: [1], 1: []},
        {0: [1], 1: [2], 2: [0]},
        {0: [1, 2, 3], 1: [0], 2: [0], 3: [0]},
        {0: [1], 1: [0], 2: [], 3: []},
        {0: [1], 1: [0], 2: [3], 3: [2, 4], 4: [3]},
    ],
    ids=["nobody", "no messages", "one way", "ring attention", "server", "two of four", "uneven"],
)
def test_other_messages_are_no_pipeline(sends: dict[int, list[int]]) -> None:
    assert structure_of(ranks_of(sends)).alike


def test_one_side_tells_enough() -> None:
    ranks = [
        make_rank(0, NOTHING, birth={"sends_to": [1], "receives_from": [1]}),
        make_rank(1, NOTHING),
    ]
    assert structure_of(ranks).roles == {0: 0, 1: 1}


@pytest.mark.parametrize("facts", [{"ddp": {}}, {"strategy": "ddp"}, {"strategy": "fsdp+tensor"}])
def test_ranks_that_average_their_gradients_are_alike(facts: dict[str, Any]) -> None:
    assert structure_of(ranks_of({0: [1], 1: [0]}, **facts)).alike
    assert structure_of(ranks_of({0: [1], 1: [0], 2: [3], 3: [2]}, **facts)).stages
    assert structure_of(ranks_of({0: [1], 1: [0]}, **{**facts, "strategy": "ddp+pipeline"})).stages


def trained(passes: int) -> Any:
    records = np.zeros(30, dtype=STEP_DTYPE)
    records["micro_batches"] = passes
    return records


@pytest.mark.parametrize(("server", "workers"), [(0, [1]), (0, [1, 2])])
def test_a_parameter_server_is_no_stage(server: int, workers: list[int]) -> None:
    births = {
        server: {"sends_to": workers},
        **{worker: {"sends_to": [server]} for worker in workers},
    }
    ranks = [
        make_rank(one, trained(int(one in workers)), birth=metadata)
        for one, metadata in births.items()
    ]
    assert structure_of(ranks).alike
    same = [make_rank(one, trained(1), birth=metadata) for one, metadata in births.items()]
    assert not structure_of(same).alike


@pytest.mark.parametrize(
    ("schedule", "held", "passes"),
    [
        ("Schedule1F1B", [0], 4),
        ("ScheduleInterleaved1F1B", [0, 2], 8),
        ("ScheduleZBVZeroBubble", [0, 3], np.inf),
    ],
)
def test_micro_batches_are_those_of_the_schedule_whatever_runs_backward(
    schedule: str, held: list[int], passes: float
) -> None:
    told = {"schedule": schedule, "micro_batches": 4, "held": held}
    births = [{"sends_to": [1 - rank], "pipeline": told} for rank in range(2)]
    ranks = [make_rank(rank, trained(37), birth=births[rank]) for rank in range(2)]
    structure = structure_of(ranks)
    assert (structure.micro_batches, structure.passes) == (4, passes)


def test_a_stage_that_a_rank_knows_of_itself_decides() -> None:
    ranks = [make_rank(number, NOTHING, stage=number // 2) for number in range(4)]
    assert structure_of(ranks).stages == ((0, 1), (2, 3))


def test_births_of_strangers_are_bounded() -> None:
    wild: dict[str, Any] = {"sends_to": "everybody", "receives_from": [None, -1, "1", {}]}
    wild |= {"optimizers": 7, "pipeline": {"held": "all", "micro_batches": -1, "schedule": 3}}
    assert structure_of([make_rank(0, NOTHING, birth=wild), make_rank(1, NOTHING)]).alike


def test_a_pipeline_takes_what_its_formula_says() -> None:
    equal = np.full((3, 4), 0.012)
    assert pipeline_seconds(equal, 8) == pytest.approx((8 + 4 - 1) * 0.012 / 8)
    assert pipeline_seconds(np.array([[0.01, 0.02]]), 1) == pytest.approx(0.03)
    # Without a bubble only the slowest counts.
    assert pipeline_seconds(np.array([[0.01, 0.02]]), np.inf) == pytest.approx(0.02)


@pytest.mark.parametrize("forward", [(0.004,) * 4, (0.004, 0.009, 0.004, 0.004), (0.002, 0.004)])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_the_gain_of_equal_stages_is_that_of_a_run_with_them(
    forward: tuple[float, ...], micro_batches: int
) -> None:
    equal = (sum(forward) / len(forward),) * len(forward)
    was = measure(pipeline_case(Pipeline(forward, micro_batches)))
    then = measure(pipeline_case(Pipeline(equal, micro_batches)))
    assert was.stages is not None
    assert was.stages.saved is not None
    assert was.step_seconds is not None
    assert then.step_seconds is not None
    measured = 1 - then.step_seconds / was.step_seconds
    assert was.stages.saved == pytest.approx(measured, abs=0.03)


def test_more_micro_batches_gain_what_a_run_with_them_does() -> None:
    was, then = (measure(pipeline_case(Pipeline(micro_batches=m))) for m in (2, 4))
    assert was.stages is not None
    assert was.stages.saved_by_more is not None
    assert was.step_seconds is not None
    assert then.step_seconds is not None
    measured = 1 - then.step_seconds / was.step_seconds
    assert was.stages.saved_by_more == pytest.approx(measured, abs=0.02)
    assert was.stages.bubble_of_equal == pytest.approx(3 / 5)
    assert was.stages.bubble == pytest.approx(3 / 5, abs=0.03)


def test_a_stage_that_was_slow_for_a_while_is_none() -> None:
    for faults in ([Fault(1, "forward", 20, stop=70)], [Fault(1, "forward", 20, start=50)]):
        stages = measure(pipeline_case(Pipeline((0.004, 0.004), faults=faults))).stages
        assert stages is not None
        assert (stages.slowest, stages.steady) == (1, False)


def test_where_all_do_the_same_there_are_no_stages() -> None:
    assert measure(synthetic_case(Synthetic())).stages is None


def test_in_a_pipeline_nothing_is_called_moving_data() -> None:
    assert measure(pipeline_case(Pipeline())).moving is None


@pytest.mark.parametrize("seed", range(5))
def test_blame_by_arrival_names_a_victim_and_own_work_the_one_who_is_slow(seed: int) -> None:
    random = np.random.default_rng(seed)
    layers, steps, slow = 3, 130, 3
    records = [np.zeros(steps, dtype=STEP_DTYPE) for _ in range(4)]
    last_of_pair = []
    for step in range(steps):
        work = 0.004 * (1 + 0.03 * random.standard_normal((4, layers)))
        work[slow, 1] += 0.005
        made = step_of_pairs(work)
        last_of_pair.append((made.arrived[2] > made.arrived[0], made.waited[2] > made.waited[3]))
        for rank, record in enumerate(records):
            record[step]["step"] = step
            record[step]["seq"] = step + 1
            record[step]["phases"][PHASES.index("forward")] = made.own[rank]
            record[step]["phases"][PHASES.index("wait")] = made.waited[rank]
            record[step]["wall_ns"] = (made.own[rank] + made.waited[rank]) * 1e9
            record[step]["micro_batches"] = 1
    # In its data parallel group rank 2, a victim of rank 3, is last at every step.
    assert np.mean(last_of_pair, axis=0).tolist() == [1.0, 1.0]
    ranks = [make_rank(number, steps) for number, steps in enumerate(records)]
    measures = measure(make_case(ranks))
    assert measures.stragglers is not None
    assert [straggler.rank for straggler in measures.stragglers] == [slow]


def test_among_several_pipelines_a_rank_is_compared_with_its_stage() -> None:
    # Stage 1 works three times as long as the others; rank 4 (stage 0 of the second) is slower.
    job = Pipeline((0.004, 0.012, 0.004, 0.004), replicas=2)
    assert measure(pipeline_case(job)).stragglers == ()
    slow = Pipeline((0.012, 0.004, 0.004, 0.004), replicas=2, faults=[Fault(4, "backward", 6)])
    measures = measure(pipeline_case(slow))
    assert measures.stragglers is not None
    (straggler,) = measures.stragglers
    assert straggler.rank == 4
    assert straggler.since is None
    assert straggler.excess == pytest.approx(0.006, rel=0.1)


def test_a_slow_rank_in_a_stage_with_slack_costs_nothing() -> None:
    job = Pipeline((0.004, 0.016), 8, replicas=2, faults=[Fault(2, "backward", 4)])
    without = measure(pipeline_case(Pipeline((0.004, 0.016), 8, replicas=2)))
    measures = measure(pipeline_case(job))
    assert measures.step_seconds is not None
    assert without.step_seconds is not None
    saved = [one.saved for one in measures.stragglers or ()]
    assert sum(saved) == pytest.approx(1 - without.step_seconds / measures.step_seconds, abs=0.01)


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "other"])
@pytest.mark.parametrize("stages", [2, 4])
def test_a_stage_that_became_slower_is_a_straggler_since_then(phase: str, stages: int) -> None:
    forward = (0.004, 0.006, 0.004, 0.005)[:stages]
    job = Pipeline(forward, faults=[Fault(0, phase, 12, start=60)])
    measures = measure(pipeline_case(job))
    assert measures.stragglers is not None
    (straggler,) = measures.stragglers
    assert straggler.rank == 0
    assert straggler.since is not None
    assert abs(straggler.since - 60) <= 3
    assert straggler.own - straggler.own_of_others == pytest.approx(0.012, rel=0.1)
    assert max(straggler.by_phase, key=lambda name: straggler.by_phase[name] or 0) == phase


def test_a_stage_that_became_faster_makes_nobody_a_straggler() -> None:
    for stages in (2, 4):
        job = Pipeline((0.005,) * stages, faults=[Fault(0, "forward", 10, stop=60)])
        assert measure(pipeline_case(job)).stragglers == ()


def test_what_the_model_saves_is_what_a_mended_run_takes() -> None:
    for phase in ("forward", "backward"):
        fault = [Fault(1, phase, 10, start=40)]
        measures = measure(pipeline_case(Pipeline(steps=200, faults=fault)))
        mended = measure(pipeline_case(Pipeline(steps=200)))
        assert measures.stragglers is not None
        assert mended.step_seconds is not None
        (straggler,) = measures.stragglers
        predicted = straggler.step_seconds * (1 - straggler.saved)
        assert predicted == pytest.approx(mended.step_seconds, rel=0.05)


def test_time_outside_of_the_stages_work_is_compared_with_all() -> None:
    job = Pipeline((0.004, 0.004, 0.005, 0.004), faults=[Fault(2, "other", 10)])
    measures = measure(pipeline_case(job))
    assert measures.stragglers is not None
    (straggler,) = measures.stragglers
    assert (straggler.rank, straggler.since) == (2, None)


def test_optimizers_are_compared_where_the_stages_are_equally_large() -> None:
    fault = [Fault(2, "optimizer", 10)]
    for parameters, named in (((), 0), ((9, 9, 30, 9), 0), ((90, 90, 91, 90), 1)):
        job = Pipeline(parameters=parameters, faults=fault)
        assert len(measure(pipeline_case(job)).stragglers or ()) == named


def test_joining_by_step_number_stands_where_pipelines_count_differently() -> None:
    case = pipeline_case(Pipeline())
    joined = join(case.ranks)
    assert joined.joined_by == "step number"
    assert attribute(joined).steps == len(joined.steps)
