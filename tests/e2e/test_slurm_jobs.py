"""A real job of a real Slurm with two nodes, reached by `srun --overlap`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mgpu_probes.outside.traces.trace_requests import TraceRequest

from mgpu_doctor.case.profiler_case import case_of_traces
from mgpu_doctor.cluster.host_channel import Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.slurm_nodes import Slurm, find_nodes
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine.host_cases import load_host_cases
from mgpu_doctor.examine.trace_targets import find_host_route, take_traces
from tests.support.gathered_fleets import STEPS, boxes_of, diagnose_hosts, polled, steps_of
from tests.support.jobs import JOBS, alone, until
from tests.support.slurm_cluster import can_run_daemons, slurm_cluster

pytestmark = [pytest.mark.slow, pytest.mark.untimed, pytest.mark.xdist_group("slurm")]

NODES = ("node-a", "node-b")
ROOT = Path(__file__).parents[2]
FAULT = ("--fault", "forward", "--rank", "1", "--ms", "60")
RANK = "export RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 OMP_NUM_THREADS=1"
PLACE = "export MASTER_ADDR=node-a MASTER_PORT=29533 GLOO_SOCKET_IFNAME=lo"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The number of a job with one rank on each node, of which rank 1 is slow."""
    if not can_run_daemons():
        pytest.skip("node daemons in namespaces need root")
    folder = tmp_path_factory.mktemp("slurm")
    with ExitStack() as stack:
        stack.enter_context(alone())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in stack.enter_context(slurm_cluster(folder, *NODES)).items():
            patch.setenv(name, value)
        patch.setenv("MGPU_DOCTOR_HOME", str(folder / "home"))
        output = stack.enter_context((folder / "job.out").open("wb"))
        step = ("srun", "--job-name=train", "--nodes=2", "sh", "-c", _rank(folder))
        started = stack.enter_context(subprocess.Popen(step, stdout=output, stderr=output))
        stack.callback(started.wait)
        stack.callback(_run, "scancel", "--name=train")
        until(lambda: _run("squeue", "--noheader", "--states=running") != "", 60)
        number = _run("squeue", "--noheader", "--format=%A").strip()
        with Fleet(*find_nodes(number), 0.25) as fleet:
            polled(fleet, lambda: steps_of(fleet) == {0: STEPS, 1: STEPS}, 120)
        yield number


