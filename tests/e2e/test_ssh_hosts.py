"""A real job over two hosts that a real ssh reaches: live, with faults of hosts and channels."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.case.model import State
from mgpu_doctor.case.profiler_case import case_of_traces
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.cluster.host_channel import HostState, Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.openssh import OpenSsh
from mgpu_doctor.diagnosis import diagnose as examine
from mgpu_doctor.recording.box import Box, read_box
from tests.support.gathered_fleets import STEPS, boxes_of, diagnose_hosts, polled, steps_of
from tests.support.jobs import JOBS, alone, until
from tests.support.ssh_hosts import SshHosts, can_have_namespaces, ssh_hosts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ssh_hosts")]

NAMES = ("node-a", "node-b")
ROOT = Path(__file__).parents[2]
LEAST_DURING = 5
"""Steps of about 0.08 s that a rank takes while something happens to the doctor, for a second or
more: one that waited for the doctor would take none."""
FAULT = ("--fault", "forward", "--rank", "1", "--ms", "60")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Two hosts with one rank each of a job in which rank 1 is slow."""
    if not can_have_namespaces():
        pytest.skip("namespaces with networks of their own need root")
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        stack.enter_context(alone())
        hosts = stack.enter_context(ssh_hosts(folder, *NAMES))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PATH", hosts.environment()["PATH"])
        patch.setenv("MGPU_DOCTOR_HOME", str(folder / "home"))
        for rank, name in enumerate(NAMES):
            script = ("plain_ddp.py", "--steps", "1000000", *FAULT)
            address = hosts.address("node-a")
            command = hosts.command(name, _start_rank(folder / name, rank, address, *script))
            output = stack.enter_context((folder / f"{name}.out").open("wb"))
            stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output))
        stack.callback(hosts.stop)  # the hosts first: the commands above end with them
        with Fleet(NAMES, OpenSsh(), 0.25) as fleet:
            polled(fleet, lambda: steps_of(fleet) == {1: STEPS, 0: STEPS}, 120)
        yield hosts


def _start_rank(recording: Path, rank: int, address: str, script: str, *options: str) -> str:
    """A command line for the shell of a host: a rank of a script of tests/jobs."""
    facts = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
    place = {"MASTER_ADDR": address, "MASTER_PORT": 29500, "GLOO_SOCKET_IFNAME": "eth0"}
    given = [f"{key}={value}" for key, value in (facts | place | {"OMP_NUM_THREADS": 1}).items()]
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    words = [*given, *doctor, sys.executable, str(JOBS / script), *options]
    return f"cd {shlex.quote(str(ROOT))} && exec env {shlex.join(words)}"


def diagnose(*hosts: str) -> tuple[int, dict[str, Any]]:
    return diagnose_hosts("--hosts", ",".join(hosts))


def test_the_slow_rank_is_named_with_its_host(hosts: SshHosts) -> None:
    code, found = diagnose(*NAMES)
    assert code == 1
    assert found["job"]["hosts"] == list(NAMES)
    assert found["job"]["outcome"] == "running"
    assert [(rank["rank"], rank["host"]) for rank in found["ranks"]] == [*enumerate(NAMES)]
    first = found["findings"][0]
    assert first["code"] == "straggler-compute"
    assert [(one["rank"], one["host"]) for one in first["culprits"]] == [(1, "node-b")]
    assert first["victims"] == [0]
    assert [gap for gap in found["unexamined"] if gap["probe"].startswith("host ")] == []
    assert "mgpu-doctor agent" not in hosts.run("node-a", "ps", "axww")


def test_one_frame(hosts: SshHosts) -> None:
    command = (sys.executable, "-m", "mgpu_doctor", "top", "--hosts", ",".join(hosts.names))
    done = subprocess.run((*command, "--once"), capture_output=True, text=True, check=True)
    assert "live: 2 of 2 hosts" in done.stdout
    assert "straggler-compute" in done.stdout


