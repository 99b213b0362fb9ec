"""torch memory snapshots, parsed from untrusted dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgpu_probes.outside.torch_pickles import Later, NotASnapshotError, read_memory_snapshot
from mgpu_probes.outside.untrusted_files import Budget, OverBudgetError, within_budget

from mgpu_doctor.case.untrusted_json import text, whole
from mgpu_doctor.case.user_code import is_user_code

MOST_SEGMENTS, MOST_BLOCKS, MOST_FRAMES = 65_536, 1 << 20, 128
MOST_SIZE = 1 << 50
CHECKED = 1 << 12
"""Blocks between two checks of the time: a snapshot may contain the same list many times."""
MOST_HOLDERS, MOST_DEVICES = 8, 64
CHANGES = ("alloc", "free_completed", "segment_alloc", "segment_free")


def read_snapshots(path: Path) -> tuple[Snapshot, ...]:
    """One snapshot per device of a file. Raises NotASnapshotError."""
    return snapshots_of(read_memory_snapshot(path), path.name)


def snapshots_of(raw: dict[str, Any], source: str) -> tuple[Snapshot, ...]:
    """One a device that holds memory, or that refused some. Raises NotASnapshotError where what
    is shared in it takes far longer to look through than its size justifies."""
    try:
        with within_budget() as budget:
            return _snapshots_of(raw, source, budget)
    except OverBudgetError as error:
        raise NotASnapshotError(f"{source} was left out: {error.strerror}") from None


def _snapshots_of(raw: dict[str, Any], source: str, budget: Budget) -> tuple[Snapshot, ...]:
    segments: dict[int, list[dict[str, Any]]] = {}
    for segment in _dicts(raw.get("segments"), MOST_SEGMENTS):
        device = whole(segment.get("device"), 0, MOST_DEVICES) or 0
        segments.setdefault(device, []).append(segment)
    listed = raw.get("device_traces")
    traces = listed[:MOST_DEVICES] if isinstance(listed, list) else []
    refused = {device: _refused(trace, budget) for device, trace in enumerate(traces)}
    devices = sorted({*segments, *(device for device, refusals in refused.items() if refusals[0])})
    return tuple(
        _snapshot(
            segments.get(device, []),
            *refused.get(device, ((), False)),
            source if len(devices) == 1 else f"{source}, device {device}",
            budget,
        )
        for device in devices or [0]
    )


def _snapshot(
    segments: list[dict[str, Any]],
    refused: tuple[Refused, ...],
    moved: bool,
    source: str,
    budget: Budget,
) -> Snapshot:
    reserved = taken = 0
    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    pieces: list[int] = []
    left = MOST_BLOCKS
    for segment in segments:
        reserved += whole(segment.get("total_size"), 0, MOST_SIZE) or 0
        for block in _dicts(segment.get("blocks"), left):
            left -= 1
            if not left % CHECKED:
                budget.check_time()
            size = whole(block.get("size"), 0, MOST_SIZE) or 0
            if block.get("state") == "inactive":
                pieces += [size] if _is_for_all(segment) else []
                continue
            taken += size
            place = _place(block)
            held[place] += size
            blocks[place] += 1
    return Snapshot(
        source=source,
        reserved=max(reserved, taken),
        taken=taken,
        free=sum(pieces),
        pieces=len(pieces),
        largest=max(pieces, default=0),
        holders=tuple(
            Holder(place, size, blocks[place]) for place, size in held.most_common(MOST_HOLDERS)
        ),
        refused=refused,
        moved=moved,
    )


def _is_for_all(segment: dict[str, Any]) -> bool:
    """Whether any request beyond 1 MiB can have its free pieces."""
    pool = segment.get("segment_pool_id")
    return segment.get("segment_type") == "large" and pool in (None, (0, 0), [0, 0])


def _refused(trace: object, budget: Budget) -> tuple[tuple[Refused, ...], bool]:
    """The requests of a device that failed, and whether something changed after the last."""
    refusals = []
    moved = False
    budget.check_time()
    for event in _dicts(trace, MOST_BLOCKS):
        if event.get("action") == "oom":
            wanted = whole(event.get("size"), 1, MOST_SIZE)
            free = whole(event.get("device_free"), 0, MOST_SIZE)
            if wanted is not None:
                refusals.append(Refused(wanted, free, _place(event)))
                moved = False
        elif event.get("action") in CHANGES:
            moved = True
    return tuple(refusals), moved


def _dicts(value: object, most: int) -> Iterator[dict[str, Any]]:
    for entry in value[:most] if isinstance(value, list) else ():
        if isinstance(entry, dict):
            yield entry


def _place(asked: dict[str, Any]) -> str:
    """The innermost frame of the user's own code, else of any Python code. Snapshots of torch 2.0
    keep the frames in the block's history."""
    frames = asked.get("frames")
    if frames is None:
        frames = next(_dicts(asked.get("history"), 1), {}).get("frames")
    stack = frames.items() if isinstance(frames, Later) else frames
    first: dict[str, Any] | None = None
    for frame in _dicts(stack, MOST_FRAMES):
        file = _file(frame)
        if file.endswith(".py"):
            if is_user_code(file):
                return _format_frame(frame)
            first = first or frame
    return NO_STACK if first is None else _format_frame(first)


def _file(frame: dict[str, Any]) -> str:
    file = frame.get("filename")
    return file if isinstance(file, str) else ""


def _format_frame(frame: dict[str, Any]) -> str:
    file = text(_file(frame), 400) or "?"
    line = whole(frame.get("line"), 0, 1 << 31)
    name = text(frame.get("name"), 100) or "?"
    return f"{name} {file.rpartition('/')[2]}:{line if line is not None else '?'}"


NO_STACK = "not recorded"
"""The place of a request without a recorded stack."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Code that holds memory. `place`: `forward model.py:41`."""

    place: str
    size: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that failed. Bytes."""

    wanted: int
    free: int | None
    """Free bytes at that time, as the driver reported."""
    place: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The memory of one device. All sizes are in bytes."""

    source: str
    reserved: int
    taken: int
    """Bytes in use; the rest of the reserved bytes is cached or fragmented."""
    free: int
    """In pieces that a request beyond 1 MiB can be given: not of the pool for small ones, nor of a
    private one (CUDA graphs)."""
    pieces: int
    """Their number."""
    largest: int
    """The largest of these pieces."""
    holders: tuple[Holder, ...]
    """The largest holders, by the user's code that allocated the memory."""
    refused: tuple[Refused, ...]
    """Failed requests, oldest first."""
    moved: bool = False
    """Whether memory was allocated or freed after the last of them, so that the state differs."""
