"""Converts a recording to a Case: live, finished, or left behind by a job that was killed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.untrusted_files import entries_below, within_budget
from msgspec import Meta

from mgpu_doctor.case import box_files, box_ranks, captured_console, outcomes, untrusted_json
from mgpu_doctor.case.attempts import last_sign_of_life, list_beside, split_attempts
from mgpu_doctor.case.device_samples import DeviceReader, DeviceSample
from mgpu_doctor.case.ending_gaps import read_endings, unread_log
from mgpu_doctor.case.ending_records import Ending
from mgpu_doctor.case.flight_records import Flight, read_folder
from mgpu_doctor.case.host_samples import HostSample, decode_host_sample
from mgpu_doctor.case.job_facts import (
    asked_hosts_of,
    command_of,
    ending,
    gaps_of,
    job_of,
    reported_by_launcher,
)
from mgpu_doctor.case.job_snapshots import PIDS, JobSnapshot, decode_job_snapshot
from mgpu_doctor.case.joint_parts import join_looks, read_parts
from mgpu_doctor.case.lenient_json import Moment, Positive, line_decoder
from mgpu_doctor.case.log_case import signs_of
from mgpu_doctor.case.model import (
    Case,
    Gap,
    JobEnd,
    LostHost,
    Outcome,
    ProcessEnd,
    Rank,
    Subject,
    Unexamined,
)
from mgpu_doctor.case.this_machine import here, launcher_alive, this_host
from mgpu_doctor.case.treatment_proofs import read_applied, read_tried
from mgpu_doctor.case.untrusted_json import Json
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.box import Box, BoxFile, read_box
from mgpu_doctor.recording.live_recordings import read_tasks
from mgpu_doctor.recording.parallel_boxes import reading
from mgpu_doctor.recording.second_process import in_order

MOST_SAMPLES_BYTES = 16 << 20
"""Of all hosts' samples together, which take 2.5 times as much memory: 1.6 hours of one host whose
80 processes are sampled every second. Most numbers in them are counted since a start: fewer samples
show them at fewer moments. A choice."""


class NotARecording(ValueError):  # noqa: N818 - a name of the house's interface
    """The path is not a recording. Its text is one sentence that says what to do."""


def load_recording(
    path: Path,
    until: float | None = None,
    read: Callable[[BoxFile], Box] = read_box,
    others: Sequence[Path] = (),
) -> Case:
    """A case with everything in the recording at `path`. `others`: recordings of the same job by
    other nodes.

    `until`: seconds since the epoch; only what was known then (replay). Works on a recording whose
    job still runs, on one without an end because everything was killed, and on a folder of boxes
    alone. What cannot be read is listed under `unexamined`. `read`: reads a box, like `read_box`;
    who looks again and again keeps the readers, and the console of a job that runs is then not
    searched for signs. Raises NotARecording.
    """
    with within_budget():
        return _load((Path(path), *others), until, read)


def _load(roots: tuple[Path, ...], until: float | None, read: Callable[[BoxFile], Box]) -> Case:
    path = roots[0]
    unexamined: list[Unexamined] = []
    lines = RecordedLines(unexamined)
    info = _info(path, unexamined)
    hosts = _choose_hosts(roots)
    by_root = {root: [host for host in hosts if host.parent.parent == root] for root in roots}
    own = {root: _own_info(root) or (info if root == path else {}) for root in roots}
    found = _find_boxes(roots, own, hosts)
    with reading(found, read) as read_all:  # boxes are read meanwhile
        parts = read_parts(roots, hosts)
        end = ending(parts.end or _object(path / layout.END, path), until)
        files = _read_host_files(by_root, hosts, parts.over, with_streams=until is None or end.over)
        boxes = box_files.BoxReports()
        readable: Iterable[tuple[int, Box]] = boxes.keep_readable(read_all())
        if until is None and not end.over:  # ranks may end meanwhile: how is read afterwards
            readable = list(readable)
        moment = box_ranks.Moment(
            here=here(path),
            exits=_exits(lines, hosts),
            over=end.over,
            until=until,
            over_on=parts.over,
        )
        ranks = {place: box_ranks.rank_of(box, moment) for place, box in readable}
    unexamined += boxes.unreadable()
    attempts = split_attempts([rank for rank in in_order(ranks) if rank is not None])
    current = list(attempts.last)
    console, asked = captured_console.console(files.streams, current)
    end = reported_by_launcher(end, asked)
    if info.get("kind") != layout.GATHERED:
        current = outcomes.with_missing(current, command_of(info))
    current = [outcomes.with_logged_end(rank, console.ends) for rank in current]
    if end.over and end.exit_code == 0 and end.asked is None:
        current = [outcomes.completed(rank) for rank in current]
    job = job_of(
        path,
        info,
        end=end,
        ranks=current,
        earlier=attempts.earlier,
        launcher_alive=launcher_alive(own[path], end, until),
    )
    unexamined += (*files.gaps, *list_beside(attempts), *files.later_gaps)
    current = _number_pids(current, files.snapshots)
    endings: list[Ending] = []
    unread: list[Unexamined] = []
    for root, of_root in by_root.items():
        some, gaps = read_endings(of_root, until, root=root)
        endings += some
        unread += gaps
    if job.outcome not in (Outcome.RUNNING, Outcome.COMPLETED):
        unexamined += unread
    unexamined += unread_log(files.device_samples, {gap.gap for gap in unexamined})
    if not boxes.count and info.get("kind") == layout.WATCH:
        unexamined.append(_NO_JOB)
    elif not boxes.count and info.get("probe") is not False:
        unexamined.append(_NO_BOX)
    elif not boxes.count and (why := untrusted_json.text(info.get("no_probe"), 500)):
        remedy = "set TMPDIR to a folder on a local disk (ext4, xfs, tmpfs), and run the job again"
        unexamined.append(Unexamined("in-process probe", why, remedy, Gap.PROCESS_PROBE))
    asked_hosts = asked_hosts_of(info)
    unexamined += (*boxes.stopped(), *parts.gaps, *gaps_of(asked_hosts))
    if info.get("console_file") and not end.over and job.outcome is not Outcome.RUNNING:
        unexamined.append(_NO_COPY)
    return Case(
        subject=Subject("recording", str(path)),
        job=job,
        observed=_observed(job.outcome, end, current, until),
        ranks=tuple(current),
        earlier=attempts.earlier,
        ends=tuple(
            end_
            for ends in moment.exits.values()
            for end_, _ in ends
            if until is None or end_.at <= until
        ),
        console=console,
        host_samples=tuple(s for s in files.host_samples if until is None or s.at <= until),
        device_samples=tuple(s for s in files.device_samples if until is None or s.at <= until),
        endings=tuple(endings),
        job_snapshots=tuple(
            snapshot for snapshot in files.snapshots if until is None or snapshot.at <= until
        ),
        flights=_flights(hosts, until, unexamined),
        signs=signs_of(files.streams, console.ends if job.outcome is Outcome.FAILED else None)
        if end.over or read is read_box
        else (),
        tried=read_tried(path),
        applied=read_applied(
            info,
            [treated for rank in current for treated in rank.metadata.treatments]
            if job.outcome is not Outcome.RUNNING
            else (),
        ),
        lost_hosts=tuple(
            LostHost(name, _find_last_record(name, current, files.host_samples))
            for name in (parts.lost if until is None else ())
        ),
        asked_hosts=(*asked_hosts, *parts.absent),
        unexamined=tuple(unexamined),
    )


class _HostFiles(NamedTuple):
    """What lies beside the boxes of the hosts. `gaps`, `later_gaps`: what of it cannot be read."""

    streams: Mapping[str, list[str]]
    host_samples: Sequence[HostSample]
    device_samples: Sequence[DeviceSample]
    snapshots: Sequence[JobSnapshot]
    gaps: Sequence[Unexamined]
    later_gaps: Sequence[Unexamined]


def _read_host_files(
    by_root: Mapping[Path, Sequence[Path]],
    hosts: Sequence[Path],
    over: Mapping[str, bool],
    *,
    with_streams: bool,
) -> _HostFiles:
    """`hosts`: their folders, also by recording; `over`: host -> whether its part ended."""
    gaps: list[Unexamined] = []
    streams: dict[str, list[str]] = {}
    for root, of_root in by_root.items() if with_streams else ():
        streams |= captured_console.read_streams(root, hosts=of_root, unexamined=gaps)
    lines, later = RecordedLines(gaps), RecordedLines([])
    return _HostFiles(
        streams,
        lines.of(hosts, layout.HOST_SAMPLES, decode_host_sample, most=MOST_SAMPLES_BYTES),
        [
            sample
            for host in hosts  # each with its own reader: a line may refer to earlier ones
            for sample in later.of([host], layout.DEVICE_SAMPLES, DeviceReader(host.name).decode)
        ],
        join_looks(
            {host.name: later.of([host], layout.LOOKS, decode_job_snapshot) for host in hosts},
            over,
        ),
        gaps,
        later.unexamined,
    )


def _choose_hosts(roots: Iterable[Path]) -> list[Path]:
    """A folder of each host. Of copies in several recordings, one that was brought to its end."""
    chosen: dict[str, Path] = {}
    for root in roots:
        for host in box_files.host_folders(root):
            if host.name not in chosen or not (chosen[host.name] / layout.END).is_file():
                chosen[host.name] = host
    return list(chosen.values())


def _find_boxes(
    roots: Sequence[Path], infos: Mapping[Path, Mapping[str, Json]], hosts: Sequence[Path]
) -> list[BoxFile]:
    """The boxes of all recordings. Of copies of a box, that of the host's folder in `hosts`."""
    found: dict[str, BoxFile] = {}
    chosen = frozenset(hosts)
    for root in roots:
        for file in box_files.find_boxes(root, (infos[root], *read_tasks(root))):
            if file.path.name not in found or file.path.parent.parent in chosen:
                found[file.path.name] = file
    return list(found.values())


