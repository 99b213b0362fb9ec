"""The map of ranks: how they are grouped, and by how much each is beyond the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Culprit, Diagnosis
from mgpu_doctor.live.frame import HOST
from mgpu_doctor.live.rank_map import LEAST_STEPS, NEWEST_STEPS, RankMap, map_ranks
from mgpu_doctor.live.step_heatmap import Heatmap, make_heatmap
from tests.support import diagnoses, multi_host
from tests.support.metadata import with_metadata
from tests.support.pipelines import Pipeline, pipeline_case
from tests.support.synthetic import Fault, Synthetic, synthetic_case

SLOW = Fault(5, "forward", milliseconds=13.35)
"""Half of the own work of a step."""


def on_hosts(case: Case, each: int) -> Case:
    ranks = tuple(replace(rank, host=f"node-{(rank.rank or 0) // each}") for rank in case.ranks)
    return replace(case, ranks=ranks)


def map_of(case: Case) -> tuple[RankMap, Diagnosis]:
    diagnosis = diagnose(case)
    made = map_ranks(diagnosis, make_heatmap(case, diagnosis.stages))
    assert made is not None
    return made, diagnosis


def names(made: RankMap, by: str) -> dict[str, tuple[int, ...]]:
    return {group.name: group.places for group in made.grouping(by).groups}


def grouped(case: Case, groups: Sequence[Mapping[str, Sequence[int]]]) -> Case:
    """The case, of whose ranks each is in those of these groups that contain it."""

    def joined(rank: Rank) -> Rank:
        mine = [
            {"name": name, "ranks": list(ranks)}
            for named in groups
            for name, ranks in named.items()
            if rank.rank in ranks
        ]
        return with_metadata(rank, groups=[{"name": "default", "ranks": None}, *mine])

    return replace(case, ranks=tuple(map(joined, case.ranks)))


def test_a_slow_rank_stands_out_on_its_host() -> None:
    made, _ = map_of(on_hosts(synthetic_case(Synthetic(8, faults=[SLOW])), 4))
    assert [made.excess[place] for place in (0, 5)] == pytest.approx([0.0, 0.5], abs=0.06)
    first, second = made.grouping(HOST).groups
    assert (first.places, second.places) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert second.excess == made.excess[5]
    assert (first.last, second.last) == (0.0, 1.0)
    assert (first.blamed, second.blamed) == (False, True)
    assert first.own == pytest.approx(0.0267, rel=0.05)
    assert first.wait == pytest.approx(0.0135, rel=0.1)
    assert made.steps == NEWEST_STEPS


def test_only_the_newest_steps_count() -> None:
    over = replace(SLOW, stop=120 - NEWEST_STEPS)
    made, _ = map_of(on_hosts(synthetic_case(Synthetic(8, faults=[over])), 4))
    assert max(value for value in made.excess if value is not None) < 0.06


def test_stages_are_compared_each_by_itself() -> None:
    """The second stage does three times as much, which is no excess."""
    job = Pipeline(forward=(0.004, 0.012), replicas=4, faults=[Fault(5, "forward", factor=2.0)])
    made, diagnosis = map_of(pipeline_case(job))
    assert diagnosis.stages == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert names(made, "stage") == {"stage 0": (0, 2, 4, 6), "stage 1": (1, 3, 5, 7)}
    others = [value for place, value in enumerate(made.excess) if place != 5]
    assert max(abs(value) for value in others if value is not None) < 0.06
    assert made.excess[5] == pytest.approx(1 / 3, abs=0.06)


def test_ranks_of_single_stages_are_compared_with_all() -> None:
    made, diagnosis = map_of(pipeline_case(Pipeline(forward=(0.004, 0.012))))
    assert len(diagnosis.stages) == 2
    assert made.excess[1] is not None
    assert made.excess[1] > 1


def test_process_groups_that_divide_the_ranks_are_groupings() -> None:
    case = synthetic_case(Synthetic(4))
    mesh = {"mesh_tp": (0, 1)}, {"mesh_tp": (2, 3)}, {"mesh_dp": (0, 2)}, {"mesh_dp": (1, 3)}
    some = {"experts": (0, 1)}, {"own": (2, 3)}
    made, _ = map_of(grouped(case, (*mesh, *some)))
    assert [each.by for each in made.groupings] == [
        HOST,
        "tensor-parallel group",
        "data-parallel group",
    ]
    assert names(made, "data-parallel group") == {"ranks 0 and 2": (0, 2), "ranks 1 and 3": (1, 3)}
    assert made.grouping("no longer there").by == HOST


def test_a_rank_with_few_measured_steps_is_not_compared() -> None:
    excess = np.full((4, 30), 0.01)
    excess[2, : 30 - LEAST_STEPS + 1] = np.nan
    excess[3, : 30 - LEAST_STEPS] = np.nan
    made = map_ranks(diagnoses.healthy(), Heatmap((0, 1, 2, 3), np.arange(30), excess))
    assert made is not None
    assert [value is None for value in made.excess] == [False, False, True, False]


def test_without_a_comparison_the_reason_is_kept_and_failures_are_counted() -> None:
    made = map_ranks(diagnoses.hang(), "waits are not seen")
    assert made is not None
    assert made.why == "waits are not seen"
    assert (made.steps, set(made.excess)) == (0, {None})
    (host,) = made.grouping(HOST).groups
    assert host.stopped == sum(rank.state != "waiting" for rank in diagnoses.hang().ranks)
    assert (host.excess, host.last) == (None, None)
    assert map_ranks(diagnoses.no_ranks(), "no steps") is None


def test_a_finding_about_a_host_blames_its_group() -> None:
    found = multi_host.spread_over_hosts(diagnoses.straggler(4, 2), ("a", "b"), 2)
    culprit = replace(found.findings[0], culprits=(Culprit(None, host="a"),))
    made = map_ranks(replace(found, findings=(culprit,)), "no steps")
    assert made is not None
    assert [group.blamed for group in made.grouping(HOST).groups] == [True, False]


def test_where_all_work_alike_nobody_comes_last() -> None:
    diagnosis = diagnose(on_hosts(synthetic_case(Synthetic(4)), 2))
    heat = Heatmap((0, 1, 2, 3), np.arange(20), np.zeros((4, 20)))
    made = map_ranks(diagnosis, heat)
    assert made is not None
    assert [group.last for group in made.grouping(HOST).groups] == [0.0, 0.0]
