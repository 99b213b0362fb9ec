"""The agent as it runs on a host, started by a shell of this machine instead of ssh."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from mgpu_probes.outside import processes

from mgpu_doctor.case.model import State
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.cluster.agent_command import AgentCommand
from mgpu_doctor.cluster.agent_program import TOO_OLD, remote_command
from mgpu_doctor.cluster.engine import Trouble, start_agent
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_channel import SILENCE, HostChannel, Link
from mgpu_doctor.cluster.host_fleet import MOST_OPENING, Fleet
from mgpu_doctor.cluster.openssh import OpenSsh
from mgpu_doctor.recording.box import read_box
from tests.support.host_frames import HostFrames
from tests.support.jobs import until
from tests.support.launching import PATIENCE
from tests.support.node_ranks import NodeRank, ShellEngine, node_rank

EVERY = 0.05


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home for recordings: agents find whatever trains on this machine."""
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[NodeRank]:
    """A rank with 20 steps."""
    with node_rank(tmp_path / "boxes") as started:
        started.write(20)
        yield started


def copies(fleet: Fleet, rank: NodeRank) -> list[tuple[GatheredJob, Path]]:
    """The copies of the rank's box: other jobs of this machine are found too."""
    return [
        (job, path)
        for job in fleet.jobs
        for path in sorted(job.folder.glob(f"hosts/*/boxes/{rank.box.name}"))
    ]


def polled(fleet: Fleet, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Polls until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        fleet.poll(0.05)


def agent_of(fleet: Fleet) -> int:
    hello = fleet._channels[0].mirror.hello
    assert hello is not None
    return hello.pid


def test_ranks_are_found_and_followed(rank: NodeRank) -> None:
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        assert [state.link for state in fleet.states()] == [Link.LIVE]
        ((job, path),) = copies(fleet, rank)
        assert len(read_box(path).steps) == 20
        info = json.loads((job.folder / "recording.json").read_bytes())
        assert (info["kind"], info["job_pid"]) == ("hosts", os.getpid())
        rank.write(7)
        polled(fleet, lambda: len(read_box(path).steps) == 27)
        found = load_recording(job.folder).ranks
        assert [(one.rank, one.pid, one.state) for one in found] == [
            (0, rank.process.pid, State.RUNNING)
        ]
        rank.process.kill()
        rank.process.wait()
        # Not over: this process may count as its launcher.
        polled(fleet, lambda: load_recording(job.folder).ranks[0].state is State.DEAD)
        assert [state.lost for state in fleet.states()] == [0]


def test_its_clock_is_compared_before_boxes_arrive(rank: NodeRank) -> None:
    """Both clocks are this machine's, so the truth is 0."""
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        polled(fleet, lambda: bool(copies(fleet, rank)))
        (state,) = fleet.states()
        assert state.ahead is not None
        assert state.clock_error is not None
        assert abs(state.ahead) <= state.clock_error
        assert state.corrected == 0.0


def test_the_agent_ends_with_its_channel(rank: NodeRank) -> None:
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        agent, child = agent_of(fleet), fleet._commands[0].child
        assert processes.is_alive(agent)
        assert copies(fleet, rank)
    assert child is not None
    assert child.poll() is not None
    until(lambda: not processes.is_alive(agent))


READER = """\
import sys, time
from mgpu_doctor.cluster.host_fleet import MOST_OPENING, Fleet
from tests.support.node_ranks import ShellEngine
fleet = Fleet(["here"], ShellEngine(), 0.05)
fleet.wait_until_read(30)
print(fleet._channels[0].mirror.hello.pid, flush=True)
while True:
    fleet.poll(1)
"""


def test_the_agent_ends_when_its_reader_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"MGPU_DOCTOR_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", READER], env=environment, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        agent = int(reader.stdout.readline())
        assert processes.is_alive(agent)
        reader.kill()
    until(lambda: not processes.is_alive(agent))


def test_after_a_break_it_continues_where_it_was(rank: NodeRank) -> None:
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        ((_, path),) = copies(fleet, rank)
        before = agent_of(fleet)
        os.kill(before, signal.SIGKILL)
        polled(fleet, lambda: fleet.states()[0].link is Link.BROKEN)
        (state,) = fleet.states()
        assert state.trouble is not None
        assert state.trouble.reason.startswith("here ended with -9")
        rank.write(30)
        polled(fleet, lambda: fleet.states()[0].link is Link.LIVE)
        assert agent_of(fleet) != before
        assert len(copies(fleet, rank)) == 1
        assert read_box(path).steps["seq"].tolist() == list(range(1, 51))
        assert fleet.states()[0].lost == 0
        assert fleet.states()[0].trouble is None


