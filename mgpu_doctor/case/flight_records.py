"""What torch's flight recorder recorded of each rank's collectives. Facts alone.

One form for the JSON and the pickled dumps, of torch 2.4 to 2.13, gloo and NCCL, from torch's own
files or from a recording's `flight/`. Parsing dumps is `mgpu_probes.outside.flight`'s work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from mgpu_probes.outside.flight.flight_dumps import read_dump
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.untrusted_files import entries_below, within_budget

from mgpu_doctor.case.untrusted_json import Json, moment, number, text, whole
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
REMEMBERED = 64
"""Dumps kept in memory: who watches a job comes back to its files every few seconds, and one of
them takes longer to read than all else of a recording."""

Place = tuple[str, int | None, str]


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the recorder. None: this version or backend does not tell."""

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
    """Of inputs, then outputs."""
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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank is in a group, by the recorder's own count."""

    enqueued: int | None
    started: int | None
    completed: int | None


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
    """When it was dumped, at the latest."""
    host: str | None = None
    pid: int | None = None
    lost: int = 0
    """Entries that the recorder no longer holds or that could not be read."""
    unseen: int = 0
    """Operations that it counted and did not record, as gloo's sends and receives (torch 2.13)."""
    slack: float = 0.0
    """Seconds by which it may have been dumped before `at`."""


def read_flights(path: Path) -> tuple[Flight, ...]:
    """The dumps of a file, or of a folder and the folders in it (one a host, say), by rank.

    In a folder, files that are no dumps are passed over. Raises NotAFlightError with one sentence
    where nothing is left, or where the one file is none.
    """
    path = path.resolve()  # the user may name a link; in a folder none is followed
    if path.is_dir():
        return read_folder(path, root=path)
    return (_read(path, path.parent),)


def read_folder(folder: Path, *, root: Path) -> tuple[Flight, ...]:
    """The same of a folder, which is `root` or lies below it; no link between them is followed."""
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

    Raises NotAFlightError where that is no form.
    """
    listed = form.get("collectives")
    if not isinstance(listed, list):
        raise NotAFlightError("it holds no collectives")
    places = _places(form.get("places"))
    cache: dict[tuple[int, ...], tuple[Place, ...]] = {}
    read = tuple(
        _collective(one, places, cache)
        for one in listed[-MOST_COLLECTIVES:]
        if isinstance(one, dict)
    )
    return Flight(
        rank=whole(form.get("rank"), 0, MOST_RANK),
        source=text(form.get("source"), MOST_TEXT) or "?",
        version=text(form.get("version"), 32),
        collectives=read,
        groups=dict(_groups(form.get("groups"))),
        progress=dict(_progress(form.get("progress"))),
        at=moment(form.get("at")),
        slack=max(0.0, number(form.get("slack")) or 0.0),
        host=text(form.get("host"), 256),
        pid=whole(form.get("pid"), 1),
        lost=(whole(form.get("lost")) or 0) + len(listed) - len(read),
        unseen=whole(form.get("unseen")) or 0,
    )


def _files(folder: Path, root: Path) -> list[Path]:
    own = entries_below(root, folder)
    inner = [entry.path for entry in own if entry.is_folder][:MOST_FOLDERS]
    found = [*own, *(entry for each in inner for entry in entries_below(root, each))]
    return sorted(entry.path for entry in found if entry.is_file)[:MOST_FILES]


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
        raise NotAFlightError(f"{path.name} is no flight-recorder dump: {error}") from None


def _places(listed: Json) -> list[Place]:
    return [
        (text(one[0], MOST_TEXT) or "?", whole(one[1]), text(one[2], MOST_TEXT) or "?")
        if isinstance(one, list) and len(one) == 3
        else ("?", None, "?")
        for one in (listed[:MOST_PLACES] if isinstance(listed, list) else ())
    ]


def _collective(
    entry: Mapping[str, Json],
    places: list[Place],
    cache: dict[tuple[int, ...], tuple[Place, ...]],
) -> Collective:
    stack = entry.get("stack")
    indices = tuple(
        one
        for one in (stack[:MOST_FRAMES] if isinstance(stack, list) else ())
        if isinstance(one, int) and 0 <= one < len(places)
    )
    frames = cache.get(indices)
    if frames is None:
        frames = cache.setdefault(indices, tuple(places[indice] for indice in indices))
    retired = entry.get("retired")
    return Collective(
        group=text(entry.get("group"), MOST_TEXT) or "?",
        sequence=whole(entry.get("sequence")),
        operation=text(entry.get("operation"), MOST_TEXT) or "?",
        inputs=_shapes(entry.get("inputs")),
        outputs=_shapes(entry.get("outputs")),
        dtypes=_texts(entry.get("dtypes")),
        state=text(entry.get("state"), 32),
        retired=retired if isinstance(retired, bool) else None,
        created=moment(entry.get("created")),
        site=next((frame for frame in frames if is_user_code(frame[0])), None),
        frames=frames,
        timeout=number(entry.get("timeout")),
        p2p=entry.get("p2p") is True,
        backend=text(entry.get("backend"), 32),
        started=moment(entry.get("started")),
    )


def _groups(told: Json) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, ranks in list(told.items())[:MOST_GROUPS] if isinstance(told, dict) else ():
        if isinstance(ranks, list):
            numbers = {whole(rank, 0, MOST_RANK) for rank in ranks[:MOST_RANKS]} - {None}
            yield (
                text(name, MOST_TEXT) or "?",
                tuple(sorted(one for one in numbers if one is not None)),
            )


def _progress(told: Json) -> Iterator[tuple[str, Progress]]:
    for name, counts in list(told.items())[:MOST_GROUPS] if isinstance(told, dict) else ():
        if isinstance(counts, list) and len(counts) == 3:
            yield text(name, MOST_TEXT) or "?", Progress(*(whole(count) for count in counts))


def _shapes(listed: Json) -> tuple[tuple[int, ...], ...]:
    shapes = listed[:MOST_TENSORS] if isinstance(listed, list) else ()
    return tuple(
        tuple(whole(one) or 0 for one in shape[:64]) for shape in shapes if isinstance(shape, list)
    )


def _texts(listed: Json) -> tuple[str, ...]:
    values = listed[: 2 * MOST_TENSORS] if isinstance(listed, list) else ()
    return tuple(text(value, 32) or "?" for value in values)
