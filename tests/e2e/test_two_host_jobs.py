"""A job of torchrun with two ranks on each of two hosts, which a real ssh reaches.

A fault of a rank, of a host or of the network is told from the others, while the job runs and after
it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.cli import app
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.openssh import OpenSsh
from mgpu_doctor.diagnosis import diagnose as examine
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.rules.hang import rendezvous_hang
from tests.support.gathered_fleets import boxes_of, diagnose_hosts, polled
from tests.support.jobs import JOBS, alone, until
from tests.support.ssh_hosts import GROUPS, SshHosts, can_have_namespaces, cpu_quota, ssh_hosts

pytestmark = pytest.mark.slow

NAMES = ("node-a", "node-b")
ROOT = Path(__file__).parents[2]
ENDLESS = ("--steps", "1000000")
STEADY = ("--fault", "between", "--rank", "-1", "--ms", "50")
"""A healthy step takes as long on fast cores, about."""
LOOKS = 4
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


def torchrun(hosts: SshHosts, script: str, *options: str) -> dict[str, list[str]]:
    """Host -> what Python runs there: two ranks of this script of tests/jobs."""
    place = ("--master-addr", hosts.address("node-a"), "--master-port", "29500")
    launcher = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", *place)
    return {
        name: [*launcher, "--node-rank", str(number), str(JOBS / script), *options]
        for number, name in enumerate(NAMES)
    }


def plain(hosts: SshHosts, script: str, *options: str) -> dict[str, list[str]]:
    """The same with a launcher that starts at once."""
    place = ("--world-size", "4", "--address", f"{hosts.address('node-a')}:29501")
    launcher = (str(JOBS / "env_ranks.py"), "--ranks", "2", *place)
    return {
        name: [*launcher, "--first", str(2 * number), script, *options]
        for number, name in enumerate(NAMES)
    }


@contextmanager
def launched(
    hosts: SshHosts, folder: Path, commands: Mapping[str, Sequence[str]]
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
    end: Callable[[Fleet], object],
    break_it: Callable[[Fleet], object] = lambda _: None,
    healthy: float = 0.0,
) -> tuple[dict[str, Any], Diagnosis]:
    """What `diagnose` says while the job runs, and of its recording once it is over. `end`: ends
    it; `break_it`: called when the ranks have trained for so many seconds."""

    def count_steps() -> int:
        taken = {rank: len(box.steps) for rank, box in boxes_of(fleet).items()}
        return min(taken.values()) if taken.keys() == set(range(4)) else 0

    def have_taken(steps: int) -> None:
        polled(fleet, lambda: count_steps() >= steps, 150)

    def go_on(seconds: float) -> None:
        begin = time.monotonic()
        polled(fleet, lambda: time.monotonic() - begin > seconds)

    with Fleet(NAMES, OpenSsh(), 0.25) as fleet:
        have_taken(10)
        go_on(healthy)
        break_it(fleet)
        more = 40
        for _ in range(LOOKS):  # one may come too early to be certain
            have_taken(count_steps() + more)
            go_on(2.0)
            code, live = diagnose_hosts("--hosts", ",".join(NAMES))
            if code == 1:
                break
            more = 20
        (one,) = fleet.jobs
        end(fleet)
        polled(fleet, lambda: one.over, 120)
        after = examine(load_recording(one.folder))
    assert code == 1, (live["findings"], live["unexamined"], live["ranks"])
    assert live["job"]["outcome"] == "running"
    return live, after


def ending(folder: Path) -> tuple[Callable[[Fleet], object], Sequence[str]]:
    """How to end plain_ddp.py, and its options for that."""
    end = folder / "end"
    return lambda _: end.touch(), (*ENDLESS, "--end", str(end))


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


def test_a_slow_rank_and_a_killed_one(hosts: SshHosts, tmp_path: Path) -> None:
    def kill(fleet: Fleet) -> None:
        hosts.run("node-b", "kill", "-9", str(boxes_of(fleet)[2].identity.pid))

    fault = ("--fault", "forward", "--rank", "3", "--ms", "60")
    with launched(hosts, tmp_path, torchrun(hosts, "plain_ddp.py", *ENDLESS, *fault)):
        live, after = watch(kill)
    slow = ("straggler-compute", [(3, "node-b")])
    assert named(live) == [slow]
    assert named_after(after) == [("failed-killed", [(2, "node-b")]), slow]


@pytest.mark.skipif(
    not GROUPS.is_dir(), reason="the machine has no CPU quotas of control groups, version 1"
)
def test_a_slow_host(hosts: SshHosts, tmp_path: Path) -> None:
    """Each step takes several periods of the quota, so that all steps are slow."""
    with ExitStack() as stack:

        def limit(fleet: Fleet) -> None:
            pids = [boxes_of(fleet)[rank].identity.pid for rank in (2, 3)]
            stack.enter_context(cpu_quota(hosts, "node-b", 0.05, pids))

        end, options = ending(tmp_path)
        job = plain(hosts, "plain_ddp.py", *options, *STEADY)
        stack.enter_context(launched(hosts, tmp_path, job))
        live, after = watch(end, limit)
    assert after.case.job.outcome is Outcome.COMPLETED
    expected = [("slow-host", [(2, "node-b"), (3, "node-b")])]
    assert named(live) == named_after(after) == expected
    for found in (live["findings"][0]["cause"], after.findings[0].cause):
        assert "waiting for CPU quota" in found


def test_a_slow_link(hosts: SshHosts, tmp_path: Path) -> None:
    hosts.delay_link("node-b", DELAY)
    end, options = ending(tmp_path)
    with launched(hosts, tmp_path, plain(hosts, "plain_ddp.py", *options)):
        live, after = watch(end)
    assert after.case.job.outcome is Outcome.COMPLETED
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

    end, options = ending(tmp_path)
    with launched(hosts, tmp_path, plain(hosts, "plain_ddp.py", *options, *STEADY)):
        live, after = watch(end, spoil, healthy=20.0)
    assert after.case.job.outcome is Outcome.COMPLETED
    assert named(live) == named_after(after) == [("slow-link", [])]
    for since, title in (
        (live["findings"][0]["since_step"], live["findings"][0]["title"]),
        (after.findings[0].since_step, after.findings[0].title),
    ):
        assert since
        assert since > 20
        assert ("a round trip takes" if kind == "delay" else "/s arrive from node-b") in title


@pytest.mark.untimed
def test_a_hang_where_a_clock_is_wrong(hosts: SshHosts, tmp_path: Path) -> None:
    hosts.set_clock("node-b", 3600.0)
    mark = tmp_path / "mark"
    with launched(hosts, tmp_path, torchrun(hosts, "hangs.py", "sleep", "--mark", str(mark))):
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


@pytest.mark.untimed
def test_a_host_that_never_joins(
    hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named while the ranks of the other one wait, and after they have given up."""
    monkeypatch.setattr(rendezvous_hang, "PAST_STARTUP", 5.0)
    job = plain(hosts, "never_init.py", "--rank", "-1", "--patience", "25")
    del job["node-b"]
    live: dict[str, Any] = {}

    def is_named() -> bool:
        nonlocal live
        done = CliRunner().invoke(app, ("diagnose", "--hosts", ",".join(NAMES), "--json"))
        live = json.loads(done.stdout or "{}")
        return done.exit_code == 1

    with launched(hosts, tmp_path, job), Fleet(NAMES, OpenSsh(), 0.25) as fleet:
        polled(fleet, lambda: len(boxes_of(fleet)) == 2, 90)
        polled(fleet, is_named, 60)
        (one,) = fleet.jobs
        polled(fleet, lambda: one.over, 120)
        after = examine(load_recording(one.folder))
    assert named(live) == [("hang-rendezvous", [(None, "node-b")])]
    assert live["findings"][0]["victims"] == [0, 1]
    assert named_after(after) == [("failed-rendezvous", [(None, "node-b")])]
    # Rank 0 keeps the store: once it has given up, rank 1 may lose that before its time is out.
    assert after.findings[0].victims in ((0,), (0, 1))
    for title in (live["findings"][0]["title"], after.findings[0].title):
        assert title.startswith("Host node-b never joined")


@pytest.mark.untimed
def test_a_host_on_which_nobody_started_the_job(hosts: SshHosts, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mgpu_doctor", "diagnose", "--hosts", ",".join(NAMES))
    said = ""

    def has_said() -> bool:
        nonlocal said
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        said = done.stderr
        return done.returncode == 3 and "torchrun" in said

    job = torchrun(hosts, "plain_ddp.py")
    del job["node-b"]
    with launched(hosts, tmp_path, job):
        until(has_said, 60)
    assert "it runs no rank: the launchers of a job wait for each other first" in said
    assert "no launcher is seen on node-b" in said
