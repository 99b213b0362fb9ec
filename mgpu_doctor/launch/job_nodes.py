"""Which node of a job this is, if the job is started once per node, as by `srun` or torchrun.

Only what the environment and the command line say: Slurm's variables of a step, or the options of
torchrun and accelerate (with torchrun's `PET_` variables). Nothing is asked over the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mgpu_probes.outside.jobs.launchers import find_launcher

from mgpu_doctor.recording.home import job_name

LONGEST_KEY = 300
_COUNT = ("nnodes", "num_machines")
_NUMBER = ("node_rank", "machine_rank")
_PLACE = ("rdzv_endpoint", "master_addr", "main_process_ip")
_PORT = ("master_port", "main_process_port")
_RUN = ("rdzv_id",)
_HERE = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True, slots=True)
class JobNodes:
    """The nodes of a job. `key`: equal on all of them, and for no other job that runs at the same
    time. `count`: how many there are, at most. `number`: of this node, from 0; None: unknown.
    `slurm`: the Slurm job whose step this is; None: it is no step of Slurm."""

    key: str
    count: int
    number: int | None
    slurm: str | None = None


def find_job_nodes(environment: Mapping[str, str], command: Sequence[str]) -> JobNodes | None:
    """The nodes of the job that `command` is a part of; None if it has one node, if it is unknown
    how many, or if several tasks of a Slurm step share a node."""
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        return _find_step(environment, job_name(command))
    return _find_launched(environment, command)


def _find_step(environment: Mapping[str, str], name: str) -> JobNodes | None:
    """`name`: of the script, because a step may run several at the same time."""
    names = ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
    nodes, tasks, number = (_whole(environment.get(name)) for name in names)
    job, step = environment.get("SLURM_JOB_ID"), environment["SLURM_STEP_ID"]
    if not job or number is None or nodes is None or nodes < 2 or tasks != nodes:
        return None
    cluster = environment.get("SLURM_CLUSTER_NAME", "")
    requeue = environment.get("SLURM_RESTART_COUNT", "0")
    key = f"slurm {cluster} {job}.{step} {requeue} {name}"
    return JobNodes(key[:LONGEST_KEY], nodes, number, job)


def _find_launched(environment: Mapping[str, str], command: Sequence[str]) -> JobNodes | None:
    launcher = find_launcher(command)
    if launcher not in ("torchrun", "accelerate"):
        return None
    given = {
        name.removeprefix("PET_").lower(): value
        for name, value in environment.items()
        if name.startswith("PET_") and launcher == "torchrun"
    } | _read_options(command)
    most = _whole(_first(given, _COUNT).rpartition(":")[2])
    place, port = _first(given, _PLACE), _first(given, _PORT)
    if most is None or most < 2 or place.partition(":")[0] in _HERE:
        return None
    run = _first(given, _RUN)
    key = f"{launcher} {place} {port} {run}"[:LONGEST_KEY]
    static = "rdzv_endpoint" not in given  # else torchrun numbers the nodes by itself
    return JobNodes(key, most, _whole(_first(given, _NUMBER)) if static else None)


def _read_options(command: Sequence[str]) -> dict[str, str]:
    """The launcher's options that matter here, the first of each name: those after it may be the
    script's."""
    known = {*_COUNT, *_NUMBER, *_PLACE, *_PORT, *_RUN}
    options: dict[str, str] = {}
    for place, word in enumerate(command):
        name, given, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word.startswith("--") and name in known:
            following = command[place + 1] if place + 1 < len(command) else ""
            options.setdefault(name, value if given else following)
    return options


def _first(given: Mapping[str, str], names: Sequence[str]) -> str:
    return next((given[name] for name in names if name in given), "")


def _whole(value: str | None) -> int | None:
    return int(value) if value and value.isascii() and value.isdecimal() else None
