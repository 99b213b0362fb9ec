"""Traces of PyTorch's profiler, from files that may be a stranger's."""

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
from mgpu_probes.outside.untrusted_files import entries_below, within_budget

from mgpu_doctor.case.blank import blank_job, blank_rank
from mgpu_doctor.case.files import text
from mgpu_doctor.case.model import Case, Subject, Unexamined

MOST_FILES = 4_096
MOST_RANK = (1 << 20) - 1
SMALL = 24 << 20
"""Bytes of all files, up to which further processes cost more than they gain."""
MOST_READERS = 8
ENDINGS = (".json", ".json.gz", XPLANE)
PROFILES = Path("plugins/profile")
"""Where TensorFlow puts a folder a profile, below the one it is told."""
File = tuple[Path, Path | None]
"""A trace, and the folder that the user named; None: the file itself."""
_RANK = re.compile(r"rank[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank's profiler wrote down."""

    source: str
    """The file's name."""
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    names: tuple[str, ...]
    """A stranger's, made harmless."""
    events: Events
    """`mgpu_probes.outside.traces.trace_columns.EVENT_DTYPE`, by start."""
    cut: str | None
    """Why not all of it could be read."""
    damaged: int
    framework: str = "torch"

    @property
    def on_device(self) -> bool:
        """Whether kernels of a device are in it."""
        return bool((self.events["kind"] == Kind.KERNEL).any())


def case_of_traces(paths: Sequence[Path]) -> Case:
    """A case of nothing else: files, or folders of them. Raises NotATraceError."""
    name = str(paths[0])
    with within_budget():
        read = list(_read_all(paths))
    traces = _one_a_rank([one for one in read if isinstance(one, Trace)])
    unread = [one for one in read if isinstance(one, Unexamined)]
    if not traces:
        raise NotATraceError(f"{name} holds no trace: {unread[0].reason if unread else 'no file'}")
    worlds = [one.world_size for one in traces if one.world_size is not None]
    world = max(worlds, default=len(traces))
    return Case(
        subject=Subject("trace", name),
        job=blank_job(
            name,
            framework=traces[0].framework,
            world_size=world,
            hosts=tuple(sorted({one.host for one in traces if one.host})),
        ),
        observed=0.0,
        ranks=tuple(
            blank_rank(
                rank=one.rank,
                world_size=world,
                host=one.host or "",
                device=None if one.on_device else "cpu",
            )
            for one in traces
        ),
        traces=tuple(traces),
        unexamined=(*unread, *_gaps(traces, world), *_left_out(read, traces)),
    )


def _read_all(paths: Sequence[Path]) -> Iterator[Trace | Unexamined]:
    files = [file for path in paths for file in _files(path)][:MOST_FILES]
    if not files:
        return
    workers = min(len(files), os.cpu_count() or 1, MOST_READERS)
    if workers < 2 or sum(_size(path) for path, _ in files) <= SMALL:
        yield from map(_read, files)
        return
    # Threads would not do: decoding holds the interpreter's lock.
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
    """The folder of the last profile that TensorFlow wrote below this one; None: of none."""
    profiles = entries_below(folder, folder / PROFILES)
    return max((entry.path for entry in profiles if entry.is_folder), default=None)


def _read(file: File) -> Trace | Unexamined:
    path, root = file
    try:
        read = read_xplane if path.name.endswith(XPLANE) else read_trace
        found = _trace(read(path, root), path.name)
        if not len(found.events):
            raise NotATraceError(f"{path.name} holds no event that is known")
        return found
    except NotATraceError as error:
        source = text(path.name) or "?"
        return Unexamined(f"trace {source}", text(str(error)) or "?", "write it anew")


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
        names=tuple(text(one, 300) or "" for one in raw.names),
        events=raw.events,
        cut=raw.cut,
        damaged=raw.damaged,
        framework=raw.framework,
    )


def _one_a_rank(traces: Sequence[Trace]) -> list[Trace]:
    """Of several of one rank the newest; without numbers each is a rank of its own."""
    newest: dict[object, Trace] = {}
    for one in traces:
        key = one.rank if one.rank is not None else one.source
        other = newest.get(key)
        if other is None or _begin(one) > _begin(other):
            newest[key] = one
    return sorted(newest.values(), key=lambda one: (one.rank is None, one.rank or 0, one.source))


def _begin(trace: Trace) -> int:
    return int(trace.events["start"][0]) if len(trace.events) else -1


def _left_out(read: Sequence[object], kept: Sequence[Trace]) -> Iterator[Unexamined]:
    several = sum(isinstance(one, Trace) for one in read) - len(kept)
    if several:
        yield Unexamined(
            "older traces",
            f"{several} of the files are of ranks that have a newer one, which was examined",
            "name one file a rank to examine others",
        )


def _gaps(traces: Sequence[Trace], world: int) -> Iterator[Unexamined]:
    for one in traces:
        if one.cut or one.damaged:
            lost = f"{one.damaged} of its events could not be understood" if one.damaged else ""
            why = "; ".join(part for part in (one.cut, lost) if part)
            yield Unexamined(
                f"rest of {one.source}", why, "export the trace again, or copy it again"
            )
    known = {one.rank for one in traces if one.rank is not None}
    missing = sorted(set(range(min(world, MOST_FILES))) - known)
    if known and missing:
        listed = ", ".join(map(str, missing[:8]))
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        yield Unexamined(
            "missing ranks",
            f"no trace of rank {listed}{more} of {world}",
            "let every rank export its trace (torch.profiler.tensorboard_trace_handler does), and "
            "hand over the folder",
        )
