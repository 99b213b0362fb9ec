"""Loads everything that the user names into cases: one case per job."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from mgpu_probes.outside.torch_pickles import NotAFlightError, NotASnapshotError
from mgpu_probes.outside.traces.trace_columns import NotATraceError
from mgpu_probes.outside.untrusted_files import within_budget

from mgpu_doctor.case.flight_records import Flight, read_flights
from mgpu_doctor.case.log_case import NotALog, load_logs
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.profiler_case import case_of_flights, case_of_snapshots, case_of_traces
from mgpu_doctor.case.recording_case import NotARecording
from mgpu_doctor.examine.live_targets import (
    EndedMeanwhile,
    Target,
    Tell,
    everything,
    examine,
    of_pid,
    of_recording,
)
from mgpu_doctor.examine.subjects import (
    Flights,
    Log,
    MemorySnapshot,
    Pid,
    Recording,
    Traces,
    UnknownSubject,
    recognise,
)

MOST_TOLD = 3
"""Names of what is read, on one line."""


def cases(words: Sequence[str], tell: Tell) -> list[Case]:
    """The cases that `words` name, none: every job that runs here. Raises UnknownSubject."""
    if not words:
        targets = everything()
        if not targets:
            raise UnknownSubject(
                "no training job runs on this machine: start one with `mgpu-doctor run -- "
                "COMMAND`, or name what an earlier one left (a recording, `latest`, a log)."
            )
        return _all(targets, tell)
    with within_budget():
        return _named(words, tell)


def _named(words: Sequence[str], tell: Tell) -> list[Case]:
    subjects = [recognise(word) for word in words]
    tell(f"reading {', '.join(Path(word).name or word for word in words[:MOST_TOLD])}")
    targets = _targets([one for one in subjects if isinstance(one, Pid | Recording)])
    logs = [subject.path for subject in subjects if isinstance(subject, Log)]
    flights = _flights([one.path for one in subjects if isinstance(one, Flights)])
    if len(targets) > 1 and (logs or flights):
        raise UnknownSubject(
            "logs and dumps belong to one job, and several are named: examine one at a time."
        )
    found = [_examined(target, tell) for target in targets]
    if logs:
        found = [_with_log(case, _log(logs)) for case in found] or [_told(_log(logs))]
    snapshots = _snapshots([one.path for one in subjects if isinstance(one, MemorySnapshot)])
    traced = _traces([one.path for one in subjects if isinstance(one, Traces)])
    if traced is not None and not (found or flights):
        held = snapshots.snapshots if snapshots is not None else ()
        return [replace(traced, snapshots=held)]
    if snapshots is not None and not (found or flights):
        return [snapshots]
    if flights and not found:
        reference = next(str(one.path) for one in subjects if isinstance(one, Flights))
        return [case_of_flights(flights, reference)]
    held = snapshots.snapshots if snapshots is not None else ()
    return [
        _with_traces(replace(case, flights=(*case.flights, *flights), snapshots=held), traced)
        for case in found
    ]


def _targets(subjects: Sequence[Pid | Recording]) -> list[Target]:
    """Several processes of one job are one target."""
    found: dict[object, Target] = {}
    for subject in subjects:
        target = of_pid(subject.pid) if isinstance(subject, Pid) else of_recording(subject.path)
        if isinstance(target, str):
            raise UnknownSubject(target)
        found.setdefault(target.identity, target)
    return list(found.values())


def _all(targets: Sequence[Target], tell: Tell) -> list[Case]:
    """At once: each is looked at for seconds. Those that end meanwhile are left out, and so is a
    recording that cannot be read, which is said."""

    def one(target: Target) -> Case | None:
        try:
            return examine(target, tell)
        except EndedMeanwhile:
            return None
        except (NotARecording, OSError) as error:
            tell(f"left out, as it cannot be read: {error}")
            return None

    with ThreadPoolExecutor(8, "examine") as pool:
        found = [case for case in pool.map(one, targets) if case is not None]
    if not found:
        raise UnknownSubject("every job that ran here ended while it was looked at: try again.")
    return found


def _examined(target: Target, tell: Tell) -> Case:
    try:
        return examine(target, tell)
    except NotARecording as error:
        raise UnknownSubject(str(error)) from None
    except EndedMeanwhile:
        raise UnknownSubject("the job ended while it was looked at.") from None
    except OSError as error:
        raise UnknownSubject(f"{target.recording} cannot be read ({error.strerror}).") from None


def _log(paths: Sequence[str]) -> Case:
    try:
        return load_logs(paths)
    except NotALog as error:
        raise UnknownSubject(str(error)) from None


def _told(log: Case) -> Case:
    """Text that stands alone must say something: an empty one examines nothing."""
    if not log.signs and not any(line.strip() for line in log.console.tail):
        raise UnknownSubject(
            f"{log.subject.ref} is empty: name the file that the job's output went to."
        )
    return log


def _flights(paths: Sequence[Path]) -> tuple[Flight, ...]:
    try:
        return tuple(flight for path in paths for flight in read_flights(path))
    except NotAFlightError as error:
        raise UnknownSubject(f"{error}.") from None


def _snapshots(paths: Sequence[Path]) -> Case | None:
    try:
        return case_of_snapshots(paths) if paths else None
    except NotASnapshotError as error:
        raise UnknownSubject(f"{error}.") from None


def _traces(paths: Sequence[Path]) -> Case | None:
    try:
        return case_of_traces(paths) if paths else None
    except NotATraceError as error:
        raise UnknownSubject(f"{error}.") from None
    except OSError as error:
        raise UnknownSubject(f"{paths[0]} cannot be read ({error.strerror}).") from None


def _with_traces(case: Case, traced: Case | None) -> Case:
    if traced is None:
        return case
    unexamined = (*case.unexamined, *traced.unexamined)
    return replace(case, traces=traced.traces, unexamined=unexamined)


def _with_log(case: Case, log: Case) -> Case:
    """A recorded or running job, and what was printed of it elsewhere."""
    return replace(
        case,
        signs=(*case.signs, *log.signs),
        console=log.console if not case.console.tail else case.console,
        unexamined=(*case.unexamined, *log.unexamined),
    )