def _rank(folder: Path) -> str:
    """A shell script that starts the rank of a task, recorded on its node."""
    script = (sys.executable, str(JOBS / "plain_ddp.py"), "--steps", "1000000", *FAULT)
    doctor = (sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir")
    recorded = f"{shlex.join(doctor)} {folder}/recording -- {shlex.join(script)}"
    return f"cd {ROOT} && {RANK} && {PLACE} && exec {recorded}"


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_slow_rank_is_named_with_its_node(job: str) -> None:
    code, found = diagnose_hosts("--slurm", job)
    assert code == 1
    assert found["job"]["hosts"] == list(NODES)
    assert [(rank["rank"], rank["host"]) for rank in found["ranks"]] == [*enumerate(NODES)]
    first = found["findings"][0]
    assert first["code"] == "straggler-compute"
    assert [(one["rank"], one["host"]) for one in first["culprits"]] == [(1, "node-b")]
    assert first["victims"] == [0]
    assert [gap for gap in found["unexamined"] if gap["probe"].startswith("host ")] == []


def test_an_agent_that_is_killed_costs_nothing(job: str) -> None:
    with Fleet(*find_nodes(job), 0.1) as fleet:
        polled(fleet, lambda: all(state.link is Link.LIVE for state in fleet.states()))
        command = fleet._channels[1].command
        assert command is not None
        assert command.child is not None
        command.child.kill()
        polled(fleet, lambda: fleet.states()[1].link is Link.BROKEN)
        polled(fleet, lambda: fleet.states()[1].link is Link.LIVE)
        assert [state.lost for state in fleet.states()] == [0, 0]
    until(lambda: len(_run("squeue", "--noheader", "--steps").splitlines()) == 1, 60)


def test_one_step_reaches_all_nodes(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more nodes than have an srun each."""
    monkeypatch.setattr(Slurm, "most_alone", 1)
    with Fleet(*find_nodes(job), 0.1) as fleet:
        polled(fleet, lambda: all(state.link is Link.LIVE for state in fleet.states()))
        (step,) = {channel.command for channel in fleet._channels}
        assert step is not None
        assert [(state.name, state.node) for state in fleet.states()] == [
            (node, node) for node in NODES
        ]
        assert steps_of(fleet) == {0: STEPS, 1: STEPS}
        agent = fleet._channels[1].mirror.hello
        assert agent is not None
        _run("srun", f"--jobid={job}", "--overlap", "--nodelist=node-b", "kill", str(agent.pid))
        polled(fleet, lambda: fleet.states()[1].link is Link.BROKEN)
        assert fleet.states()[0].link is Link.LIVE  # and stays in the step
        polled(fleet, lambda: fleet.states()[1].link is Link.LIVE)
        assert fleet._channels[0].command is step
        assert step.child is not None
        step.child.kill()
        polled(fleet, lambda: fleet.states()[0].link is Link.BROKEN)
        polled(fleet, lambda: all(state.link is Link.LIVE for state in fleet.states()))
        assert [state.lost for state in fleet.states()] == [0, 0]
        seen = [box.steps["seq"] for box in boxes_of(fleet).values()]
        assert [(seq[-1] - seq[0] + 1 - len(seq), seq[0]) for seq in seen] == [(0, 1)] * 2
    (case,) = load_host_cases(*find_nodes(job), lambda _: None)
    (first, *_) = diagnose(case).findings
    assert first.code == "straggler-compute"
    assert [(culprit.rank, culprit.host) for culprit in first.culprits] == [(1, "node-b")]
    until(lambda: len(_run("squeue", "--noheader", "--steps").splitlines()) == 1, 60)


def test_the_ranks_of_all_nodes_trace_the_same_steps(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through one step, whose agents all get all requests."""
    monkeypatch.setattr(Slurm, "most_alone", 1)
    with Fleet(*find_nodes(job), 0.1) as fleet:
        route = find_host_route(fleet, lambda _: None)
        taken = take_traces(route, TraceRequest(steps=12), tmp_path, lambda _: None)
    assert [(one.rank, one.host, one.why) for one in taken] == [
        (rank, node, None) for rank, node in enumerate(NODES)
    ]
    traces = case_of_traces([tmp_path]).traces
    steps = [sorted(name for name in one.names if "ProfilerStep" in name) for one in traces]
    assert [(one.rank, one.host) for one in traces] == [*enumerate(NODES)]
    assert len(steps[0]) == 12
    assert steps[0] == steps[1]


def test_its_nodes_can_be_tested(job: str) -> None:
    """While a rank uses a core of each."""
    command = (sys.executable, "-m", "mgpu_doctor", "preflight", "--slurm", job)
    done = subprocess.run(
        (*command, "--pairs", "--python", "none", "--json"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert [(host["name"], host["trouble"]) for host in found["hosts"]] == [
        (node, None) for node in NODES
    ]
    assert all(host["core_speed"] and host["read_seconds"] for host in found["hosts"])
    (link,) = found["links"]
    assert (link["source"], link["target"]) == NODES
    until(lambda: len(_run("squeue", "--noheader", "--steps").splitlines()) == 1, 60)


def test_a_verb_within_the_job_proposes_it(job: str) -> None:
    verb = (sys.executable, "-m", "mgpu_doctor", "trace")
    step = ("srun", f"--jobid={job}", "--overlap", "--nodelist=node-b", "--ntasks=1")
    done = subprocess.run((*step, *verb), capture_output=True, text=True, check=False, cwd=ROOT)
    sentence = f"this shell is inside Slurm job {job} of 2 nodes: add --slurm {job} to see them all"
    assert sentence in done.stderr


def test_what_is_no_running_job(job: str) -> None:
    command = (sys.executable, "-m", "mgpu_doctor", "diagnose", "--slurm")
    cases = (("99999", 3, "knows no job 99999"), ("node-a", 2, "is not a Slurm job number"))
    for name, code, words in cases:
        done = subprocess.run((*command, name), capture_output=True, text=True, check=False)
        assert done.returncode == code
        (line,) = done.stderr.splitlines()
        assert words in line
    _run("scancel", job)
    until(lambda: _run("squeue", "--noheader") == "", 60)
    done = subprocess.run((*command, job), capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"job {job} has ended (CANCELLED)" in done.stderr
