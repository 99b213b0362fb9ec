"""The nodes of a Slurm job over `srun --overlap`: a step with one task beside the job's own steps.

The messages are Slurm's (slurm_errno.c, srun of 22.05)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from mgpu_doctor.cluster.engine import (
    Listing,
    Trouble,
    find_python_trouble,
    last_line,
    quote,
    run_listing,
)
from mgpu_doctor.cluster.step_output import MEMBER
from mgpu_doctor.errors import NOTHING_EXAMINED, WRONG_USAGE, DoctorError

SECONDS_TO_START = 20
MOST_ALONE = 32
"""Nodes with an srun each; if there are more, one step reaches them, whose agents Slurm itself
starts and joins. A choice: each srun is a process here and a step for the controller."""
OPTIONS = (
    "--overlap",  # it would wait for the job's own steps to end
    f"--immediate={SECONDS_TO_START}",
    *("--ntasks-per-node=1", "--mpi=none", "--chdir=/"),
)
LEAST = ("--cpus-per-task=1", "--gres=none")
"""Without these, a step has all the cores and GPUs of the job (srun, `--exact` and `--gres`)."""
OF_STEP = (
    *("--label", "--input=all"),
    *("--no-kill", "--kill-on-bad-exit=0", "--wait=0"),  # a node that fails leaves the others alone
)
_JOB = re.compile(r"\d{1,10}([_+]\d{1,7})?")
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_NODES = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*")
"""Each name, or names, of a list such as `gpu[01-03,7],login`."""
_LISTED = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_PREFIX = re.compile(r"^srun: (error: )?")
_WHERE = "where Slurm's commands are on PATH, such as a login node"
_NOT_YET = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING")
_RUNS = ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "STAGE_OUT")


class Slurm:
    """`--slurm`: the nodes of the job with this number. `whole`: commands have all its cores and
    GPUs."""

    name = "srun"
    most_alone = MOST_ALONE

    def __init__(self, job: str, *, whole: bool = False) -> None:
        self._job = job
        self._options = OPTIONS if whole else (*OPTIONS, *LEAST)

    def command(self, host: str, remote: str) -> list[str]:
        return ["srun", *self._place(host), "/bin/sh", "-c", remote]

    def step_command(self, hosts: Sequence[str], remote: str) -> list[str]:
        script = MEMBER.format(remote=remote, name="$SLURMD_NODENAME")
        return ["srun", *self._place(*hosts), *OF_STEP, "/bin/sh", "-c", script]

    def _place(self, *hosts: str) -> tuple[str, ...]:
        where = f"--jobid={self._job}", f"--nodelist={','.join(hosts)}"
        return *where, f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", *self._options

    def describe_trial(self, host: str) -> str:
        return f"srun --overlap --jobid={self._job} --nodelist={host} --nodes=1 --ntasks=1 true"

    def explain(self, host: str, code: int, text: str) -> Trouble:
        if trouble := find_python_trouble(text, 0):
            return trouble
        for mark, remedy in _REMEDIES:
            if line := next((line for line in text.splitlines() if mark in line), None):
                reason = _PREFIX.sub("", line.strip())
                what = remedy.format(job=self._job)
                return Trouble(f"srun fails with '{reason}'", what, mark in _SILENT)
        lines = [_PREFIX.sub("", line) for line in text.splitlines()]
        lines = [line for line in lines if "Exited with exit code" not in line]
        error = last_line("\n".join(lines), code)
        return Trouble(f"srun fails with {error}", f"`{self.describe_trial(host)}` must work")


_REMEDIES = (
    ("ermission denied", "only the job's owner and root can start a step in it"),
    ("Invalid job id", "the job has ended: examine its recording or its log"),
    ("has expired", "the job has ended: examine its recording or its log"),
    ("ompleting or completed", "the job has ended: examine its recording or its log"),
    ("node configuration is not available", "`squeue --jobs={job}` shows the job's nodes"),
    ("unrecognized option", "it needs Slurm 20.11 or newer, which has `srun --overlap`"),
    ("Requested nodes are busy", "its steps leave no room: start them with `srun --overlap`"),
    ("ontact slurm controller", "the controller does not answer: `scontrol ping` shows it"),
    ("failed on node", "the node does not answer Slurm: `sinfo -R` shows why"),
    ("ode failure", "the node has failed: `sinfo -R` shows why"),
)
_SILENT = ("failed on node", "ode failure")


def find_nodes(job: str, *, whole: bool = False) -> tuple[tuple[str, ...], Slurm]:
    """The nodes of a running job, in Slurm's order, and how to reach them. Raises DoctorError."""
    if not _JOB.fullmatch(job):
        sentence = f"{quote(job)} is not a Slurm job number: take it from `squeue --me`."
        raise DoctorError(sentence, WRONG_USAGE)
    form = "--format=%A|%i|%T|%N"
    shown = run_listing(("squeue", "--noheader", "--states=all", f"--jobs={job}", form), _WHERE)
    number, nodes = _choose_job(job, shown)
    return expand_nodes(nodes, job), Slurm(number, whole=whole)