def test_the_ranks_of_both_hosts_trace_the_same_steps(hosts: SshHosts) -> None:
    command = (sys.executable, "-m", "mgpu_doctor", "trace", "--hosts", ",".join(hosts.names))
    done = subprocess.run((*command, "--json"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first = found["findings"][0]
    assert first["code"] == "straggler-compute"
    assert [one["rank"] for one in first["culprits"]] == [1]
    assert "forward" in first["cause"]
    (folder,) = (hosts.bin.parent / "home").rglob("traces")
    traces = case_of_traces([folder]).traces
    steps = [sorted(name for name in one.names if "ProfilerStep" in name) for one in traces]
    assert [(one.rank, one.host) for one in traces] == [*enumerate(NAMES)]
    assert len(steps[0]) == 20
    assert steps[0] == steps[1]
    assert not list(hosts.bin.parent.glob("node-*/**/*.trace.json"))


@pytest.mark.untimed
def test_hosts_that_cannot_be_reached_are_listed_with_the_reason(hosts: SshHosts) -> None:
    hosts.make_key("other_key")
    hosts.write("other_hosts", f"changed {hosts.make_key('other_host')}")
    hosts.add_alias("refused", "node-a", port=2)
    hosts.add_alias("locked", "node-a", key="other_key")
    hosts.add_alias("changed", "node-a", known="other_hosts")
    code, found = diagnose("node-a", "node-b", "refused", "locked", "changed")
    assert code == 1
    reasons = {gap["probe"]: gap["reason"] for gap in found["unexamined"]}
    assert "Connection refused" in reasons["host refused"]
    assert "Permission denied" in reasons["host locked"]
    assert "IDENTIFICATION HAS CHANGED" in reasons["host changed"]
    assert "host node-a" not in reasons


@pytest.mark.untimed
def test_half_of_a_job_accuses_nobody(hosts: SshHosts) -> None:
    hosts.add_alias("gone", "node-b", port=2)
    for other, name in (("node-a", "gone"), ("node-b", "refused")):
        _, found = diagnose(other, name)
        assert [one["host"] for one in found["ranks"]] == [other]
        assert [one for one in found["findings"] if one["culprits"]] == []
        assert f"host {name}" in {gap["probe"] for gap in found["unexamined"]}


def test_an_agent_that_is_killed_costs_nothing(hosts: SshHosts) -> None:
    with Fleet(NAMES, OpenSsh(), 0.1) as fleet:
        polled(fleet, lambda: all(state.link is Link.LIVE for state in fleet.states()))
        hello = fleet._channels[1].mirror.hello
        assert hello is not None
        begin = time.time()
        hosts.run("node-b", "kill", "-9", str(hello.pid))
        polled(fleet, lambda: state_of(fleet, "node-b").link is Link.BROKEN)
        assert state_of(fleet, "node-a").link is Link.LIVE
        assert state_of(fleet, "node-b").trouble is not None
        polled(fleet, lambda: state_of(fleet, "node-b").link is Link.LIVE)
        end = time.time()
        polled(fleet, lambda: all(newest_end(box) > end for box in boxes_of(fleet).values()))
        assert_whole(fleet)
        assert_trained(fleet, begin, end)
    assert "mgpu-doctor agent" not in hosts.run("node-b", "ps", "axww")


@pytest.mark.usefixtures("hosts")
def test_a_reader_that_stands_still_costs_nothing() -> None:
    with Fleet(NAMES, OpenSsh(), 0.1) as fleet:
        polled(fleet, lambda: all(state.link is Link.LIVE for state in fleet.states()))
        begin = time.time()
        time.sleep(6)  # nobody polls meanwhile
        end = time.time()
        fleet.poll(0.1)
        assert [state.link for state in fleet.states()] == [Link.LIVE, Link.LIVE]
        polled(fleet, lambda: all(newest_end(box) > end for box in boxes_of(fleet).values()))
        assert_whole(fleet)
        assert_trained(fleet, begin, end)


READER = """\
import sys
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.openssh import OpenSsh
with Fleet(sys.argv[1:], OpenSsh(), 0.1) as fleet:
    fleet.wait_until_read(30)
    print("read", flush=True)
    while True:
        fleet.poll(1)
"""


def test_a_reader_that_is_killed_costs_nothing(hosts: SshHosts) -> None:
    """Its agents end, and the next reader reads all that the rings hold."""
    command = (sys.executable, "-c", READER, *NAMES)
    begin = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        reader.kill()
    until(lambda: not any("mgpu-doctor agent" in hosts.run(one, "ps", "axww") for one in NAMES), 30)
    end = time.time()
    with Fleet(NAMES, OpenSsh(), 0.1) as fleet:
        fleet.wait_until_read(30)
        for rank, box in boxes_of(fleet).items():
            (original,) = (hosts.bin.parent / NAMES[rank or 0]).rglob("*.box")
            assert box.steps["seq"][0] <= read_box(original).steps["seq"][0]
        assert_whole(fleet)
        assert_trained(fleet, begin, end)


@pytest.mark.untimed
@pytest.mark.parametrize("seconds", [8, 45])
def test_a_link_that_was_down_costs_nothing(hosts: SshHosts, seconds: int) -> None:
    with Fleet(NAMES, OpenSsh(), 0.1) as fleet:
        polled(fleet, lambda: all(state.link is Link.LIVE for state in fleet.states()))
        hosts.set_link("node-b", "down")
        end = time.monotonic() + seconds
        polled(fleet, lambda: time.monotonic() > end)
        age = state_of(fleet, "node-b").age
        assert age is not None
        assert age > seconds - 3
        before = len(boxes_of(fleet)[1].steps)
        hosts.set_link("node-b", "up")
        polled(fleet, lambda: len(boxes_of(fleet)[1].steps) > before + 10)
        assert_whole(fleet)


@pytest.mark.untimed
def test_a_killed_rank_is_dead_on_its_host(hosts: SshHosts) -> None:
    with Fleet(NAMES, OpenSsh(), 0.1) as fleet:
        polled(fleet, lambda: all(state.link is Link.LIVE for state in fleet.states()))
        (job,) = fleet.jobs
        pid = boxes_of(fleet)[1].identity.pid
        hosts.run("node-b", "kill", "-9", str(pid))
        polled(fleet, lambda: job.over)
        ranks = load_recording(job.folder).ranks
        assert [(rank.host, rank.signal) for rank in ranks if rank.rank == 1] == [("node-b", 9)]
        assert all(rank.state is State.DEAD for rank in ranks)
    first = examine(load_recording(job.folder)).findings[0]
    assert first.code == "failed-killed"
    assert [(one.rank, one.host) for one in first.culprits] == [(1, "node-b")]


@pytest.mark.untimed
def test_a_hang_is_explained_by_the_stacks_of_both_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    """Of a second job, after the first one has ended."""
    address = hosts.address("node-a")
    marks = [tmp_path / f"{name}.mark" for name in NAMES]
    commands = [
        hosts.command(name, _start_rank(tmp_path / name, rank, address, "hangs.py", *options))
        for rank, name in enumerate(NAMES)
        for options in [("sleep", "--mark", str(marks[rank]))]
    ]
    started = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
    until(marks[1].exists, 90)
    code, found = diagnose(*NAMES)
    assert code == 1
    first = found["findings"][0]
    assert first["code"] == "hang-rank-behind"
    assert [(one["rank"], one["host"]) for one in first["culprits"]] == [(1, "node-b")]
    assert first["victims"] == [0]
    assert "sleep_in_own_code" in first["title"]
    assert diagnose("node-a")[1]["findings"] == []  # the rank that it waits for is not seen
    hosts.stop()
    for process in started:
        process.wait()


def state_of(fleet: Fleet, name: str) -> HostState:
    return next(state for state in fleet.states() if state.name == name)


def assert_whole(fleet: Fleet) -> None:
    """No record is missing in any box."""
    assert [state.lost for state in fleet.states()] == [0, 0]
    for box in boxes_of(fleet).values():
        assert box.lost == 0
        first, last = int(box.steps["seq"][0]), int(box.steps["seq"][-1])
        assert len(box.steps) == last - first + 1


def newest_end(box: Box) -> float:
    """When its newest step ended, in seconds since the epoch."""
    return float(ends_of(box)[-1])


def ends_of(box: Box) -> np.ndarray:
    """When its steps ended, in seconds since the epoch."""
    ends: np.ndarray = box.steps["end_ns"] * 1e-9 + box.clock_offset
    return ends


def assert_trained(fleet: Fleet, begin: float, end: float) -> None:
    """The ranks went on meanwhile."""
    for box in boxes_of(fleet).values():
        ends = ends_of(box)
        assert ((ends > begin) & (ends < end)).sum() >= LEAST_DURING
