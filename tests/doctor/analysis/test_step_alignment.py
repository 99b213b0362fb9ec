"""Aligning the steps of different ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES, WARM_UP

from mgpu_doctor.analysis.steps.step_alignment import CELLS, UnjoinableError, join
from mgpu_doctor.case.model import Rank, Records
from tests.support.synthetic import Synthetic, make_rank, records


def ranks_of(steps: list[Records]) -> list[Rank]:
    return [make_rank(number, records) for number, records in enumerate(steps)]


def test_steps_are_joined_by_collective_sequence_not_by_local_counters() -> None:
    steps = records(Synthetic(ranks=3))
    steps[1]["step"] += 7  # this rank counted something else before
    joined = join(ranks_of(steps))
    assert joined.joined_by == "collective sequence"
    np.testing.assert_allclose(joined.wall[:, 1], steps[1]["wall_ns"][5:] * 1e-9)


def test_steps_that_share_a_sequence_number_keep_their_order() -> None:
    steps = records(Synthetic(ranks=2))
    for rank_records in steps:
        rank_records["group_seq"] = (
            4 + rank_records["step"] // 4
        )  # one collective every fourth step
    joined = join(ranks_of(steps))
    assert joined.joined_by == "collective sequence"
    assert list(joined.steps) == list(range(5, 120))


def test_point_to_point_counts_that_differ_fall_back_to_step_numbers() -> None:
    steps = records(Synthetic(ranks=2))
    steps[0]["group_seq"] = 8 * (1 + steps[0]["step"])
    steps[1]["group_seq"] = 16 * (1 + steps[1]["step"])
    joined = join(ranks_of(steps))
    assert joined.joined_by == "step number"
    np.testing.assert_allclose(joined.wall[:, 0], steps[0]["wall_ns"][5:] * 1e-9)


def test_without_a_process_group_steps_are_joined_by_number() -> None:
    steps = records(Synthetic(ranks=2))
    for rank_records in steps:
        rank_records["group_seq"] = 0
    assert join(ranks_of(steps)).joined_by == "step number"


@pytest.mark.parametrize(
    ("times", "ahead", "newest", "why"),
    [
        (2, 1, 0, "neither collective sequence numbers nor step counts of the ranks agree"),
        (1, 1000, 0, "the newest 120 steps of the ranks have none in common"),
        (1, 50, 40, "the newest 40 steps of the ranks have none in common"),
    ],
)
def test_ranks_whose_counts_never_meet_are_not_joined(
    times: int, ahead: int, newest: int, why: str
) -> None:
    steps = records(Synthetic(ranks=2))
    for rank_records in steps:
        rank_records["group_seq"] = 0
        rank_records["step"] *= times
    steps[1]["step"] += ahead
    with pytest.raises(UnjoinableError, match=why):
        join(ranks_of(steps), newest=newest)


def test_warm_up_is_left_out() -> None:
    steps = records(Synthetic(ranks=2))
    steps[1]["flags"][:9] |= WARM_UP
    for rank_records in steps:
        rank_records["wall_ns"][12] *= 50  # compiled again, still near the start
    joined = join(ranks_of(steps))
    assert joined.steps[0] == 9
    assert 12 not in joined.steps


@pytest.mark.parametrize(
    ("phases", "kept"),
    [
        pytest.param({0: {"checkpoint": 0.85, "forward": 0.15}}, True, id="a checkpoint"),
        pytest.param({0: {"checkpoint": 0.75, "forward": 0.25}}, False, id="mostly a checkpoint"),
        pytest.param({0: {"evaluation": 0.5, "checkpoint": 0.35}}, True, id="both"),
        pytest.param({0: {"other": 0.9}, 1: {"other": 0.05}}, True, id="other, on one rank"),
        pytest.param({0: {"other": 0.9}, 1: {"other": 0.15}}, False, id="other, on all ranks"),
        pytest.param({0: {"other": 0.9}, 1: {"other": np.nan}}, False, id="other, unknown"),
        pytest.param({0: {"forward": 1.0}}, False, id="forward, on one rank"),
    ],
)
@pytest.mark.parametrize("step", [1, 4, 19])
def test_a_long_step_that_is_no_warm_up_is_kept(
    step: int, phases: dict[int, dict[str, float]], kept: bool
) -> None:
    steps = records(Synthetic(ranks=2))
    for number, rank_records in enumerate(steps):
        rank_records["wall_ns"][step] = 3 * 10**9
        rank_records["phases"][step] = 0.0
        for phase, share in phases.get(number, {"wait": 1.0}).items():
            rank_records["phases"][step, PHASES.index(phase)] = 3 * share
    assert (step in join(ranks_of(steps)).steps) is kept
    steps[1]["flags"][step] |= WARM_UP
    assert step not in join(ranks_of(steps)).steps


@pytest.mark.parametrize(("seconds", "kept"), [(0.16, True), (0.1, False)])
def test_a_short_first_step_is_warm_up_whatever_it_does(seconds: float, kept: bool) -> None:
    steps = records(Synthetic(ranks=2, noise=0.0, spikes=0.0))
    for rank_records in steps:
        rank_records["wall_ns"][3] = seconds * 1e9
        rank_records["phases"][3] = 0.0
    steps[0]["phases"][3, PHASES.index("checkpoint")] = seconds
    assert (3 in join(ranks_of(steps)).steps) is kept


def test_missing_records_and_unequal_lengths() -> None:
    steps = records(Synthetic(ranks=3))
    steps[0] = steps[0][:-11]
    steps[1] = np.delete(steps[1], [40, 41])
    joined = join(ranks_of(steps))
    assert joined.steps[-1] == 108
    assert 40 not in joined.steps
    assert len(joined.steps) == 120 - 11 - 2 - 5


def test_a_rank_that_died_early_is_left_out() -> None:
    steps = records(Synthetic(ranks=3))
    steps[2] = steps[2][:3]
    joined = join(ranks_of(steps), least=10)
    assert joined.ranks == (0, 1)
    assert joined.left_out == (2,)


def test_one_rank_cannot_be_joined() -> None:
    with pytest.raises(UnjoinableError, match="2 are needed"):
        join(ranks_of(records(Synthetic(ranks=1))))


def test_only_warm_up_cannot_be_joined() -> None:
    with pytest.raises(UnjoinableError, match="warm-up"):
        join(ranks_of(records(Synthetic(ranks=2, steps=4))))


def test_end_times_use_each_host_s_clock() -> None:
    steps = records(Synthetic(ranks=2))
    ranks = ranks_of(steps)
    ranks[1] = replace(ranks[1], clock_offset=1e9)
    joined = join(ranks)
    assert np.all(joined.end[:, 1] - joined.end[:, 0] > 0.9e9)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CELLS * 4 <= 40e6  # bytes of one measure
    monkeypatch.setattr("mgpu_doctor.analysis.steps.step_alignment.CELLS", 100)
    assert join(ranks_of(records(Synthetic(ranks=2)))).wall.size <= 100