def _number_pids(ranks: Iterable[Rank], snapshots: Sequence[JobSnapshot]) -> list[Rank]:
    """The ranks with what snapshots of several hosts add to their pids."""
    hosts = snapshots[-1].hosts if snapshots else ()
    above = {host: number * PIDS for number, host in enumerate(hosts)}
    return (
        [replace(rank, pids_above=above.get(rank.host, 0)) for rank in ranks] if above else [*ranks]
    )


_NO_JOB = Unexamined(
    "in-process probe",
    "GPUs and host alone were recorded, by `top --record`: no job was watched",
    "play it with `mgpu-doctor top --replay`; start jobs with `mgpu-doctor run -- COMMAND`",
    Gap.PROCESS_PROBE,
)
_NO_BOX = Unexamined(
    "in-process probe",
    "no process became a rank: none joined a process group or took a training step",
    "check the job's output: it may have ended before its first step, or use a framework that the "
    "probe does not know. A script that sets PYTHONPATH must keep what was there "
    "(`PYTHONPATH=FOLDER:$PYTHONPATH`): the probe comes by it; `python -E`, `-I` and `-S` leave it "
    "out",
    Gap.PROCESS_PROBE,
)
_NO_COPY = Unexamined(
    "console log",
    "the job printed to its own files, and was killed before they were copied here",
    "examine both at once: `mgpu-doctor diagnose RECORDING FILE`",
)


