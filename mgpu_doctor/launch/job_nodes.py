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
    how many, or if several tasks of a Slurm step share a node. Tasks of a step may just as well be
    jobs of their own, such as runs with different seeds: they are one job if torchrun or accelerate
    is told of several nodes, or else if there is an address at which ranks meet."""
    launcher = find_launcher(command)
    given = _read_options(command)
    if launcher == "torchrun":
        given = _read_variables(environment) | given
    most = _whole(_first(given, _COUNT).rpartition(":")[2]) or 1
    launched = launcher in ("torchrun", "accelerate")
    if launched and most < 2:
        return None
    place = _first(given, _PLACE) or ("" if launched else environment.get("MASTER_ADDR", ""))
    meets = place.partition(":")[0] not in _HERE
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        return _find_step(environment, job_name(command)) if launched or meets else None
    if not launched or not meets:
        return None
    key = f"{launcher} {place} {_first(given, _PORT)} {_first(given, _RUN)}"[:LONGEST_KEY]
    static = "rdzv_endpoint" not in given  # else torchrun numbers the nodes by itself
    return JobNodes(key, most, _whole(_first(given, _NUMBER)) if static else None)


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


def _read_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's options that the environment gives."""
    return {
        name.removeprefix("PET_").lower(): value
        for name, value in environment.items()
        if name.startswith("PET_")
    }


def _read_options(command: Sequence[str]) -> dict[str, str]:
    """The launcher's options that matter here, up to the name of a script in Python: the rest is
    the script's. Of several of one name, the first."""
    known = {*_COUNT, *_NUMBER, *_PLACE, *_PORT, *_RUN}
    options: dict[str, str] = {}
    for place, word in enumerate(command):
        if word.endswith(".py"):
            break
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