def count_nodes(environment: Mapping[str, str]) -> int:
    """How many nodes the job of this process has; 0: unknown. A step on one of them that was
    started from elsewhere has only the list."""
    count = environment.get("SLURM_JOB_NUM_NODES", "")
    if count.isdigit():
        return int(count)
    names = _NODES.findall(environment.get("SLURM_NODELIST", ""))
    return sum(prod(map(_count_listed, _LISTED.findall(name))) for name in names)


def _count_listed(listed: str) -> int:
    """How many numbers a list such as `01-03,7` has."""
    ranges = map(_RANGE.fullmatch, listed.split(","))
    return sum(1 if one is None else max(0, int(one[2]) - int(one[1]) + 1) for one in ranges)


def expand_nodes(nodes: str, job: str) -> tuple[str, ...]:
    """The names of nodes that Slurm writes as a list. Raises DoctorError."""
    expanded = run_listing(("scontrol", "show", "hostnames", nodes), _WHERE)
    names = tuple(expanded.out.split())
    if expanded.code or not names or not all(map(_NODE.fullmatch, names)):
        error = last_line(expanded.error, expanded.code)
        sentence = f"the nodes of job {job} are unknown: scontrol fails with {error}."
        raise DoctorError(sentence, NOTHING_EXAMINED)
    return names


def _choose_job(job: str, shown: Listing) -> tuple[str, str]:
    """The number of the only running job that is shown, and its nodes as Slurm writes them."""
    if "Invalid job id" in shown.error or (not shown.code and not shown.out.strip()):
        raise DoctorError(
            f"Slurm knows no job {job}, or not any more: take the number of a running job from "
            "`squeue --me`, or examine the recording of the one that ended.",
            NOTHING_EXAMINED,
        )
    if shown.code:
        error = last_line(shown.error, shown.code)
        sentence = f"Slurm does not answer: squeue fails with {error}: `scontrol ping` must work."
        raise DoctorError(sentence, NOTHING_EXAMINED)
    rows = [row for line in shown.out.splitlines() if len(row := line.strip().split("|", 3)) == 4]
    running = [row for row in rows if row[2] in _RUNS and row[3]]
    if len(running) > 1:
        names = ", ".join(f"--slurm {row[1]}" for row in running[:4])
        raise DoctorError(f"{job} is {len(running)} running jobs: name one: {names}.", WRONG_USAGE)
    if running:
        return running[0][0], running[0][3]
    state = rows[0][2] if rows else "unknown"
    if state in _NOT_YET:
        sentence = f"job {job} has not started ({state}): try again when it runs."
    else:
        sentence = f"job {job} has ended ({state}): examine its recording or its log instead."
    raise DoctorError(sentence, NOTHING_EXAMINED)
