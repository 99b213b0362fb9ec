"""Waits, on the first node of a job, until the other nodes have written their parts, and notes how
the job as a whole ended.

A part that is neither ended nor touched any more is of a node that was lost. The clocks of other
nodes do not matter for that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.process_watch import interval
from mgpu_doctor.recording.joint_recordings import (
    LOST,
    RUNNING,
    UNFINISHED,
    UNSEEN,
    combine_ends,
    find_parts,
)
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import write_json

EVERY = 0.2
MANY = 64
"""Nodes above which they are looked at less often: each look costs a shared disk some requests."""
FIRST = 2.0
"""Seconds for a part to appear at all."""
YOUNG = 60.0
"""Seconds from the start of a job within which parts that are fetched may not have begun to
arrive."""
SILENT = 5.0
"""Seconds without a sign of life, besides two samples, after which a node counts as lost."""
PATIENCE = 15.0
"""Seconds to wait for a node that still writes its part: it may run for hours more."""
HURRY = 3.0
"""Seconds to wait after the job was asked to end: Slurm sends SIGKILL 30 s after SIGTERM."""
SPEAKS = 3.0
"""Seconds after which the wait is announced."""


@dataclass(slots=True)
class _Pulse:
    """The last change of a part that was seen."""

    touched: float
    since: float


def await_parts(
    folder: Path,
    own: str,
    count: int,
    age: float,
    *,
    hurry: bool = False,
    still_gathers: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Waits for the parts of the other nodes. Returns those that have not ended: host -> RUNNING or
    LOST. `own`: this host; `count`: of nodes; `age`: seconds that the job has run; `hurry`: the
    job was asked to end. `still_gathers`: whether parts are being fetched from other nodes."""
    began = time.monotonic()
    quiet = 2 * interval(age) + SILENT
    pulses: dict[str, _Pulse] = {}
    ended = {own}
    spoken = False
    while True:
        now = time.monotonic()
        names = _list_parts(folder)
        ended |= {host for host in names - ended if (folder / HOSTS / host / END).exists()}
        open_ = sorted(names - ended)
        for host in open_:
            touched = _find_touched(folder, host)
            pulse = pulses.setdefault(host, _Pulse(touched, began))
            if pulse.touched != touched:
                pulses[host] = _Pulse(touched, now)
        lost = [host for host in open_ if now - pulses[host].since >= quiet]
        arriving = still_gathers() and age < YOUNG
        absent = len(names) < count and now - began < (PATIENCE if arriving else FIRST)
        runs = [host for host in open_ if host not in lost]
        most = HURRY if hurry else PATIENCE
        if not hurry and any(pulses[host].since == began for host in runs):
            most = max(most, quiet + EVERY)  # until it shows life, or counts as lost
        if not (absent or runs) or now - began >= most:
            return {host: LOST if host in lost else RUNNING for host in open_}
        if runs and not spoken and now - began >= SPEAKS:
            spoken = True
            print_message(f"waiting for the end of the job on {', '.join(runs[:8])}.")
        time.sleep(EVERY * max(1.0, len(names) / MANY))


def _list_parts(folder: Path) -> set[str]:
    try:
        names = os.listdir(folder / HOSTS)
    except OSError:
        return set()
    return {name for name in names if (folder / HOSTS / name / INFO).exists()}


def _find_touched(folder: Path, host: str) -> float:
    try:
        return (folder / HOSTS / host / INFO).stat().st_mtime
    except OSError:
        return 0.0


def finish_job(folder: Path, unfinished: Mapping[str, str], unseen: Mapping[str, str]) -> None:
    """Writes how the job ended, by the ends of its nodes. `unfinished`: what `await_parts`
    returned; `unseen`: what is not here -> why. A full disk loses this alone."""
    ends = [end for _, _, end in find_parts(folder) if end]
    if not ends:
        return
    end = combine_ends(ends)
    try:
        write_json(folder / END, {**end, UNFINISHED: dict(unfinished), UNSEEN: dict(unseen)})
    except OSError as error:
        print_message(f"the end of the job could not be recorded ({error.strerror}).")
