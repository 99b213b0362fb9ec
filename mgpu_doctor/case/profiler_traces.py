"""Traces of PyTorch's profiler, from untrusted files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from mgpu_probes.outside.traces.chrome_trace import read_trace
from mgpu_probes.outside.traces.trace_columns import Events, Kind, NotATraceError, RawTrace
from mgpu_probes.outside.traces.xplane_trace import ENDING as XPLANE
from mgpu_probes.outside.traces.xplane_trace import read_xplane
from mgpu_probes.outside.untrusted_files import entries_below

from mgpu_doctor.case.untrusted_json import text

MOST_FILES = 4_096
MOST_RANK = (1 << 20) - 1
SMALL = 24 << 20
"""Bytes of all files, up to which further processes cost more than they gain."""
MOST_READERS = 8
ENDINGS = (".json", ".json.gz", XPLANE)
PROFILES = Path("plugins/profile")
"""Where TensorFlow writes one folder per profile, below the log folder."""
File = tuple[Path, Path | None]
"""A trace, and the folder that the user named; None: the file itself."""
_RANK = re.compile(r"rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one rank's profiler."""

    source: str
    """The file's name."""
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    names: tuple[str, ...]
    """Untrusted text without control characters."""
    events: Events
    """`mgpu_probes.outside.traces.trace_columns.EVENT_DTYPE`, by start."""
    cut: str | None
    """Why a part of it could not be read; None if all was read."""
    damaged: int
    framework: str = "torch"

    @property
    def on_device(self) -> bool:
        """Whether kernels of a device are in it."""
        return bool((self.events["kind"] == Kind.KERNEL).any())


@dataclass(frozen=True, slots=True)
class UnreadTrace:
    """A file that could not be read as a trace."""

    source: str
    reason: str


def read_traces(paths: Sequence[Path]) -> Iterator[Trace | UnreadTrace]:
    """Each trace of these files and folders, or why it cannot be read."""
    files = [file for path in paths for file in _files(path)][:MOST_FILES]
    if not files:
        return
    workers = min(len(files), os.cpu_count() or 1, MOST_READERS)
    if workers < 2 or sum(_size(path) for path, _ in files) <= SMALL:
        yield from map(_read, files)
        return
    # Threads would not help: decoding holds the GIL.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(_read, files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _files(path: Path) -> Iterator[File]:
    """The file, or those of a folder whose names end as traces' do, by name."""
    if not path.is_dir():
        yield path, None
        return
    for entry in entries_below(path, newest_profile(path) or path):
        if entry.name.endswith(ENDINGS) and entry.is_file:
            yield entry.path, path


def newest_profile(folder: Path) -> Path | None:
    """The folder of the last profile that TensorFlow wrote below this one; None if none."""
    profiles = entries_below(folder, folder / PROFILES)
    return max((entry.path for entry in profiles if entry.is_folder), default=None)


def _read(file: File) -> Trace | UnreadTrace:
    path, root = file
    try:
        read = read_xplane if path.name.endswith(XPLANE) else read_trace
        trace = _trace(read(path, root), path.name)
        if not len(trace.events):
            raise NotATraceError(f"{path.name} holds no event that is known")
        return trace
    except NotATraceError as error:
        source = text(path.name) or "?"
        return UnreadTrace(source, text(str(error)) or "?")


def _trace(raw: RawTrace, name: str) -> Trace:
    source = text(name, 200) or "?"
    named = _RANK.search(source)
    rank = raw.rank if raw.rank is not None else int(named[1]) if named else None
    return Trace(
        source=source,
        rank=rank if rank is not None and 0 <= rank <= MOST_RANK else None,
        world_size=raw.world_size if 1 <= (raw.world_size or 0) <= MOST_RANK else None,
        backend=text(raw.backend, 40),
        host=text(raw.host, 256),
        names=tuple(text(name, 300) or "" for name in raw.names),
        events=raw.events,
        cut=raw.cut,
        damaged=raw.damaged,
        framework=raw.framework,
    )
