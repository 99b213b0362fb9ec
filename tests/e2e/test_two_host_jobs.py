"""A job of torchrun with two ranks on each of two hosts, which a real ssh reaches.

A fault of a rank, of a host or of the network is told from the others, while the job runs and after
it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.cli import app
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.openssh import OpenSsh
from mgpu_doctor.diagnosis import diagnose as examine
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.rules.hang import rendezvous_hang
from tests.support.gathered_fleets import STEPS, boxes_of, diagnose_hosts, polled, steps_of
from tests.support.jobs import JOBS, alone, until
from tests.support.ssh_hosts import GROUPS, SshHosts, can_have_namespaces, cpu_quota, ssh_hosts

pytestmark = pytest.mark.slow

NAMES = ("node-a", "node-b")
ROOT = Path(__file__).parents[2]
BIG = ("--batch", "512")
DELAY = 0.02
"""Seconds: an exchange of gradients waits for it several times, so a step takes 0.15 s anywhere."""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHosts]:
    if not can_have_namespaces():
        pytest.skip("namespaces with networks of their own need root")
    folder = tmp_path / "hosts"
    folder.mkdir()
    with alone(), ssh_hosts(folder, *NAMES) as hosts:
        monkeypatch.setenv("PATH", hosts.environment()["PATH"])
        monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
        yield hosts


@contextmanager
def job(
    hosts: SshHosts, folder: Path, script: str, *options: str, names: tuple[str, ...] = NAMES
) -> Iterator[None]:
    """The job on these of its hosts."""
    torchrun = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2")
    commands = {}
    for number, name in enumerate(names):
        place = ("--node-rank", str(number), "--master-addr", hosts.address("node-a"))
        commands[name] = (*torchrun, *place, "--master-port", "29500", str(JOBS / script), *options)
    with launched(hosts, folder, commands):
        yield


@contextmanager
def launched(
    hosts: SshHosts, folder: Path, commands: Mapping[str, tuple[str, ...]]
) -> Iterator[None]:
    """`commands`: host -> what Python runs there under `mgpu-doctor run`."""
    with ExitStack() as stack:
        for name, words in commands.items():
            doctor = ("-m", "mgpu_doctor", "run", "-q", "--dir", str(folder / f"run-{name}"), "--")
            command = shlex.join((sys.executable, *doctor, sys.executable, *words))
            shell = f"cd {shlex.quote(str(ROOT))} && GLOO_SOCKET_IFNAME=eth0 exec {command}"
            output = stack.enter_context((folder / f"{name}.out").open("wb"))
            stack.enter_context(
                subprocess.Popen(hosts.command(name, shell), stdout=output, stderr=output)
            )
        stack.callback(hosts.stop)  # the hosts first: the commands above end with them
        yield


def watch(
    break_it: Callable[[Fleet], object] = lambda _: None, healthy: float = 0.0
) -> tuple[dict[str, Any], Diagnosis]:
    """What `diagnose` says while the job runs, and of its recording once it is over. `break_it`:
    called when the ranks have trained for so many seconds."""

    def has_taken(steps: int) -> bool:
        return count_steps() >= steps

    def count_steps() -> int:
        taken = {rank: len(box.steps) for rank, box in boxes_of(fleet).items()}
        return min(taken.values()) if taken.keys() == set(range(4)) else 0

    with Fleet(NAMES, OpenSsh(), 0.25) as fleet:
        polled(fleet, partial(has_taken, 10), 150)
        begin = time.monotonic()
        polled(fleet, lambda: time.monotonic() - begin > healthy)
        break_it(fleet)
        broken = count_steps()
        for more in (45, 65, 85):  # a look may come too early to be certain
            polled(fleet, partial(has_taken, broken + more), 150)
            code, live = diagnose_hosts("--hosts", ",".join(NAMES))
            if code == 1:
                break
        (one,) = fleet.jobs
        polled(fleet, lambda: one.over, 200)
        after = examine(load_recording(one.folder))
    assert code == 1, (live["findings"], live["unexamined"], live["ranks"])
    assert live["job"]["outcome"] == "running"
    assert after.case.job.outcome.value == "completed"
    return live, after


Named = list[tuple[str, list[tuple[int | None, str | None]]]]


def named(found: dict[str, Any]) -> Named:
    """Code and culprits of the findings that name some, or the network."""
    listed = [
        (one["code"], [(culprit["rank"], culprit["host"]) for culprit in one["culprits"]])
        for one in found["findings"]
    ]
    return [one for one in listed if one[1] or one[0] == "slow-link"]


def named_after(found: Diagnosis) -> Named:
    listed = [
        (one.code, [(culprit.rank, culprit.host) for culprit in one.culprits])
        for one in found.findings
    ]
    return [one for one in listed if one[1] or one[0] == "slow-link"]


def test_a_slow_rank(hosts: SshHosts, tmp_path: Path) -> None:
    fault = ("--fault", "forward", "--rank", "3", "--ms", "60")
    with job(hosts, tmp_path, "plain_ddp.py", "--steps", "400", *fault):
        live, after = watch()
    expected = [("straggler-compute", [(3, "node-b")])]
    assert named(live) == named_after(after) == expected


def test_a_slow_host(hosts: SshHosts, tmp_path: Path) -> None:
    """Each step takes several periods of the quota (0.1 s), so that all steps are slow."""
    if not GROUPS.is_dir():
        pytest.skip("the machine has no CPU quotas of control groups, version 1")
    with ExitStack() as stack:

        def limit(fleet: Fleet) -> None:
            pids = [boxes_of(fleet)[rank].identity.pid for rank in (2, 3)]
            stack.enter_context(cpu_quota(hosts, "node-b", 0.1, pids))

        stack.enter_context(job(hosts, tmp_path, "plain_ddp.py", "--steps", "110", *BIG))
        live, after = watch(limit)
    expected = [("slow-host", [(2, "node-b"), (3, "node-b")])]
    assert named(live) == named_after(after) == expected
    for found in (live["findings"][0]["cause"], after.findings[0].cause):
        assert "waiting for CPU quota" in found


def test_a_slow_link(hosts: SshHosts, tmp_path: Path) -> None:
    hosts.delay_link("node-b", DELAY)
    with job(hosts, tmp_path, "plain_ddp.py", "--steps", "250"):
        live, after = watch()
    assert named(live) == named_after(after) == [("slow-link", [])]
    first = live["findings"][0]
    assert "between node-a and node-b" in first["title"]
    assert first["cost"]["step_fraction"] > 0.5
    (trip, *_) = [row for row in first["evidence"] if row["measure"] == "shortest round trip"]
    assert DELAY <= trip["value"] < 2 * DELAY


@pytest.mark.parametrize("kind", ["delay", "rate"])
def test_a_link_that_becomes_slow(hosts: SshHosts, tmp_path: Path, kind: str) -> None:
    """Long before the kernel forgets how short round trips were."""

    def spoil(_: Fleet) -> None:
        if kind == "delay":
            hosts.delay_link("node-b", DELAY)
        else:
            hosts.limit_link("node-b", "200mbit")

    steady = ("--fault", "between", "--rank", "-1", "--ms", "60")  # as long on fast cores, about
    with job(hosts, tmp_path, "plain_ddp.py", "--steps", "360", *steady):
        live, after = watch(spoil, healthy=25.0)
    assert named(live) == named_after(after) == [("slow-link", [])]
    for since, title in (
        (live["findings"][0]["since_step"], live["findings"][0]["title"]),
        (after.findings[0].since_step, after.findings[0].title),
    ):
        assert since
        assert since > 20
        assert ("a round trip takes" if kind == "delay" else "/s arrive from node-b") in title


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
def test_a_hang(hosts: SshHosts, tmp_path: Path, ahead: float) -> None:
    """Also if the clock of a host is wrong."""
    if ahead:
        hosts.set_clock("node-b", ahead)
    mark = tmp_path / "mark"
    with job(hosts, tmp_path, "hangs.py", "sleep", "--mark", str(mark)):
        until(mark.exists, 120)
        code, live = diagnose_hosts("--hosts", ",".join(NAMES))
        pids = {rank["rank"]: rank["pid"] for rank in live["ranks"]}
    _, after = diagnose_hosts("latest")
    assert code == 1
    assert len(pids) == 4
    for found in (live, after):
        first = found["findings"][0]
        assert named(found)[0] == ("hang-rank-behind", [(1, "node-a")])
        assert first["victims"] == [0, 2, 3]
        assert first["culprits"][0]["pid"] == pids[1]
        assert "sleep_in_own_code" in first["title"]


def test_a_killed_rank(hosts: SshHosts, tmp_path: Path) -> None:
    with (
        job(hosts, tmp_path, "plain_ddp.py", "--steps", "100000"),
        Fleet(NAMES, OpenSsh(), 0.1) as fleet,
    ):
        polled(fleet, lambda: steps_of(fleet) == dict.fromkeys(range(4), STEPS), 150)
        (one,) = fleet.jobs
        pid = boxes_of(fleet)[2].identity.pid
        hosts.run("node-b", "kill", "-9", str(pid))
        polled(fleet, lambda: one.over, 120)
        found = examine(load_recording(one.folder))
    assert named_after(found)[0] == ("failed-killed", [(2, "node-b")])


def test_a_host_that_never_joins(
    hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named while the ranks of the other one wait, and after they have given up."""
    monkeypatch.setattr(rendezvous_hang, "PAST_STARTUP", 20.0)
    address = f"{hosts.address('node-a')}:29501"
    ranks = ("--ranks", "2", "--world-size", "4", "--address", address)
    wait = ("never_init.py", "--rank", "-1", "--patience", "45")
    script = (str(JOBS / "env_ranks.py"), *ranks, *wait)
    live: dict[str, Any] = {}

    def is_named() -> bool:
        nonlocal live
        done = CliRunner().invoke(app, ("diagnose", "--hosts", ",".join(NAMES), "--json"))
        live = json.loads(done.stdout or "{}")
        return done.exit_code == 1

    with launched(hosts, tmp_path, {"node-a": script}), Fleet(NAMES, OpenSsh(), 0.25) as fleet:
        polled(fleet, lambda: len(boxes_of(fleet)) == 2, 90)
        polled(fleet, is_named, 60)
        (one,) = fleet.jobs
        polled(fleet, lambda: one.over, 120)
        after = examine(load_recording(one.folder))
    assert named(live) == [("hang-rendezvous", [(None, "node-b")])]
    assert live["findings"][0]["victims"] == [0, 1]
    assert named_after(after) == [("failed-rendezvous", [(None, "node-b")])]
    assert after.findings[0].victims == (0, 1)
    for title in (live["findings"][0]["title"], after.findings[0].title):
        assert title.startswith("Host node-b never joined")


def test_a_host_on_which_nobody_started_the_job(hosts: SshHosts, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mgpu_doctor", "diagnose", "--hosts", ",".join(NAMES))
    said = ""

    def has_said() -> bool:
        nonlocal said
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        said = done.stderr
        return done.returncode == 3 and "torchrun" in said

    with job(hosts, tmp_path, "plain_ddp.py", names=NAMES[:1]):
        until(has_said, 60)
    assert "it runs no rank: the launchers of a job wait for each other first" in said
    assert "no launcher is seen on node-b" in said
