"""From srun to the tasks that it started on this host: these are children of slurmstepd.

Names: slurmstepd's process title `slurmstepd: [JOB.STEP]`; variables: srun(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mgpu_probes.outside.jobs import launchers
from mgpu_probes.outside.jobs.machine import Machine

_STEP = re.compile(r"^slurmstepd: \[(\d{1,10})\.(\d{1,10})[\].]")


def steps_of(machine: Machine, pids: Iterable[int]) -> tuple[int, ...]:
    """The slurmstepd processes that keep the tasks of these srun commands. Empty: none of `pids`
    is one, or nothing tells which tasks are its own."""
    here = {pid: step for pid in machine.entries if (step := _step(machine, pid)) is not None}
    found: dict[int, None] = {}
    for pid in pids:
        name = launchers.program(machine.command(pid))[0]
        if launchers.base(name) != "srun":
            continue
        job = (machine.environment(pid) or {}).get("SLURM_JOB_ID")
        of_job = [daemon for daemon, (number, _) in here.items() if job in (None, number)]
        # A step that began before this command is another's.
        began = machine.entries[pid].started
        younger = [daemon for daemon in of_job if machine.entries[daemon].started >= began]
        if len({here[daemon] for daemon in younger}) == 1:
            found.update(dict.fromkeys(younger))
    return tuple(found)


def _step(machine: Machine, pid: int) -> tuple[str, str] | None:
    command = machine.command(pid)
    match = _STEP.match(command[0]) if command else None
    return (match[1], match[2]) if match else None
