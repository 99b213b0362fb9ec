"""Waits, at the end of a job of several nodes, until the other nodes have written their parts, and
notes how the job as a whole ended.

A part that is neither ended nor touched any more is of a node that was lost. The clocks of other
nodes do not matter for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.process_watch import interval
from mgpu_doctor.recording.joint_recordings import (
    LOST,
    NODE,
    RUNNING,
    UNANSWERED,
    UNFINISHED,
    UNSEEN,
    Absence,
    combine_ends,
    find_parts,
    host_of,
    list_parts,
)
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from mgpu_doctor.recording.write import write_json

EVERY = 0.2
MANY = 64
"""Parts above which they are looked at less often: each look costs a shared disk some requests."""
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
    lost: Collection[str] = (),
    still_gathers: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Waits for the parts of the others. Returns the hosts on which the job has not ended: RUNNING
    or LOST. `own`: this part; `count`: of parts; `age`: seconds that the job has run; `hurry`: the
    job was asked to end; `lost`: parts that are not waited for. `still_gathers`: whether parts are
    being fetched from other nodes."""
    began = time.monotonic()
    quiet = find_patience(age)
    pulses = {part: _Pulse(_find_touched(folder, part), began - quiet) for part in lost}
    ended = {own}
    spoken = False
    while True:
        now = time.monotonic()
        names = set(list_parts(folder))
        ended |= {part for part in names - ended if _has_ended(folder, part)}
        open_ = sorted(names - ended)
        for part in open_:
            touched = _find_touched(folder, part)
            pulse = pulses.setdefault(part, _Pulse(touched, began))
            if pulse.touched != touched:
                pulses[part] = _Pulse(touched, now)
        runs = [part for part in open_ if now - pulses[part].since < quiet]
        arriving = still_gathers() and age < YOUNG
        absent = len(names) < count and now - began < (PATIENCE if arriving else FIRST)
        most = HURRY if hurry else PATIENCE
        if not hurry and any(pulses[part].since == began for part in runs):
            most = max(most, quiet + EVERY)  # until it shows life, or counts as lost
        if not (absent or runs) or now - began >= most:
            alive = {host_of(part) for part in (*runs, *ended)}  # the others lost a process alone
            return {host_of(part): RUNNING if host_of(part) in alive else LOST for part in open_}
        if runs and not spoken and now - began >= SPEAKS:
            spoken = True
            hosts = sorted({host_of(part) for part in runs})
            print_message(f"waiting for the end of the job on {', '.join(hosts[:8])}.")
        time.sleep(EVERY * max(1.0, len(names) / MANY))


def list_before(folder: Path, number: int) -> tuple[str, ...]:
    """The parts of nodes with lower numbers, of their first tasks, in order. `number`: of this
    node."""
    earlier: dict[int, str] = {}
    for part, info, _ in find_parts(folder):
        node = info.get(NODE)
        if host_of(part) == part and isinstance(node, int) and 0 <= node < number:
            earlier[node] = part
    return tuple(earlier[node] for node in sorted(earlier))


def are_lost(folder: Path, own: str, parts: Sequence[str], age: float) -> bool:
    """Whether the nodes of all these parts are lost; no, if one of them lives or has ended. Waits
    for the first until it shows life or counts as lost, then for the next one. `own`: this part,
    touched as often; `age`: seconds that the job has run."""
    if any(_has_ended(folder, part) for part in parts):
        return False
    began, last, quiet = time.monotonic(), _find_touched(folder, own), find_patience(age)
    for part in parts:
        touched = _find_touched(folder, part)
        while last - touched + time.monotonic() - began < quiet:
            if _has_ended(folder, part) or _find_touched(folder, part) != touched:
                return False
            time.sleep(EVERY * max(1.0, len(parts) / MANY))
    return True


def find_patience(age: float) -> float:
    """Seconds without a sign of life after which a node of a job of this age counts as lost."""
    return 2 * interval(age) + SILENT


def _has_ended(folder: Path, part: str) -> bool:
    return (folder / HOSTS / part / END).exists()


def _find_touched(folder: Path, part: str) -> float:
    try:
        return (folder / HOSTS / part / INFO).stat().st_mtime
    except OSError:
        return 0.0


def list_unfinished(folder: Path) -> dict[str, str]:
    """Hosts on which the job has not ended, as far as this node knows, without waiting."""
    open_ = (part for part in list_parts(folder) if not _has_ended(folder, part))
    return {host_of(part): RUNNING for part in open_}


def finish_job(folder: Path, unfinished: Mapping[str, str], unseen: Mapping[str, Absence]) -> None:
    """Writes how the job ended, by the ends of its nodes. `unfinished`: what `await_parts`
    returned; `unseen`: what is not here -> why. A full disk loses this alone."""
    ends = [end for _, _, end in find_parts(folder) if end]
    if not ends:
        return
    absent = {
        UNSEEN: {name: absence.why for name, absence in unseen.items()},
        UNANSWERED: [name for name, absence in unseen.items() if absence.silent],
    }
    try:
        write_json(folder / END, {**combine_ends(ends), UNFINISHED: dict(unfinished), **absent})
    except OSError as error:
        print_message(f"the end of the job could not be recorded ({error.strerror}).")