def _info(path: Path, unexamined: list[Unexamined]) -> Mapping[str, Json]:
    if not path.exists():
        raise NotARecording(
            f"{path} does not exist; `latest` means the newest recording kept here."
        )
    if not path.is_dir():
        raise NotARecording(
            f"{path} is a file; a recording is the folder that `mgpu-doctor run` made."
        )
    try:
        info = untrusted_json.read_object(path / layout.INFO, root=path)
    except FileNotFoundError:
        if box_files.find_boxes(path, ()):
            return {}
        raise NotARecording(
            f"{path} is not a recording: it contains neither {layout.INFO} nor black boxes; "
            "make one with `mgpu-doctor run -- COMMAND`."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if not box_files.find_boxes(path, ()):
            raise NotARecording(
                f"{path / layout.INFO} cannot be read ({reason}) and there are no black boxes "
                "beside it; look at the folder's permissions or record the job again."
            ) from None
        unexamined.append(
            Unexamined(layout.INFO, f"it cannot be read: {reason}", "the boxes alone were examined")
        )
        return {}
    schema = untrusted_json.text(info.get("schema"), 100)
    if schema != layout.SCHEMA:
        unexamined.append(
            Unexamined(
                layout.INFO,
                f"it is of the format {schema or 'unknown'}, this version reads {layout.SCHEMA}",
                "upgrade mgpu-doctor if the recording is newer",
            )
        )
    return info


def _find_last_record(
    host: str, ranks: Iterable[Rank], samples: Iterable[HostSample]
) -> float | None:
    """When anything of a host was last recorded."""
    signs = [last_sign_of_life(rank) for rank in ranks if rank.host == host]
    signs += [sample.at for sample in samples if sample.host == host]
    return max((sign for sign in signs if sign is not None), default=None)


def _own_info(root: Path) -> Mapping[str, Json]:
    """The `recording.json` of this host's part, where several nodes write into a recording."""
    return _object(root / layout.HOSTS / this_host() / layout.INFO, root)


def _object(path: Path, root: Path) -> Mapping[str, Json]:
    try:
        return untrusted_json.read_object(path, root=root)
    except (OSError, ValueError):
        return {}


class _Exit(msgspec.Struct):
    """A line of `exits.jsonl`."""

    pid: Positive
    at: Moment
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    start_ticks: Positive | None = None


_decode_exit = line_decoder(_Exit)


def _exits(lines: RecordedLines, hosts: list[Path]) -> box_ranks.Exits:
    exits: dict[tuple[str, int], list[tuple[ProcessEnd, int | None]]] = defaultdict(list)
    for host in hosts:
        for line in lines.of([host], layout.EXITS, _decode_exit):
            end = ProcessEnd(line.pid, line.exit_code, line.signal, line.at)
            known = exits[host.name, end.pid]
            if line.start_ticks is None or all(line.start_ticks != ticks for _, ticks in known):
                known.append((end, line.start_ticks))  # the first line of a process saw its end
    return exits


def _flights(
    hosts: Iterable[Path], until: float | None, unexamined: list[Unexamined]
) -> tuple[Flight, ...]:
    """The flight-recorder dumps of the ranks while the job hung."""
    flights: list[Flight] = []
    for host in hosts:
        root, folder = host.parent.parent, host / layout.FLIGHT
        if entries_below(root, folder):
            try:
                flights += read_folder(folder, root=root)
            except NotAFlightError as error:
                remedy = "nothing: the rest of the recording was examined"
                unexamined.append(Unexamined(layout.FLIGHT, str(error), remedy))
    return tuple(flight for flight in flights if until is None or (flight.at or 0.0) <= until)


def _observed(outcome: Outcome, end: JobEnd, current: list[Rank], until: float | None) -> float:
    if until is not None:
        return until
    if outcome is Outcome.RUNNING:
        return time.time()
    signs = [end.at, *(rank.ended for rank in current), *map(last_sign_of_life, current)]
    return max((sign for sign in signs if sign is not None), default=time.time())


EXAMINED = "nothing: the other lines were examined"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordedLines:
    """Reads lines of recordings. What cannot be read is added to `unexamined`."""

    unexamined: list[Unexamined]

    def of(
        self,
        hosts: Sequence[Path],
        name: str,
        decode: Callable[[bytes], T | None],
        most: int | None = None,
    ) -> list[T]:
        """The facts in the files of this name. `decode`: one line to a fact; `most`: bytes of all
        hosts together from which on only every second, third, … line is decoded."""
        facts: list[T] = []
        bad = 0
        left_out = None
        share = None if most is None else max(1, most // max(1, len(hosts)))
        for host in hosts:
            lines = untrusted_json.read_lines(
                host / name, decode, root=host.parent.parent, most=share
            )
            facts += lines.facts
            bad += lines.bad
            left_out = left_out or lines.left_out
        if left_out is not None:
            self.unexamined.append(Unexamined(name, f"the rest was left out: {left_out}", EXAMINED))
        if bad:
            self.unexamined.append(Unexamined(name, f"{bad} of its lines cannot be read", EXAMINED))
        return facts
