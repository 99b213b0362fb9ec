"""Loads the cases that the user names: one per job."""

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
from mgpu_doctor.case.placeholders import case_of_machine
from mgpu_doctor.case.profiler_case import case_of_flights, case_of_snapshots, case_of_traces
from mgpu_doctor.case.recording_case import NotARecording
from mgpu_doctor.case.this_machine import this_host
from mgpu_doctor.examine.device_watch import DeviceWatch
from mgpu_doctor.examine.live_targets import (
    JobEnded,
    Target,
    Tell,
    examine_target,
    find_running_targets,
    target_of_pid,
    target_of_recording,
)
from mgpu_doctor.examine.subjects import (
    Flights,
    Log,
    MemorySnapshot,
    Pid,
    Recording,
    Traces,
    UnknownSubject,
    recognize,
)
from mgpu_doctor.recording.joint_recordings import are_of_one_job

MAX_NAMES = 3
"""Subjects named on the progress line."""


def load_cases(names: Sequence[str], tell: Tell) -> list[Case]:
    """The cases that `words` name; without words, of every job that is running here. Raises
    UnknownSubject."""
    if not names:
        targets = find_running_targets()
        return _examine_all(targets, tell) if targets else [_examine_machine(tell)]
    with within_budget():
        return _load_named(names, tell)


def _load_named(names: Sequence[str], tell: Tell) -> list[Case]:
    subjects = [recognize(word) for word in names]
    tell(f"reading {', '.join(Path(word).name or word for word in names[:MAX_NAMES])}")
    targets = _find_targets(
        [subject for subject in subjects if isinstance(subject, Pid | Recording)]
    )
    logs = [subject.path for subject in subjects if isinstance(subject, Log)]
    dumps = [subject.path for subject in subjects if isinstance(subject, Flights)]
    flights = _load_flights(dumps)
    if len(targets) > 1 and (logs or flights):
        raise UnknownSubject(
            "several jobs are named, and logs and dumps belong to one: examine one job at a time."
        )
    cases = [_examine(target, tell) for target in targets]
    if logs:
        log = _load_logs(logs)
        cases = [_with_log(case, log) for case in cases] or [_require_text(log)]
    memory = _load_snapshots(
        [subject.path for subject in subjects if isinstance(subject, MemorySnapshot)]
    )
    traced = _load_traces([subject.path for subject in subjects if isinstance(subject, Traces)])
    snapshots = memory.snapshots if memory is not None else ()
    if not (cases or flights):
        if traced is not None:
            return [replace(traced, snapshots=snapshots)]
        if memory is not None:
            return [memory]
    if flights and not cases:
        return [case_of_flights(flights, str(dumps[0]))]
    return [
        _with_traces(replace(case, flights=(*case.flights, *flights), snapshots=snapshots), traced)
        for case in cases
    ]


def _examine_machine(tell: Tell) -> Case:
    """The case of a machine with GPUs on which no job is running."""
    tell("no training job is running; sampling the GPUs")
    with DeviceWatch() as watch:
        watch.wait_for_enough()
    if not watch.samples:
        raise UnknownSubject(
            "no training job is running on this machine: start one with `mgpu-doctor run -- "
            "COMMAND`, or name a recording (`latest` is the newest) or a log of an earlier job."
        )
    return case_of_machine(this_host(), watch.samples)


def _find_targets(subjects: Sequence[Pid | Recording]) -> list[Target]:
    """The jobs that are named; several processes of one job are one target."""
    targets: dict[object, Target] = {}
    for subject in subjects:
        target = (
            target_of_pid(subject.pid)
            if isinstance(subject, Pid)
            else target_of_recording(subject.path)
        )
        if isinstance(target, str):
            raise UnknownSubject(target)
        targets.setdefault(target.identity, target)
    return _join_nodes(list(targets.values()))


def _join_nodes(targets: Sequence[Target]) -> list[Target]:
    """The same targets, those of one job that its nodes recorded by themselves as one."""
    joined: list[Target] = []
    for target in targets:
        for place, known in enumerate(joined):
            folders = (known.recording, *known.others)
            if target.recording is not None and all(
                folder is not None and are_of_one_job(folder, target.recording)
                for folder in folders
            ):
                joined[place] = replace(known, others=(*known.others, target.recording))
                break
        else:
            joined.append(target)
    return joined


def _examine_all(targets: Sequence[Target], tell: Tell) -> list[Case]:
    """The cases of running jobs, examined in parallel because each takes seconds. Jobs that end
    meanwhile and unreadable recordings are left out; `tell` reports the latter."""

    def examine_one(target: Target) -> Case | None:
        try:
            return examine_target(target, tell)
        except JobEnded:
            return None
        except (NotARecording, OSError) as error:
            tell(f"skipped, as it cannot be read: {error}")
            return None

    with ThreadPoolExecutor(8, "examine") as pool:
        cases = [case for case in pool.map(examine_one, targets) if case is not None]
    if not cases:
        raise UnknownSubject("every job here ended while it was being examined: try again.")
    return cases


def _examine(target: Target, tell: Tell) -> Case:
    try:
        return examine_target(target, tell)
    except NotARecording as error:
        raise UnknownSubject(str(error)) from None
    except JobEnded:
        raise UnknownSubject("the job ended while it was being examined.") from None
    except OSError as error:
        raise UnknownSubject(f"{target.recording} cannot be read ({error.strerror}).") from None


def _load_logs(paths: Sequence[str]) -> Case:
    try:
        return load_logs(paths)
    except NotALog as error:
        raise UnknownSubject(str(error)) from None


def _require_text(log: Case) -> Case:
    """The case of a log without a recording. Raises UnknownSubject if the log is empty."""
    if not log.signs and not any(line.strip() for line in log.console.tail):
        raise UnknownSubject(
            f"{log.subject.ref} is empty: name the file with the output of the job."
        )
    return log


def _load_flights(paths: Sequence[Path]) -> tuple[Flight, ...]:
    try:
        return tuple(flight for path in paths for flight in read_flights(path))
    except NotAFlightError as error:
        raise UnknownSubject(f"{error}.") from None


def _load_snapshots(paths: Sequence[Path]) -> Case | None:
    try:
        return case_of_snapshots(paths) if paths else None
    except NotASnapshotError as error:
        raise UnknownSubject(f"{error}.") from None


def _load_traces(paths: Sequence[Path]) -> Case | None:
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
    """The case of a recorded or running job, with a log that was written elsewhere."""
    return replace(
        case,
        signs=(*case.signs, *log.signs),
        console=log.console if not case.console.tail else case.console,
        unexamined=(*case.unexamined, *log.unexamined),
    )
