"""The collectives of each rank, as recorded by torch's flight recorder. Facts only.

One form for the JSON and the pickled dumps, of torch 2.4 to 2.13, gloo and NCCL, from torch's own
files or from a recording's `flight/`. Parsing dumps is `mgpu_probes.outside.flight`'s work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from mgpu_probes.outside.flight.flight_dumps import read_dump
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.untrusted_files import entries_below, within_budget
from msgspec import Meta

from mgpu_doctor.case.lenient_json import Json, Moment, Positive, Whole, reader
from mgpu_doctor.case.user_code import is_user_code

MOST_FILES = 16_384
MOST_FOLDERS = 4_096
MOST_COLLECTIVES = 100_000
MOST_PLACES = 50_000
MOST_FRAMES = 128
MOST_GROUPS = 4_096
MOST_RANKS = 1 << 17
MOST_RANK = (1 << 20) - 1
MOST_TEXT = 400
MOST_TENSORS = 1_024
MOST_DIMENSIONS = 64
REMEMBERED = 64
"""Dumps kept in memory: a live view reads them every few seconds, and a dump takes longer to read
than the rest of a recording."""

Place = tuple[str, int | None, str]


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the recorder. None: this version or backend does not record it."""

    group: str
    """Name of the process group (`0`, `1`, …); its members are in `Flight.groups`."""
    sequence: int | None
    """Number of the collective in its group, the same on all its ranks."""
    operation: str
    """`all_reduce`, `broadcast`, `send 0->1`, … without the backend's name."""
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of the input tensors."""
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    """Types of the inputs, then of the outputs."""
    state: str | None
    """`scheduled`, `started`, `completed`; gloo always says scheduled: see `retired`."""
    retired: bool | None
    created: float | None
    """Seconds since the epoch at which the call was made."""
    site: tuple[str, int | None, str] | None
    """File, line and function of the innermost frame of the user's own code."""
    frames: tuple[tuple[str, int | None, str], ...] = ()
    """The call's whole stack, innermost first, where it was recorded."""
    timeout: float | None = None
    """Seconds."""
    p2p: bool = False
    backend: str | None = None
    """`nccl`, `gloo`, …: a group may have several, and each counts for itself."""
    started: float | None = None
    """Seconds since the epoch at which NCCL was seen to have begun it; before, it is queued."""
    duration: float | None = None
    """Seconds from this rank's arrival to the end, by events on its device. Only jobs that time
    their collectives record it."""


class Progress(NamedTuple):
    """How far a rank is in a group, by the recorder's own count."""

    enqueued: Whole | None = None
    started: Whole | None = None
    completed: Whole | None = None


