"""Memory snapshots of torch, from its own dictionary, which may be a stranger's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mgpu_probes.outside.snapshots import read_snapshot

from mgpu_doctor.case.files import text, whole
from mgpu_doctor.case.memory import NO_STACK, Holder, Refused, Snapshot
from mgpu_doctor.case.model import Case, Job, Outcome, Subject
from mgpu_doctor.case.own_code import own_code

MOST_SEGMENTS, MOST_BLOCKS, MOST_FRAMES = 65_536, 1 << 20, 128
MOST_SIZE = 1 << 50
MOST_HOLDERS = 8


def case_of_snapshots(paths: Sequence[Path]) -> Case:
    """A case of nothing else. Raises NotASnapshotError."""
    name = str(paths[0])
    return Case(
        subject=Subject("trace", name),
        job=Job(
            id=name,
            command=(),
            cwd=None,
            framework="torch",
            strategy=None,
            launcher=None,
            world_size=None,
            hosts=(),
            started=None,
            ended=None,
            outcome=Outcome.UNKNOWN,
            exit_code=None,
            signal=None,
            asked=None,
        ),
        observed=0.0,
        ranks=(),
        snapshots=tuple(snapshot_of(read_snapshot(path), path.name) for path in paths),
    )


def snapshot_of(raw: dict[str, Any], source: str) -> Snapshot:
    reserved = taken = pieces = largest = 0
    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for segment in _dicts(raw.get("segments"), MOST_SEGMENTS):
        reserved += whole(segment.get("total_size"), 0, MOST_SIZE) or 0
    for block in _blocks(raw):
        size = whole(block.get("size"), 0, MOST_SIZE) or 0
        if block.get("state") == "inactive":
            pieces += 1
            largest = max(largest, size)
            continue
        taken += size
        place = _place(block)
        held[place] += size
        blocks[place] += 1
    return Snapshot(
        source=source,
        reserved=max(reserved, taken),
        taken=taken,
        pieces=pieces,
        largest=largest,
        holders=tuple(
            Holder(place, size, blocks[place]) for place, size in held.most_common(MOST_HOLDERS)
        ),
        refused=tuple(_refused(raw)),
    )


def _blocks(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    left = MOST_BLOCKS
    for segment in _dicts(raw.get("segments"), MOST_SEGMENTS):
        for block in _dicts(segment.get("blocks"), left):
            left -= 1
            yield block


def _refused(raw: dict[str, Any]) -> Iterator[Refused]:
    traces = raw.get("device_traces")
    for trace in traces[:64] if isinstance(traces, list) else ():
        for event in _dicts(trace, MOST_BLOCKS):
            if event.get("action") == "oom":
                wanted = whole(event.get("size"), 1, MOST_SIZE)
                free = whole(event.get("device_free"), 0, MOST_SIZE)
                if wanted is not None:
                    yield Refused(wanted, free, _place(event))


def _dicts(value: Any, most: int) -> Iterator[dict[str, Any]]:
    for one in value[:most] if isinstance(value, list) else ():
        if isinstance(one, dict):
            yield one


def _place(asked: dict[str, Any]) -> str:
    """The innermost frame of the user's own code, else of any Python code. Snapshots of torch 2.0
    keep the frames in the block's history."""
    frames = asked.get("frames")
    if not isinstance(frames, list):
        first = next(_dicts(asked.get("history"), 1), {})
        frames = first.get("frames")
    known = [_frame(one) for one in _dicts(frames, MOST_FRAMES)]
    own = next((told for told, file in known if own_code(file) and file.endswith(".py")), None)
    return own or next((told for told, file in known if file.endswith(".py")), NO_STACK)


def _frame(frame: dict[str, Any]) -> tuple[str, str]:
    """How it is told, and its file."""
    file = text(frame.get("filename"), 400) or ""
    line = whole(frame.get("line"), 0, 1 << 31)
    name = text(frame.get("name"), 100) or "?"
    return f"{name} {file.rpartition('/')[2]}:{line if line is not None else '?'}", file
