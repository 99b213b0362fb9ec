"""What the probe records of communication: calls, peers, groups, DDP's log, compilations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.process_metadata import Ddp
from tests.support.jobs_in_turn import Job, job
from tests.support.observed_jobs import Observed, median_phases, plan

pytestmark = pytest.mark.slow

STEPS = ("--steps", "60")
LATE = [
    ("fsdp2", "forward", "fsdp", "reduce_scatter_single"),
    ("fsdp2", "backward", "fsdp", "reduce_scatter_single"),
    ("tensor_parallel", "backward", "tensor", "wait_tensor"),
    ("pipeline_1f1b", "forward", "pipeline", "irecv"),
]
HEALTHY = {"pipeline_sendrecv": 4, "pipeline_1f1b": 4, "hybrid": 4, "plain_ddp": 4, "accumulate": 2}


def slow_job(script: str, place: str) -> Job:
    """As in `test_parallel_structures`, which examines the same jobs."""
    return job(script, "--steps", "40", "--fault", place, "--rank", "1", "--ms", "60")


BETWEEN = slow_job("fsdp2", "between")
plan(
    *(slow_job(script, place) for script, place, _, _ in LATE),
    BETWEEN,
    *(job(script, *STEPS, ranks=ranks) for script, ranks in HEALTHY.items()),
)


def told(rank: Rank) -> Ddp:
    found = rank.metadata.ddp
    assert found is not None
    return found


def counts(rank: Rank) -> dict[str, int]:
    """Calls by name."""
    found: dict[str, int] = {}
    for one in rank.metadata.calls:
        found[one.name] = found.get(one.name, 0) + one.count
    return found


def strategy(case: Case) -> Any:
    (one,) = {rank.metadata.strategy for rank in case.ranks}
    return one


SLEPT = 0.060


@pytest.mark.parametrize(("script", "place", "kind", "call"), LATE)
def test_who_is_late_hardly_waits(
    script: str, place: str, kind: str, call: str, observed: Observed
) -> None:
    case = observed.case_of(slow_job(script, place))
    assert strategy(case) == kind
    victim, culprit = map(median_phases, case.ranks)
    # Stages of a pipeline do not work alike, which shows on a slow machine.
    unlike = 0.020 if kind == "pipeline" else 0.0
    assert -0.015 <= culprit[place] - victim[place] - SLEPT <= 0.015 + unlike
    assert -0.020 <= victim["wait"] - culprit["wait"] - SLEPT <= 0.020 + unlike
    for rank in case.ranks:
        explained = np.nansum(rank.steps["phases"], axis=1)
        assert explained == pytest.approx(rank.steps["wall_ns"] / 1e9, rel=1e-4)
        assert counts(rank)[call] >= 40
        stood = sum(one.seconds for one in rank.metadata.calls)
        assert stood > 0.8 * float(np.nansum(rank.steps["phases"][:, PHASES.index("wait")]))


def test_between_the_steps_of_a_sharded_model_is_no_forward_pass(observed: Observed) -> None:
    victim, culprit = map(median_phases, observed.case_of(BETWEEN).ranks)
    assert culprit["other"] - victim["other"] == pytest.approx(SLEPT, abs=0.015)
    assert abs(culprit["forward"] - victim["forward"]) < 0.015


NEXT_TO = [(1,), (0, 2), (1, 3), (2,)]
"""The neighbours of each of four stages."""


def test_sends_and_receives_name_their_peers(observed: Observed) -> None:
    case = observed.case("pipeline_sendrecv", *STEPS, ranks=HEALTHY["pipeline_sendrecv"])
    assert [rank.metadata.sends_to for rank in case.ranks] == NEXT_TO
    assert [rank.metadata.receives_from for rank in case.ranks] == NEXT_TO
    for rank, peers in zip(case.ranks, NEXT_TO, strict=True):
        many = 120 * len(peers)
        assert counts(rank) == {"send": many, "recv": many}
        assert all("pipeline_sendrecv.py:" in one.site for one in rank.metadata.calls)


def test_batched_ones_too(observed: Observed) -> None:
    case = observed.case("pipeline_1f1b", *STEPS, ranks=HEALTHY["pipeline_1f1b"])
    assert [rank.metadata.sends_to for rank in case.ranks] == NEXT_TO
    assert [rank.metadata.receives_from for rank in case.ranks] == NEXT_TO


def test_groups_of_a_mesh(observed: Observed) -> None:
    case = observed.case("hybrid", *STEPS, ranks=HEALTHY["hybrid"])
    assert strategy(case) == "fsdp+tensor"
    groups = [[group.ranks for group in rank.metadata.groups] for rank in case.ranks]
    assert [one[0] for one in groups] == [None] * 4
    assert sorted(one for one in groups[1] if one) == [(0, 1), (1, 3)]
    assert sorted(one for one in groups[2] if one) == [(0, 2), (2, 3)]


def test_what_ddp_logs_of_itself(observed: Observed) -> None:
    case = observed.case("plain_ddp", *STEPS, ranks=HEALTHY["plain_ddp"])
    for rank in case.ranks:
        found = told(rank)
        assert (found.forwards, found.synced) == (60, 60)
        assert found.parameter_bytes == sum(found.buckets) > 3_000_000
        assert len(found.buckets) == 2
        assert (found.scans, found.unused_bytes, found.comm_hook) == (None, None, None)
        assert found.backward_seconds is not None
        assert found.communication_seconds is not None
        assert found.overlap_seconds is not None
        assert 0 < found.overlap_seconds <= found.communication_seconds
        assert rank.metadata.calls == ()


def test_forwards_under_no_sync_are_counted_apart(observed: Observed) -> None:
    case = observed.case("accumulate", *STEPS, ranks=HEALTHY["accumulate"])
    found = told(case.ranks[0])
    assert found.synced == 60
    assert found.forwards is not None
    assert found.forwards > 120


@pytest.mark.untimed
@pytest.mark.xdist_group("ddp_settings")
@pytest.mark.parametrize("spare", [False, True])
def test_the_search_for_unused_parameters_is_timed(observed: Observed, spare: bool) -> None:
    options = ("--find-unused", *(("--spare", "2") if spare else ("--branches", "1000")))
    found = told(observed.case("ddp_settings", *STEPS, *options).ranks[1])
    assert found.scans == 60
    assert found.scan_seconds is not None
    assert found.scan_seconds > 0
    assert found.graph_varies is spare
