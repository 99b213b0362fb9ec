"""Where ranks are in their code: read now, from a recording, or the reason why it is unknown."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from mgpu_probes.outside import jobs
from mgpu_probes.outside.jobs.running_jobs import JobProcess, RunningJob

from mgpu_doctor.case.placeholders import blank_rank
from mgpu_doctor.case.this_machine import this_host
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.live import rank_stacks
from mgpu_doctor.live.rank_stacks import NOT_RECORDED, RankStacks, read_rank_stacks
from tests.support import diagnoses, job_snapshots

RANKS = 40
SEEN = job_snapshots.snapshot_series({2: job_snapshots.LOCKED}, ranks=RANKS).snapshots()[0]
RECORDED = job_snapshots.case([SEEN])
HERE = [blank_rank(rank=n, pid=1000 + n, host=this_host(), is_here=True) for n in range(RANKS)]
CASE = replace(RECORDED, job_snapshots=(), ranks=(*HERE, replace(HERE[2], pid=(1 << 22) + 7)))


def rank(number: int, **changes: object) -> RankSummary:
    facts = {"host": this_host(), "pid": 1000 + number, "state": "running", **changes}
    return replace(diagnoses.rank(number), **facts)  # type: ignore[arg-type]


def process(number: int, role: str = "rank", pid: int = 0, parent: int = 1) -> JobProcess:
    whose = (pid or 1000 + number, parent, role, "S", number, number, RANKS, "python", ("python",))
    return JobProcess(*whose, 1, 1.0, 0, None, None, None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The pids of each look, at a job that stands as `SEEN`; rank 3 has a data-loader worker."""
    pids: list[list[int]] = []
    everyone = [process(number) for number in range(RANKS)]
    everyone.append(process(3, "loader", 5003, parent=1003))

    def look(job: RunningJob, **_: object) -> dict[str, Any]:
        some = [process.pid for process in job.processes]
        pids.append(some)
        document: dict[str, Any] = json.loads(json.dumps(asdict(SEEN)))
        for part in ("processes", "stacks"):
            document[part] = [one for one in document[part] if one["pid"] in some]
        return document

    found = RunningJob("torchrun", None, RANKS, tuple(everyone))
    monkeypatch.setattr(jobs, "find", lambda _pid: found)
    monkeypatch.setattr(rank_stacks, "take_snapshot", look)
    return pids


def test_of_one_rank_only_it_and_its_loaders_are_read(asked: list[list[int]]) -> None:
    told = read_rank_stacks(CASE, [rank(3)], alone=True)
    assert asked == [[1003, 5003]]
    assert isinstance(told, RankStacks)
    assert told.pid == 1003
    assert told.snapshot.stack(1003) is not None


def test_all_are_read_some_at_a_time_and_merged(asked: list[list[int]]) -> None:
    said: list[str] = []
    told = read_rank_stacks(CASE, [rank(9)], alone=False, tell=said.append)
    assert [len(some) for some in asked] == [17, 16, 8]
    assert said == [f"{done} of 40 ranks read" for done in (0, 16, 32)]
    assert isinstance(told, RankStacks)
    assert told.tree[0].ranks == tuple(range(RANKS))
    assert {branch.ranks for branch in told.tree[1:]} >= {(2,)}


def test_a_replay_shows_what_was_recorded_and_reads_nothing(asked: list[list[int]]) -> None:
    alone = read_rank_stacks(RECORDED, [rank(2)], alone=True, replayed=True)
    assert alone == RankStacks(SEEN, 1002)
    together = read_rank_stacks(RECORDED, [rank(2)], alone=False, replayed=True)
    assert isinstance(together, RankStacks)
    assert together.tree
    assert read_rank_stacks(CASE, [rank(2)], alone=True, replayed=True) == NOT_RECORDED
    assert not asked


def test_why_nothing_can_be_read_is_one_sentence() -> None:
    gone = rank(2, state="dead")
    assert read_rank_stacks(RECORDED, [gone], alone=True) == RankStacks(SEEN, 1002)
    reasons = [
        read_rank_stacks(CASE, [one], alone=True)
        for one in (gone, rank(2, pid=None), rank(2, host="node-z"), rank(2, pid=(1 << 22) + 7))
    ]
    assert reasons == [
        "Its process has ended: there is no stack to read.",
        "There is no process of this rank.",
        "It runs on node-z: read its stacks there, with `mgpu-doctor top`.",
        f"there is no process {(1 << 22) + 7} on this host.",
    ]


def test_a_process_that_a_recording_merely_names_is_not_asked(asked: list[list[int]]) -> None:
    """It may come from a stranger, and name any process of the reader's."""
    strangers = replace(CASE, ranks=tuple(replace(rank, is_here=False) for rank in CASE.ranks))
    for alone in (True, False):
        told = read_rank_stacks(strangers, [rank(2)], alone=alone)
        assert told == "It is not certain that this process is this rank: its stack is not read."
    assert asked == []


def test_all_are_asked_for_though_the_selected_one_has_died(asked: list[list[int]]) -> None:
    told = read_rank_stacks(CASE, [rank(0, state="dead"), rank(1)], alone=False)
    assert isinstance(told, RankStacks)
    assert told.tree
    assert asked
