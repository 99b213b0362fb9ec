"""What several hosts send becomes ordinary recordings: one per job, whose ranks know their host."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from mgpu_probes.outside.node.channel_frames import pack_frame

from mgpu_doctor.case.job_snapshots import PIDS
from mgpu_doctor.case.model import AskedHost, Outcome, State, Unexamined
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.recording.live_recordings import is_living
from tests.support.gathered_hosts import HOSTS, Hosts
from tests.support.host_frames import NOW, hello, receive


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return Hosts(tmp_path / "boxes", monkeypatch)


def gone(pid: int = 4711, signal: int | None = None) -> bytes:
    ticks = 0  # unknown: then the pid alone counts
    line = {"pid": pid, "start_ticks": ticks, "exit_code": None, "signal": signal}
    return pack_frame("exit", job=0, line={**line, "at": NOW, "how": "gone"})


def part(name: str, body: bytes, at: int = 0) -> bytes:
    return pack_frame("file", body, job=0, name=name, mark="1", at=at)


def test_one_job_on_two_hosts_is_one_recording(hosts: Hosts) -> None:
    hosts.send(0)
    hosts.send(1)
    case = hosts.case
    assert [(rank.rank, rank.host, rank.pid) for rank in case.ranks] == [
        (0, "node-a", 4711),
        (1, "node-b", 4711),
    ]
    assert {len(rank.steps) for rank in case.ranks} == {30}
    assert not any(rank.is_here for rank in case.ranks)
    assert case.job.outcome is Outcome.RUNNING
    assert (case.job.hosts, case.job.command) == (HOSTS, ("torchrun", "train.py"))
    assert case.unexamined == ()


def test_jobs_with_another_rendezvous_are_other_jobs(hosts: Hosts) -> None:
    hosts.send(0)
    hosts.send(1, rendezvous=["torch", "run-2", "node-a"])
    assert len(hosts.jobs) == 2


def test_without_a_rendezvous_a_job_has_one_host(hosts: Hosts) -> None:
    hosts.send(0, rendezvous=[])
    hosts.send(1, rendezvous=[])
    assert sorted(hosts.jobs) == [("host", "node-a", "100"), ("host", "node-b", "100")]


def test_a_rank_that_ended_is_the_one_of_its_host(hosts: Hosts) -> None:
    hosts.send(0)
    hosts.send(1, gone(signal=9))
    assert [(rank.state, rank.signal) for rank in hosts.case.ranks] == [
        (State.RUNNING, None),
        (State.DEAD, 9),
    ]


def test_a_job_that_is_over_on_all_hosts_runs_no_more(hosts: Hosts) -> None:
    hosts.send(0, gone(), over=True)
    hosts.send(1)
    (job,) = hosts.jobs.values()
    assert (is_living(job.folder), hosts.case.job.outcome) == (True, Outcome.RUNNING)
    hosts.send(1, gone(), over=True)
    assert (is_living(job.folder), hosts.case.job.outcome) == (False, Outcome.KILLED)


def test_the_end_is_that_of_the_first_host_that_failed(hosts: Hosts) -> None:
    for host, code in enumerate((1, 3)):
        end = {"exit_code": code, "signal": None, "ended": NOW - host, "asked": None}
        recording = pack_frame("recording", job=0, path="/r")
        hosts.send(host, recording, gone(), part("end.json", json.dumps(end).encode()), over=True)
    job = hosts.case.job
    assert (job.outcome, job.exit_code, job.ended) == (Outcome.FAILED, 3, NOW)


def test_a_host_that_comes_back_without_the_job_ended_it(hosts: Hosts) -> None:
    hosts.send(0)
    hosts.send(1)
    for host, mirror in zip(HOSTS, hosts.mirrors, strict=True):
        mirror.make_request(1.0)
        receive(mirror, hello(host), pack_frame("tick", at=NOW, cpu=0.1))
    case = hosts.case
    assert {rank.state for rank in case.ranks} == {State.DEAD}
    assert case.job.outcome is Outcome.KILLED


def test_the_clock_of_a_host_is_put_right(hosts: Hosts) -> None:
    hosts.send(0)
    before = hosts.case.ranks[0].started
    hosts.send(1, ahead=3600.0)
    assert hosts.mirrors[1].offset.corrected == pytest.approx(3600, abs=0.1)
    first, second = (rank.started for rank in hosts.case.ranks)
    assert None not in (before, first, second)
    assert first == before
    assert (first or 0) - (second or 0) == pytest.approx(3600, abs=5)


def test_the_times_that_a_host_recorded_are_put_right_too(hosts: Hosts) -> None:
    info = json.dumps({"command": ["x"], "started": NOW + 3000}, indent=1).encode()
    exit_ = b'{"pid":4711,"start_ticks":0,"exit_code":1,"signal":null,"at":1800003590.0}\n'
    sample = b'{"at": 1800003600.0, "host": "node-b", "cores": 8}\nnot JSON\n'
    recording = pack_frame("recording", job=0, path="/r")
    parts = part("exits.jsonl", exit_), part("host.jsonl", sample), part("recording.json", info)
    hosts.send(0)
    hosts.send(1, recording, *parts, ahead=3600.0)
    case = hosts.case
    assert [end.at for end in case.ends] == [pytest.approx(NOW - 10, abs=1)]
    assert [sample.at for sample in case.host_samples] == [pytest.approx(NOW, abs=1)]
    assert case.job.started == pytest.approx(NOW - 600, abs=1)


def test_a_little_difference_of_clocks_changes_nothing(hosts: Hosts) -> None:
    hosts.send(0, ahead=1.5)
    assert hosts.mirrors[0].offset.corrected == 0.0


def test_a_part_that_does_not_fit_on_the_disk_comes_again_as_a_whole(hosts: Hosts) -> None:
    hosts.send(0, pack_frame("recording", job=0, path="/r"))
    (job,) = hosts.jobs.values()
    path = job.folder / "hosts" / "node-a" / "host.jsonl"
    job.add_part("node-a", "host.jsonl", b"a" * 50, anew=True)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, usual[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            job.add_part("node-a", "host.jsonl", b"b" * 80, anew=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert path.read_bytes() == b"a" * 50
    job.add_part("node-a", "host.jsonl", b"b" * 80, anew=False)
    assert path.read_bytes() == b"a" * 50 + b"b" * 80


def test_what_a_host_recorded_itself(hosts: Hosts) -> None:
    sample = b'{"at": 1800000000.0, "host": "node-b", "cpu_percent": 50.0, "cores": 8}\n'
    info = {"command": ["python", "own.py"], "cwd": "/data", "started": NOW - 60}
    hosts.send(0)
    hosts.send(
        1,
        pack_frame("recording", job=0, path="/home/me/run"),
        part("recording.json", json.dumps(info).encode()),
        part("host.jsonl", sample),
        part("host.jsonl", sample, at=len(sample)),
        part("console/stderr.log", b"torch.OutOfMemoryError: CUDA out of memory.\n"),
    )
    case = hosts.case
    assert (case.job.command, case.job.cwd) == (("python", "own.py"), "/data")
    assert case.job.started == NOW - 60
    assert [(sample.host, sample.cores) for sample in case.host_samples] == [("node-b", 8)] * 2
    assert any("OutOfMemoryError" in line for line in case.console.tail)
    assert [sign.source for sign in case.signs] == ["node-b stderr"]


def test_what_arrived_is_asked_for_no_more(hosts: Hosts) -> None:
    hosts.send(0, pack_frame("recording", job=0, path="/r"), part("console/stdout.log", b"hello\n"))
    request = json.loads(json.dumps(hosts.mirrors[0].make_request(0.5)))
    assert request["every"] == 0.5
    (job,) = hosts.jobs.values()
    cursors = {"steps": 30, "events": 0, "device": 0}
    path = f"/r/{hosts.boxes[0].name}"
    assert list(request["boxes"].values()) == [[path, job.folder.name, cursors]]
    assert request["files"] == {"/r": {"console/stdout.log": ["1", 6]}}


def test_the_recording_says_which_hosts_were_asked_and_which_are_not_seen(hosts: Hosts) -> None:
    hosts.send(0)
    (job,) = hosts.jobs.values()
    asked = AskedHost("a", "node-a"), AskedHost("c", None, "it is off", "switch it on")
    job.note_hosts(asked)
    assert hosts.case.asked_hosts == asked
    assert hosts.case.unexamined == (Unexamined("host c", "it is off", "switch it on"),)
    info = json.loads((job.folder / "recording.json").read_bytes())
    hostile = [{"name": 7}, None, {"name": "\x1b[31md", "node": [], "trouble": {}}, {}]
    (job.folder / "recording.json").write_text(json.dumps(info | {"asked_hosts": hostile}))
    again = load_recording(job.folder)
    assert again.asked_hosts == (AskedHost("d", None, None),)


def test_snapshots_of_all_hosts_stay_as_they_are_wherever_they_were_written(hosts: Hosts) -> None:
    """Each is written below the host that answered first."""
    hosts.send(0)
    hosts.send(1)
    (job,) = hosts.jobs.values()
    for at, order in ((NOW + 1, HOSTS), (NOW, HOSTS[::-1])):
        for host in order:
            process = {"pid": 4711, "role": "rank", "rank": HOSTS.index(host)}
            line = {"at": at, "processes": [process], "stacks": []}
            job.add_snapshot(host, line)
        assert job.join_snapshots()
    found = hosts.case.job_snapshots
    assert [snapshot.at for snapshot in found] == [NOW, NOW + 1]
    for snapshot in found:
        pids = {process.rank: process.pid for process in snapshot.processes}
        assert pids == {rank.rank: rank.stack_pid for rank in hosts.case.ranks}
        assert pids == {0: 4711, 1: 4711 + PIDS}