@dataclass(frozen=True, slots=True)
class Flight:
    """One rank's dump. `collectives`: oldest first."""

    rank: int | None
    source: str
    """File name, or `worker socket`."""
    version: str | None
    collectives: tuple[Collective, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Group name -> ranks that are in it."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    at: float | None = None
    """The latest time at which it may have been dumped."""
    host: str | None = None
    pid: int | None = None
    lost: int = 0
    """Entries that the recorder no longer holds or that could not be read."""
    unseen: int = 0
    """Operations that it counted and did not record, as gloo's sends and receives (torch 2.13)."""
    slack: float = 0.0
    """Seconds by which it may have been dumped before `at`."""


_Text = Annotated[str, Meta(max_length=MOST_TEXT)]
_Name = Annotated[str, Meta(max_length=32)]
_Rank = Annotated[int, Meta(ge=0, le=MOST_RANK)]
_Shape = Annotated[tuple[Whole, ...], Meta(max_length=MOST_DIMENSIONS)]
_Shapes = Annotated[tuple[_Shape, ...], Meta(max_length=MOST_TENSORS)]
_Ranks = Annotated[tuple[_Rank, ...], Meta(max_length=MOST_RANKS)]


class _Place(NamedTuple):
    """A line of code, as dumps list it."""

    file: _Text = "?"
    line: Whole | None = None
    function: _Text = "?"


_read_place = reader(_Place)


class _ListedPlace:
    """A place that stays in its list even if it cannot be read: stacks hold indices."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    def from_json(cls, value: Json) -> _ListedPlace:
        """Never fails."""
        place = _read_place(value) or _Place()
        return cls((place.file, place.line, place.function))


class _Entry(msgspec.Struct):
    """A collective in the normalized form."""

    group: _Text = "?"
    sequence: Whole | None = None
    operation: _Text = "?"
    inputs: _Shapes = ()
    outputs: _Shapes = ()
    dtypes: Annotated[tuple[_Name, ...], Meta(max_length=2 * MOST_TENSORS)] = ()
    state: _Name | None = None
    retired: bool | None = None
    created: Moment | None = None
    stack: Annotated[tuple[Whole, ...], Meta(max_length=MOST_FRAMES)] = ()
    timeout: float | None = None
    p2p: bool = False
    backend: _Name | None = None
    started: Moment | None = None
    duration: Annotated[float, Meta(ge=0, le=86_400)] | None = None


class _Dump(msgspec.Struct):
    """The normalized form of a dump, without its collectives."""

    rank: _Rank | None = None
    source: _Text = "?"
    version: _Name | None = None
    places: Annotated[tuple[_ListedPlace, ...], Meta(max_length=MOST_PLACES)] = ()
    groups: Annotated[dict[_Text, _Ranks], Meta(max_length=MOST_GROUPS)] = {}
    progress: Annotated[dict[_Text, Progress], Meta(max_length=MOST_GROUPS)] = {}
    at: Moment | None = None
    slack: Annotated[float, Meta(ge=0)] = 0.0
    host: Annotated[str, Meta(max_length=256)] | None = None
    pid: Positive | None = None
    lost: Whole = 0
    unseen: Whole = 0


_read_dump, _read_entry = reader(_Dump), reader(_Entry)


def read_flights(path: Path) -> tuple[Flight, ...]:
    """The dumps of a file, or of a folder and its subfolders (such as one per host), by rank.

    In a folder, files that are not dumps are skipped. Raises NotAFlightError with one sentence
    if no dump is found.
    """
    path = path.resolve()  # the user may name a link; in a folder none is followed
    if path.is_dir():
        return read_folder(path, root=path)
    return (_read(path, path.parent),)


def read_folder(folder: Path, *, root: Path) -> tuple[Flight, ...]:
    """The dumps in a folder, which is `root` or below it; no link between them is followed."""
    flights, refusal = [], None
    with within_budget():
        for file in _files(folder, root):
            try:
                flights.append(_read(file, root))
            except NotAFlightError as error:
                refusal = refusal or error
    if not flights:
        raise refusal or NotAFlightError(f"{folder.name} holds no files")
    return tuple(
        sorted(
            flights, key=lambda flight: (flight.rank is None, flight.rank or 0, flight.at or 0.0)
        )
    )


def flight_of(form: Mapping[str, Json]) -> Flight:
    """A flight from its normalized form (`flight_format`), which is untrusted.

    Raises NotAFlightError if it is not in that form.
    """
    listed = form.get("collectives")
    dump = _read_dump(form)
    if not isinstance(listed, list) or dump is None:
        raise NotAFlightError("it holds no collectives")
    cache: dict[tuple[int, ...], tuple[Place, ...]] = {}
    places = [listed_place.place for listed_place in dump.places]
    entries = (_read_entry(entry) for entry in listed[-MOST_COLLECTIVES:])
    read = tuple(_collective(entry, places, cache) for entry in entries if entry is not None)
    return Flight(
        rank=dump.rank,
        source=dump.source,
        version=dump.version,
        collectives=read,
        groups={name: tuple(sorted(set(ranks))) for name, ranks in dump.groups.items()},
        progress=dump.progress,
        at=dump.at,
        slack=dump.slack,
        host=dump.host,
        pid=dump.pid,
        lost=dump.lost + len(listed) - len(read),
        unseen=dump.unseen,
    )


def _files(folder: Path, root: Path) -> list[Path]:
    own = entries_below(root, folder)
    inner = [entry.path for entry in own if entry.is_folder][:MOST_FOLDERS]
    entries = [*own, *(entry for each in inner for entry in entries_below(root, each))]
    return sorted(entry.path for entry in entries if entry.is_file)[:MOST_FILES]


def _read(path: Path, root: Path) -> Flight:
    return _parsed(path, root, _version(path))


def _version(path: Path) -> tuple[int, ...]:
    with suppress(OSError):
        now = path.lstat()
        return now.st_ino, now.st_size, now.st_mtime_ns
    return ()


@lru_cache(REMEMBERED)
def _parsed(path: Path, root: Path, _version: tuple[int, ...]) -> Flight:
    try:
        return replace(flight_of(read_dump(path, root)), source=path.name)
    except NotAFlightError as error:
        raise NotAFlightError(f"{path.name} is not a flight-recorder dump: {error}") from None


def _collective(
    entry: _Entry, places: Sequence[Place], cache: dict[tuple[int, ...], tuple[Place, ...]]
) -> Collective:
    indices = tuple(index for index in entry.stack if index < len(places))
    frames = cache.get(indices)
    if frames is None:
        frames = cache.setdefault(indices, tuple(places[index] for index in indices))
    return Collective(
        group=entry.group,
        sequence=entry.sequence,
        operation=entry.operation,
        inputs=entry.inputs,
        outputs=entry.outputs,
        dtypes=tuple(dtype or "?" for dtype in entry.dtypes),
        state=entry.state,
        retired=entry.retired,
        created=entry.created,
        site=next((frame for frame in frames if is_user_code(frame[0])), None),
        frames=frames,
        timeout=entry.timeout,
        p2p=entry.p2p,
        backend=entry.backend,
        started=entry.started,
        duration=entry.duration,
    )