def test_a_job_that_ended_during_a_break_is_read_to_its_end(rank: NodeRank) -> None:
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        ((job, _),) = copies(fleet, rank)
        os.kill(agent_of(fleet), signal.SIGKILL)
        rank.write(30)
        rank.process.kill()
        rank.process.wait()
        polled(fleet, lambda: job.over)
        polled(fleet, lambda: fleet.states()[0].link is Link.LIVE)
        assert len(copies(fleet, rank)) == 1
        (found,) = load_recording(job.folder).ranks
        assert (found.state, len(found.steps)) == (State.DEAD, 50)


def test_what_the_ring_overwrote_during_a_break_is_counted(rank: NodeRank) -> None:
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        ((_, path),) = copies(fleet, rank)
        os.kill(agent_of(fleet), signal.SIGKILL)
        polled(fleet, lambda: fleet.states()[0].link is Link.BROKEN)
        assert rank.write(9000) == 9020
        polled(fleet, lambda: fleet.states()[0].link is Link.LIVE)
        capacity = len(read_box(rank.box).steps)
        assert capacity == 8192
        assert read_box(path).steps["seq"].tolist() == list(range(9021 - capacity, 9021))
        assert fleet.states()[0].lost == 9000 - capacity


def test_a_reader_that_starts_again_reads_all_that_the_ring_holds(rank: NodeRank) -> None:
    for more in (30, 10):
        written = rank.write(more)
        with Fleet(["here"], ShellEngine(), EVERY) as fleet:
            fleet.wait_until_read(30)
            ((_, path),) = copies(fleet, rank)
            assert read_box(path).steps["seq"].tolist() == list(range(1, written + 1))
            assert fleet.states()[0].lost == 0


