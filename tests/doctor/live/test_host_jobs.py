"""Frames of jobs on several hosts: whose ranks they show, and what a silent host changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mgpu_doctor.case.job_snapshots import PIDS
from mgpu_doctor.cluster.engine import Trouble
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_channel import HostState, Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.live.frame_source import FrameOptions
from mgpu_doctor.live.host_jobs import HostJobs
from mgpu_doctor.live.job_watch import Watch
from mgpu_doctor.live.rank_stacks import RankStacks
from mgpu_doctor.live.seen_job import Seen
from mgpu_doctor.live.watch_process import WatchProcess
from mgpu_doctor.tui.screens.rank_screen import read_stacks_from
from tests.support.gathered_hosts import HOSTS, Hosts
from tests.support.node_ranks import ShellEngine, node_rank

AT = 1_800_000_000.0
LIVE = HostState("", None, Link.LIVE, 0.1, None, 0, 0.0)
HERE = FrameOptions(more=False)
"""Jobs are examined in this process."""


class Still(Fleet):
    """Hosts that send nothing more."""

    def __init__(self, sent: Hosts) -> None:
        super().__init__((), ShellEngine())
        self.sent = sent
        self.known = [replace(LIVE, name=host, node=host) for host in HOSTS]

    @property
    def jobs(self) -> tuple[GatheredJob, ...]:
        return tuple(self.sent.jobs.values())

    def states(self) -> tuple[HostState, ...]:
        return tuple(self.known)

    def poll(self, seconds: float) -> None:
        time.sleep(seconds)

    def take_snapshot(
        self, job: GatheredJob, seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> bool:
        """One of each host, of which rank 0 alone has a stack."""
        del seconds, is_over
        for rank, host in enumerate(HOSTS):
            process = {"pid": 4711, "role": "rank", "rank": rank}
            frames = [["forward", "model.py", 7]]
            stack = {"pid": 4711, "at": AT, "threads": [{"main": True, "frames": frames}]}
            job.add_snapshot(host, {"at": AT, "processes": [process], "stacks": [stack][rank:]})
        return job.join_snapshots()


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return Hosts(tmp_path / "boxes", monkeypatch)


@pytest.fixture
def source(sent: Hosts) -> Iterator[HostJobs]:
    jobs = HostJobs(Still(sent), wanted=HERE)
    yield jobs
    jobs.close()


def fleet_of(source: HostJobs) -> Still:
    assert isinstance(source._fleet, Still)
    return source._fleet


def test_before_there_is_a_job_the_reasons_are_shown(source: HostJobs) -> None:
    fleet = fleet_of(source)
    trouble = Trouble("ssh fails with 'Connection refused'", "check the port")
    fleet.known[1] = HostState("node-b", None, Link.BROKEN, None, trouble, 0, 0.0)
    frame = source.frame(0)
    assert frame.diagnosis is None
    assert frame.source == "live: 1 of 2 hosts; node-b: ssh fails with 'Connection refused'"
    assert frame.hint is not None
    hint = " ".join(frame.hint.split())
    assert "no training job with black boxes runs on node-a: start it on each host" in hint
    assert "host node-b: ssh fails with 'Connection refused': check the port." in hint


def test_the_ranks_of_all_hosts_are_one_job(sent: Hosts, source: HostJobs) -> None:
    sent.send(0)
    sent.send(1)
    frame = source.frame(0)
    assert frame.diagnosis is not None
    assert [(rank.rank, rank.host) for rank in frame.diagnosis.ranks] == [*enumerate(HOSTS)]
    assert frame.source == "live: 2 of 2 hosts"
    assert frame.others == 0


@pytest.mark.parametrize("alone", [True, False])
def test_stacks_are_taken_on_all_hosts(sent: Hosts, source: HostJobs, alone: bool) -> None:
    sent.send(0)
    sent.send(1)
    frame = source.frame(0)
    assert frame.diagnosis is not None
    read = read_stacks_from(source)
    first, second = (read(frame, rank, alone, print) for rank in frame.diagnosis.ranks)
    assert isinstance(first, RankStacks)
    assert isinstance(second, RankStacks)
    assert [stacks.snapshot.at for stacks in (first, second)] == [AT, AT]
    if alone:
        assert (first.pid, second.pid) == (4711, 4711 + PIDS)
        assert first.snapshot.stack(4711) is not None
        assert first.snapshot.stack(4711 + PIDS) is None
    else:
        (forward,) = (branch for branch in first.tree if branch.calls)
        assert (forward.ranks, forward.calls) == ((0,), ("forward model.py:7",))


def test_a_real_agent_sends_the_stacks_of_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    with node_rank(tmp_path / "boxes", port=4244) as rank:
        rank.write(50)
        jobs = HostJobs(Fleet(["here"], ShellEngine(), 0.1), wanted=HERE, patient=True)
        pid = rank.process.pid
        try:
            for _ in range(16):  # other jobs of this machine are found, too
                frame = jobs.frame(0)
                if frame.diagnosis and pid in [one.pid for one in frame.diagnosis.ranks]:
                    break
                jobs.next_job()
            case = jobs.take_stacks()
        finally:
            jobs.close()
    assert case is not None
    assert [process.pid for process in case.job_snapshots[-1].ranks] == [pid]


def test_without_a_job_there_are_no_stacks(source: HostJobs) -> None:
    assert source.take_stacks() is None


def test_the_next_job(sent: Hosts, source: HostJobs) -> None:
    sent.send(0)
    sent.send(1, rendezvous=["torch", "run-2", "node-a"])
    shown = []
    for _ in range(3):
        frame = source.frame(0)
        assert frame.diagnosis is not None
        shown.append([rank.host for rank in frame.diagnosis.ranks])
        assert frame.others == 1
        source.next_job()
    assert shown == [["node-a"], ["node-b"], ["node-a"]]


def test_a_silent_host_is_shown_with_its_age_and_judged_no_more(
    sent: Hosts, source: HostJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []
    poll = Watch.poll

    def watched(watch: Watch, *, anew: bool = False, judging: bool = True) -> Seen:
        judged.append(judging)
        return poll(watch, anew=anew, judging=judging)

    monkeypatch.setattr(Watch, "poll", watched)
    sent.send(0)
    sent.send(1)
    source.frame(0)
    fleet = fleet_of(source)
    fleet.known[1] = replace(fleet.known[1], age=42.0)
    frame = source.frame(0)
    assert frame.source == "live: 1 of 2 hosts; node-b: silent for 42 s"
    assert frame.ranks_age == 42.0
    assert frame.diagnosis is not None
    assert [rank.host for rank in frame.diagnosis.ranks] == list(HOSTS)
    fleet.known[1] = replace(fleet.known[1], age=0.1)
    assert source.frame(0).source == "live: 2 of 2 hosts"
    assert judged == [True, False, True]


def test_a_step_that_is_further_than_all_is_announced(sent: Hosts, source: HostJobs) -> None:
    sent.send(0)
    source.frame(0)
    announced = threading.Event()
    source.announce_steps(announced.set)
    assert announced.wait(10)
    announced.clear()
    (job,) = sent.jobs.values()
    assert job.newest_record == 30
    sent.send(1)
    assert job.newest_record == 30
    assert not announced.wait(1), "the other rank is no further"
    job.newest_record = 31
    assert announced.wait(10)


def test_a_process_examines_the_job_and_nothing_is_drawn_anew_without_news(
    sent: Hosts, source: HostJobs
) -> None:
    sent.send(0)
    sent.send(1, rendezvous=["torch", "run-2", "node-a"])
    here = source.frame(0)
    jobs = HostJobs(Still(sent))
    try:
        first, second = jobs.frame(0), jobs.frame(0)
        assert isinstance(jobs._watch, WatchProcess)
        assert here.diagnosis is not None
        assert first.diagnosis is not None
        assert first.diagnosis.ranks == here.diagnosis.ranks
        assert first.diagnosis.findings == here.diagnosis.findings
        assert second.diagnosis is first.diagnosis
        assert second.map is first.map
        assert second.elsewhere is first.elsewhere
        jobs.next_job()
        other = jobs.frame(0).diagnosis
        assert other is not None
        assert [rank.host for rank in other.ranks] == ["node-b"]
    finally:
        jobs.close()
