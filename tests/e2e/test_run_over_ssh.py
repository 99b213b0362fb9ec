"""`run` around torchrun on each of two hosts with homes of their own, which a real ssh reaches."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import JOBS, alone, until
from tests.support.ssh_hosts import SshHosts, can_have_namespaces, ssh_hosts

pytestmark = [pytest.mark.slow, pytest.mark.untimed, pytest.mark.xdist_group("run_over_ssh")]

NAMES = ("node-a", "node-b")
LOST = ("node-c", "node-d")
ROOT = Path(__file__).parents[2]
SLOW = ("--fault", "forward", "--rank", "1", "--ms", "60")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if not can_have_namespaces():
        pytest.skip("namespaces with networks of their own need root")
    with ExitStack() as stack:
        stack.enter_context(alone())
        yield stack.enter_context(ssh_hosts(tmp_path_factory.mktemp("hosts"), *NAMES, *LOST))


def start(
    hosts: SshHosts,
    homes: Path,
    port: int,
    steps: int,
    *options: str,
    meets: bool = False,
    names: Sequence[str] = NAMES,
) -> list[subprocess.Popen[str]]:
    """`run` with these options on each host. `meets`: whether the nodes get their numbers from a
    rendezvous; `names`: of the nodes, in the order of their numbers."""
    started = []
    for number, name in enumerate(names):
        facts = {"MGPU_DOCTOR_HOME": homes / name, "PATH": hosts.environment()["PATH"]}
        facts |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        address = hosts.address(names[0])
        place = (
            ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{port}")
            if meets
            else ("--node-rank", number, "--master-addr", address, "--master-port", port)
        )
        launcher = (
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(names))),
            *("--nproc-per-node", "1", *map(str, place)),
        )
        doctor = (sys.executable, "-m", "mgpu_doctor", "run", *options, "--")
        script = (str(JOBS / "plain_ddp.py"), "--steps", str(steps), *SLOW)
        given = [f"{key}={value}" for key, value in facts.items()]
        line = f"cd {ROOT} && exec env {shlex.join([*given, *doctor, *launcher, *script])}"
        nowhere = subprocess.DEVNULL
        started.append(
            subprocess.Popen(
                hosts.command(name, line), stdout=nowhere, stderr=subprocess.PIPE, text=True
            )
        )
    return started


def await_ends(started: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit codes and standard errors."""
    printed = [process.communicate(timeout=240)[1] for process in started]
    return [(one.returncode, text) for one, text in zip(started, printed, strict=True)]


def recording_of(home: Path) -> Path:
    (recording,) = (home / "runs").iterdir()
    return recording


