"""What a word on the command line names: a process, a recording, console text, dumps, traces."""

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
from mgpu_doctor.recording.home import LATEST, find, home, runs
from mgpu_doctor.recording.layout import BOXES, HOSTS, INFO

STANDARD_INPUT = "-"
HEAD = 1 << 16
MOST_ENTRIES = 256
"""Of a folder that are looked at to tell what it holds."""
_GZIP = b"\x1f\x8b"
_PICKLE = tuple(bytes((0x80, version)) for version in range(2, 6))
_FLIGHT = (b'"pg_config"', b'"pg_status"', b'"entries"', b"pg_config", b"pg_status", b"entries")
_SNAPSHOT = ((b"segments",), (b"segment_type", b"device_traces"))
_TRACE = (b'"traceEvents"', b'"schemaVersion"')


class UnknownSubject(ValueError):  # noqa: N818 - a noun, like NotARecording: it says what is wrong
    """Nothing that can be examined. Its text is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Pid:
    pid: int


@dataclass(frozen=True, slots=True)
class Recording:
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
    """What `torch.cuda.memory._dump_snapshot` wrote."""

    path: Path


@dataclass(frozen=True, slots=True)
class Traces:
    """What PyTorch's or TensorFlow's profiler wrote, or a folder of such files."""

    path: Path


Subject = Pid | Recording | Log | Flights | MemorySnapshot | Traces


def recognise(word: str) -> Subject:
    """What `word` names. Raises UnknownSubject."""
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
            f"no recording is kept in {home()} yet: start a job with `mgpu-doctor run -- COMMAND`."
        )
    if path.is_dir():
        return _folder(path)
    if path.exists():
        return _file(path)
    raise UnknownSubject(
        f"{word} does not exist: name a process id, a recording (its folder, its id or `latest`; "
        f"they are kept in {runs()}), a log, a flight-recorder dump, a memory snapshot or "
        "profiler traces."
    )


def _folder(path: Path) -> Subject:
    if not os.access(path, os.R_OK | os.X_OK):
        raise UnknownSubject(f"{path} cannot be read ({os.strerror(errno.EACCES)}).")
    entries = entries_below(path, path)
    names = {entry.name for entry in entries}
    if INFO in names or HOSTS in names or path.name == BOXES:
        return Recording(path)
    some = entries[:MOST_ENTRIES]
    kinds = {type(_kind(entry.path, path)) for entry in some if entry.is_file}
    if Flights in kinds:
        return Flights(path)
    if Traces in kinds or newest_profile(path) is not None:
        return Traces(path)
    if any(entry.path.suffix == BOX_SUFFIX for entry in entries):
        return Recording(path)
    if not entries:
        raise UnknownSubject(f"{path} is an empty folder: name what the job left behind.")
    return Log(str(path))


def _file(path: Path) -> Subject:
    found = _kind(path)
    if isinstance(found, UnknownSubject):
        raise found
    return found


def _kind(path: Path, root: Path | None = None) -> Subject | UnknownSubject:
    """`root`: the folder that the user named, if not the file."""
    try:
        head = _head(path, root)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        return UnknownSubject(f"{path} cannot be read ({reason}).")
    if head.startswith(MAGIC):
        return UnknownSubject(
            f"{path} is a single black box: name the recording that it belongs to, the folder "
            "above `hosts`."
        )
    if head.startswith(_PICKLE):
        return _pickle(path, head)
    # A trace names process groups, too, as dumps of the flight recorder do.
    if path.name.endswith(XPLANE) or (
        head.lstrip().startswith((b"{", b"[")) and _holds(head, _TRACE)
    ):
        return Traces(path)
    if head.lstrip().startswith(b"{") and _holds(head, _FLIGHT):
        return Flights(path)
    return Log(str(path))


def _pickle(path: Path, head: bytes) -> Subject | UnknownSubject:
    if all(_holds(head, marks) for marks in _SNAPSHOT):
        return MemorySnapshot(path)
    if _holds(head, _FLIGHT):
        return Flights(path)
    return UnknownSubject(
        f"{path} is a pickle, but no dump of torch's flight recorder and no memory snapshot, or "
        "too little of one: copy it again."
    )


def _holds(head: bytes, marks: tuple[bytes, ...]) -> bool:
    return any(mark in head for mark in marks)


def _head(path: Path, root: Path | None) -> bytes:
    """The beginning of a regular file, unpacked. A pipe is not read: who reads it empties it."""
    if not path.is_file():
        return b""
    with open(open_named(path) if root is None else open_below(root, path), "rb") as file:
        raw = file.read(HEAD)
        if not raw.startswith(_GZIP):
            return raw
        file.seek(0)
        with gzip.open(file, "rb") as unpacked:
            return unpacked.read(HEAD)
