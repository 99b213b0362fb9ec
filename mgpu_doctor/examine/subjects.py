"""Recognizes what a word on the command line names: a process, recording, log, dump or trace."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.inprocess.layout import BOX_SUFFIX, MAGIC
from mgpu_probes.outside.traces.xplane_trace import ENDING as XPLANE
from mgpu_probes.outside.untrusted_files import entries_below, open_below, open_named

from mgpu_doctor.case.profiler_traces import newest_profile
from mgpu_doctor.recording.home import LATEST, find, home, is_recording, runs, suggest_recording
from mgpu_doctor.recording.layout import BOXES, HOSTS, INFO

STANDARD_INPUT = "-"
HEAD_BYTES = 1 << 16
MAX_ENTRIES = 256
"""Entries of a folder that are opened to recognize its content."""
_GZIP = b"\x1f\x8b"
_PICKLE = tuple(bytes((0x80, version)) for version in range(2, 6))
_FLIGHT = (b'"pg_config"', b'"pg_status"', b'"entries"', b"pg_config", b"pg_status", b"entries")
_SNAPSHOT = ((b"segments",), (b"segment_type", b"device_traces"))
_TRACE = (b'"traceEvents"', b'"schemaVersion"')


class UnknownSubject(ValueError):  # noqa: N818 - a noun, like NotARecording
    """The subject cannot be examined. The message is a sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Pid:
    """A process of a running job."""

    pid: int


@dataclass(frozen=True, slots=True)
class Recording:
    """The folder of a recording."""

    path: Path


@dataclass(frozen=True, slots=True)
class Log:
    """Console text: a file, a folder of such files, or standard input."""

    path: str


@dataclass(frozen=True, slots=True)
class Flights:
    """A dump of torch's flight recorder, or a folder of them."""

    path: Path


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A file written by `torch.cuda.memory._dump_snapshot`."""

    path: Path


@dataclass(frozen=True, slots=True)
class Traces:
    """A trace written by the profiler of PyTorch or TensorFlow, or a folder of traces."""

    path: Path


Subject = Pid | Recording | Log | Flights | MemorySnapshot | Traces


def recognize(word: str) -> Subject:
    """The subject that `word` names. Raises UnknownSubject."""
    if word == STANDARD_INPUT:
        return Log(word)
    if word.isascii() and word.isdecimal() and not os.path.exists(word):
        return Pid(int(word))
    folder = find(word)
    if folder is not None:
        return Recording(folder)
    path = Path(word)
    if word == LATEST:
        raise UnknownSubject(
            f"there are no recordings in {home()} yet: start a job with "
            "`mgpu-doctor run -- COMMAND`."
        )
    if path.is_dir():
        return _recognize_folder(path)
    if path.exists():
        return _recognize_file(path)
    if hint := suggest_recording(word):
        raise UnknownSubject(f"{word} does not exist. {hint}")
    raise UnknownSubject(
        f"{word} does not exist: name a process id, a recording (its folder, its id or `latest`; "
        f"recordings are in {runs()}), a log, a flight-recorder dump, a memory snapshot or "
        "profiler traces."
    )


def _recognize_folder(path: Path) -> Subject:
    if not os.access(path, os.R_OK | os.X_OK):
        raise UnknownSubject(f"{path} cannot be read ({os.strerror(errno.EACCES)}).")
    entries = entries_below(path, path)
    names = {entry.name for entry in entries}
    if INFO in names or HOSTS in names or path.name == BOXES:
        return Recording(path)
    below = [entry.path for entry in entries if entry.is_folder and is_recording(entry.path)]
    if below and len(entries) == 1:
        return Recording(below[0])
    if len(below) == 1:
        raise UnknownSubject(
            f"{path} holds the recording {below[0].name} and other files: name one of them."
        )
    if below:
        newest = max(below, key=lambda folder: folder.name)
        raise UnknownSubject(
            f"{path} holds {len(below)} recordings: name one, such as {newest}, or compare them "
            f"with `mgpu-doctor compare {path}`."
        )
    opened = entries[:MAX_ENTRIES]
    kinds = {type(_recognize_content(entry.path, path)) for entry in opened if entry.is_file}
    if Flights in kinds:
        return Flights(path)
    if Traces in kinds or newest_profile(path) is not None:
        return Traces(path)
    if any(entry.path.suffix == BOX_SUFFIX for entry in entries):
        return Recording(path)
    if not entries:
        raise UnknownSubject(
            f"{path} is an empty folder: name a file or folder that the job wrote."
        )
    return Log(str(path))


def _recognize_file(path: Path) -> Subject:
    subject = _recognize_content(path)
    if isinstance(subject, UnknownSubject):
        raise subject
    return subject


def _recognize_content(path: Path, root: Path | None = None) -> Subject | UnknownSubject:
    """The subject in a file. `root`: the folder that the user named, if it was not the file."""
    try:
        head = _read_head(path, root)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        return UnknownSubject(f"{path} cannot be read ({reason}).")
    if head.startswith(MAGIC):
        return UnknownSubject(
            f"{path} is the black box of one rank: name its recording, the folder above `hosts`."
        )
    if head.startswith(_PICKLE):
        return _recognize_pickle(path, head)
    # Traces must come first: they name process groups, as flight-recorder dumps do.
    if path.name.endswith(XPLANE) or (
        head.lstrip().startswith((b"{", b"[")) and _contains_any(head, _TRACE)
    ):
        return Traces(path)
    if head.lstrip().startswith(b"{") and _contains_any(head, _FLIGHT):
        return Flights(path)
    return Log(str(path))


def _recognize_pickle(path: Path, head: bytes) -> Subject | UnknownSubject:
    if all(_contains_any(head, marks) for marks in _SNAPSHOT):
        return MemorySnapshot(path)
    if _contains_any(head, _FLIGHT):
        return Flights(path)
    return UnknownSubject(
        f"{path} is a pickle, but neither a flight-recorder dump nor a memory snapshot of PyTorch. "
        "If it should be one, it may be truncated: copy it again."
    )


def _contains_any(head: bytes, marks: tuple[bytes, ...]) -> bool:
    return any(mark in head for mark in marks)


def _read_head(path: Path, root: Path | None) -> bytes:
    """The beginning of a regular file, unpacked. Pipes are not read, because that empties them."""
    if not path.is_file():
        return b""
    with open(open_named(path) if root is None else open_below(root, path), "rb") as file:
        raw = file.read(HEAD_BYTES)
        if not raw.startswith(_GZIP):
            return raw
        file.seek(0)
        with gzip.open(file, "rb") as unpacked:
            return unpacked.read(HEAD_BYTES)