def diagnose(*recordings: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "mgpu_doctor", "diagnose", *map(str, recordings), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_names_the_slow_rank(*recordings: Path) -> None:
    found = diagnose(*recordings)
    assert found["job"]["outcome"] == "completed"
    assert [(rank["rank"], rank["host"]) for rank in found["ranks"]] == [*enumerate(NAMES)]
    first = found["findings"][0]
    assert first["code"] == "straggler-compute"
    assert [(one["rank"], one["host"]) for one in first["culprits"]] == [(1, "node-b")]


def test_the_first_node_fetches_the_rest_from_hosts_that_are_named(
    hosts: SshHosts, tmp_path: Path
) -> None:
    (code, first), (other_code, other) = await_ends(
        start(hosts, tmp_path, 29511, 300, "--hosts", ",".join(NAMES))
    )
    assert (code, other_code) == (0, 0)
    assert "! Rank 1 is slowing down the other ranks" in first
    assert "(node-b, pid" in first
    assert "slowing down" not in other
    assert_names_the_slow_rank(recording_of(tmp_path / "node-a"))
    assert "mgpu-doctor agent" not in hosts.run("node-b", "ps", "axww")


def test_nodes_of_a_rendezvous_leave_the_report_to_the_one_that_serves_it(
    hosts: SshHosts, tmp_path: Path
) -> None:
    """Which of them torch gives the number 0 is another matter."""
    (code, first), (other_code, other) = await_ends(
        start(hosts, tmp_path, 29513, 300, "--hosts", ",".join(NAMES), meets=True)
    )
    assert (code, other_code) == (0, 0)
    assert "! Rank 1 is slowing down the other ranks" in first
    assert "slowing down" not in other
    assert "node of 2 has ended" in other
    found = diagnose(recording_of(tmp_path / "node-a"))
    assert {rank["host"] for rank in found["ranks"]} == set(NAMES)
    (culprit,) = found["findings"][0]["culprits"]
    assert culprit["rank"] == 1
    assert [gap for gap in found["unexamined"] if "node" in gap["probe"]] == []


def test_parts_that_nobody_fetched_are_joined_by_name(hosts: SshHosts, tmp_path: Path) -> None:
    (code, first), (other_code, other) = await_ends(start(hosts, tmp_path, 29512, 100))
    assert (code, other_code) == (0, 0)
    assert "1 other node: nothing that was recorded there is here." in first
    parts = [recording_of(tmp_path / name) for name in NAMES]
    assert f"the first node prints the diagnosis; the recording is {parts[1]}. If" in other
    for part, text in zip(parts, (first, other), strict=True):
        assert f"run `mgpu-doctor diagnose {part} RECORDING…`." in text
    assert_names_the_slow_rank(*parts)


@pytest.mark.timeout(600)
def test_if_the_first_two_nodes_are_lost_the_next_one_reports(
    hosts: SshHosts, tmp_path: Path
) -> None:
    """All processes of the two end, and nothing reaches them any more. The parts that are left show
    together that no other host was lost."""
    names = (*LOST, *NAMES)
    started = start(hosts, tmp_path, 29514, 100_000, "--hosts", ",".join(names), names=names)

    def are_fetched() -> bool:
        """Whether the two have fetched each other's parts, and those of the others."""
        boxes = [list(tmp_path.glob(f"{name}/runs/*/hosts/*/boxes/*.box")) for name in LOST]
        return all(len(of_all) == len(names) for of_all in boxes)

    until(are_fetched, 180)
    hosts.lose(*LOST)
    left = started[len(LOST) :]
    (code, first), (other_code, other) = await_ends(left)
    assert (code, other_code) == (1, 1)
    silent = "no mgpu-doctor answers on hosts node-c and node-d, the first 2 nodes:"
    assert f"mgpu-doctor: {silent} this node reports." in first
    assert f"({hosts.address('node-c')} port 22)'; host node-d: ssh fails with" in first
    parts = [recording_of(tmp_path / name) for name in NAMES]
    assert (
        f"mgpu-doctor: node 4 of 4 has ended; {silent} node-a prints the diagnosis; the recording "
        f"is {parts[1]}. If it does not, copy the recordings of the other nodes here and run "
        f"`mgpu-doctor diagnose {parts[1]} RECORDING…`." in other
    )
    alone, whole = diagnose(parts[0]), diagnose(*parts)
    assert [rank["host"] for rank in alone["ranks"] if rank["pid"]] == ["node-a"]
    assert [rank["host"] for rank in whole["ranks"] if rank["pid"]] == [*NAMES]
    for found, absent in ((alone, [*LOST, "1 other node"]), (whole, LOST)):
        assert found["job"]["outcome"] == "failed"
        gaps = [gap["probe"] for gap in found["unexamined"] if "node" in gap["probe"]]
        assert [gap.removeprefix("host ") for gap in gaps] == [*absent]
    assert "host-lost" not in [finding["code"] for finding in alone["findings"]]
    lost = whole["findings"][0]
    assert lost["code"] == "host-lost"
    assert [(one["rank"], one["host"]) for one in lost["culprits"]] == [(None, n) for n in LOST]
    assert lost["victims"] == [2, 3]