def test_a_full_disk_here_stops_nobody_and_nothing_is_lost(
    rank: NodeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        ((_, path),) = copies(fleet, rank)
        with monkeypatch.context() as full:
            full.setattr("mgpu_doctor.cluster.box_mirror.os.pwrite", refuse)
            assert rank.write(30) == 50
            polled(fleet, lambda: fleet.states()[0].link is Link.BROKEN)
            (state,) = fleet.states()
            assert state.trouble is not None
            assert "cannot be written here: No space left on device" in state.trouble.reason
            assert rank.write(30) == 80
        polled(fleet, lambda: fleet.states()[0].link is Link.LIVE)
        polled(fleet, lambda: len(read_box(path).steps) == 80)
        assert fleet.states()[0].lost == 0


def test_two_jobs_on_one_host_are_two_recordings(rank: NodeRank, tmp_path: Path) -> None:
    with (
        node_rank(tmp_path / "others", port=4243) as other,
        Fleet(["here"], ShellEngine(), EVERY) as fleet,
    ):
        other.write(5)
        fleet.wait_until_read(30)
        polled(fleet, lambda: bool(copies(fleet, other)) and bool(copies(fleet, rank)))
        ((first, path),), ((second, _),) = copies(fleet, rank), copies(fleet, other)
        assert first is not second
        other.process.kill()
        other.process.wait()
        polled(fleet, lambda: load_recording(second.folder).ranks[0].state is State.DEAD)
        rank.write(10)
        polled(fleet, lambda: len(read_box(path).steps) == 30)
        (alive,) = load_recording(first.folder).ranks
        assert (alive.pid, alive.state) == (rank.process.pid, State.RUNNING)


def test_all_ranks_of_a_host_are_killed(rank: NodeRank, tmp_path: Path) -> None:
    with (
        node_rank(tmp_path / "boxes", rank=1) as other,
        Fleet(["here"], ShellEngine(), EVERY) as fleet,
    ):
        fleet.wait_until_read(30)
        polled(fleet, lambda: bool(copies(fleet, other)) and bool(copies(fleet, rank)))
        ((job, _),) = copies(fleet, other)
        for one in (rank, other):
            one.process.kill()
            one.process.wait()

        def ends() -> set[tuple[int | None, State]]:
            return {(one.rank, one.state) for one in load_recording(job.folder).ranks}

        polled(fleet, lambda: ends() == {(0, State.DEAD), (1, State.DEAD)})
        assert fleet.states()[0].lost == 0


def test_a_stopped_reader_makes_only_the_agent_wait(rank: NodeRank) -> None:
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        ((_, path),) = copies(fleet, rank)
        for _ in range(20):
            rank.write(100)  # nobody polls meanwhile
        polled(fleet, lambda: len(read_box(path).steps) == 2020)
        assert fleet.states()[0].lost == 0


def test_stacks_are_read_when_they_are_asked_for(rank: NodeRank) -> None:
    with Fleet(["here"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        ((job, _),) = copies(fleet, rank)
        looks = next(job.folder.glob("hosts/*")) / "looks.jsonl"
        assert not looks.exists()
        assert fleet.take_snapshot(job, 30)
        (snapshot,) = load_recording(job.folder).job_snapshots
        assert [(one.pid, one.rank) for one in snapshot.ranks] == [(rank.process.pid, 0)]


def test_two_names_of_one_host_are_refused(rank: NodeRank) -> None:
    with Fleet(["one", "two"], ShellEngine(), EVERY) as fleet:
        fleet.wait_until_read(30)
        links = sorted((state.link.value, state.trouble) for state in fleet.states())
        assert [link for link, _ in links] == ["broken", "live"]
        trouble = links[0][1]
        assert trouble is not None
        assert trouble.reason in ("it is the same host as one", "it is the same host as two")
        assert len(copies(fleet, rank)) == 1


def opened(fleet: Fleet) -> str:
    """Why the only host cannot be seen."""
    fleet.wait_until_read(30)
    ((trouble),) = (state.trouble for state in fleet.states())
    assert trouble is not None
    return trouble.reason


def test_what_a_login_shell_prints_is_skipped() -> None:
    noisy = ("/bin/sh", "-c", f"echo Welcome to node-a; {remote_command()}")
    with Fleet(["a"], ShellEngine({"a": noisy}), EVERY) as fleet:
        fleet.wait_until_read(30)
        assert [state.link for state in fleet.states()] == [Link.LIVE]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/bin/sh", "-c", "echo no such host >&2; exit 255"), "a ended with 255: no such host"),
        (("/bin/sh", "-c", "yes"), "what it sends is not understood: it prints text instead"),
        (("/nowhere/ssh",), "/nowhere/ssh cannot be started: No such file or directory"),
    ],
)
def test_why_a_host_cannot_be_seen(command: tuple[str, ...], reason: str) -> None:
    with Fleet(["a"], ShellEngine({"a": command}), EVERY) as fleet:
        assert opened(fleet).startswith(reason)
        assert fleet.states()[0].link is Link.BROKEN


def run_with_path(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", remote_command()],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_a_host_without_python(tmp_path: Path) -> None:
    ended = run_with_path(tmp_path)
    assert ended.returncode == 127
    assert OpenSsh().explain("a", 127, ended.stderr).reason == "its shell finds no python3"


def test_a_host_with_an_old_python_says_so_in_one_line(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    old = "import sys; sys.version_info = (3, 8, 10); exec(sys.argv[1])"
    fake.write_text(f'#!/bin/sh\nfor last; do :; done\nexec {sys.executable} -c "{old}" "$last"\n')
    fake.chmod(0o700)
    ended = run_with_path(tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == f"{TOO_OLD % (3, 8)}\n"
    trouble = OpenSsh().explain("a", 1, ended.stderr)
    assert trouble.reason == "it has Python 3.8, and the agent needs 3.10 or newer"


def test_a_newer_python_beside_an_old_one_is_used(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o700)
    newer = tmp_path / "python3.10"
    newer.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    newer.chmod(0o700)
    assert run_with_path(tmp_path).returncode == 0


def test_only_some_hosts_are_connected_to_at_the_same_time() -> None:
    hosts = [f"host{number}" for number in range(MOST_OPENING + 8)]
    slow = ("/bin/sh", "-c", "exec sleep 100")
    bad = ("/bin/sh", "-c", "exit 1")
    commands: dict[str, Sequence[str]] = dict.fromkeys(hosts[4:], slow)
    commands |= dict.fromkeys(hosts[:4], bad)
    with Fleet(hosts, ShellEngine(commands)) as fleet:
        fleet.poll(0.0)
        assert len(fleet._commands) == MOST_OPENING
        assert all(channel.command is None for channel in fleet.channels[MOST_OPENING:])
        end = time.monotonic() + 30
        while fleet.channels[MOST_OPENING + 3].command is None:  # before the bad ones, once more
            assert time.monotonic() < end
            fleet.poll(0.05)
        opened = [channel.host for channel in fleet.channels if channel.command is not None]
        assert opened == hosts[4 : MOST_OPENING + 4]


def test_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    trouble = start_agent(ShellEngine(), "a")
    assert isinstance(trouble, Trouble)
    assert trouble.reason.endswith("cannot be started: Too many open files")
    assert "ulimit -n" in trouble.remedy


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_silent_host_is_given_up_and_a_stopped_reader_is_no_silence() -> None:
    clock = Clock()
    engine = ShellEngine({"a": ("/bin/sleep", "100")})
    channel = HostChannel("a", engine, HostFrames().mirror, 1.0, clock)

    def open_now() -> AgentCommand:
        child = start_agent(engine, "a")
        assert isinstance(child, subprocess.Popen)
        channel.command = AgentCommand(engine, [channel], child, clock)
        return channel.command

    assert channel.is_due()
    command = open_now()
    clock.now += SILENCE - 1
    channel.tend(0.0)
    assert channel.command is command
    clock.now += 1000
    channel.tend(1000.0)
    assert channel.command is command
    clock.now += 2
    channel.tend(0.0)
    assert not channel.is_due()  # not at once
    assert command.child is None
    assert channel.state().link is Link.BROKEN
    clock.now += 1
    assert channel.is_due()
    open_now().close()
