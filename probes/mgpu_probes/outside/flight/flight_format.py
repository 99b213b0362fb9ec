"""One plain form for what flight recorders of torch 2.4 to 2.13 write, pickled or as JSON.

    {form, rank, source, at, slack, host, pid, version,
     groups: {NAME: [RANK…]}, progress: {NAME: [ENQUEUED, STARTED, COMPLETED]},
     places: [[FILE, LINE, FUNCTION]…],
     collectives: [{group, backend, sequence, operation, inputs, outputs, dtypes, state, retired,
                    created, started, duration, timeout, p2p, stack: [PLACE…]}…], lost, unseen}

`collectives` come oldest first; a `stack` holds indices into `places`, innermost first. Times
are seconds. `at` is when it was dumped, at the latest, and `slack` by how much it may have been
before. `duration` is from a rank's arrival to the end, on its device, where the job's collectives
were timed. Values that a version or backend does not write are null."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mgpu_probes.outside.terminal_text import clean
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.untrusted_files import Budget

FORM = "mgpu-doctor/flight/1"
MOST_ENTRIES = 100_000
"""Of one dump, the newest. torch keeps 2,000 unless TORCH_FR_BUFFER_SIZE says otherwise."""
MOST_GROUPS = 4_096
MOST_RANKS = 1 << 17
MOST_FRAMES = 128
MOST_TENSORS = 1_024
MOST_DIMENSIONS = 64
MOST_TEXT = 400
MOST_INTEGER = (1 << 63) - 1
MOST_MILLISECONDS = 86_400_000.0
DEFAULT_GROUP = "default_pg"
"""torch's description of the group of all ranks."""

Json = Any


def normalize_dump(dump: object, *, source: str, budget: Budget) -> dict[str, Json]:
    """The plain form of what a recorder wrote. A pickle shares values between entries, the form
    does not, so `budget` pays for each of them.

    Raises NotAFlightError if it has neither entries nor groups, and OverBudgetError.
    """
    if isinstance(dump, list):  # before torch 2.2 a dump was its entries alone
        dump = {"entries": dump}
    if not isinstance(dump, dict) or not {"entries", "pg_config", "pg_status"} & dump.keys():
        raise NotAFlightError("it holds no entries of a flight recorder")
    entries = dump.get("entries")
    listed = entries[-MOST_ENTRIES:] if isinstance(entries, list) else []
    places = _Places()
    read = [_collective(entry, places, budget) for entry in listed if isinstance(entry, dict)]
    names = _names_by_id(listed)
    return {
        "form": FORM,
        "rank": None,
        "source": clean(source, MOST_TEXT),
        "at": None,
        "slack": 0.0,
        "host": None,
        "pid": None,
        "version": _text(dump.get("version")),
        "groups": _groups(dump.get("pg_config"), listed, budget),
        "progress": _progress(dump.get("pg_status"), names),
        "places": places.all,
        "collectives": read,
        "lost": _lost(entries if isinstance(entries, list) else [], len(read)),
        "unseen": _unseen(listed),
    }


class _Places:
    """The distinct source lines; torch's pickles share frames between entries."""

    def __init__(self) -> None:
        self.all: list[list[Json]] = []
        self._index: dict[tuple[Json, ...], int] = {}
        self._seen: dict[int, int] = {}
        """By identity: the dump outlives this object."""

    def of(self, frame: object) -> int | None:
        known = self._seen.get(id(frame))
        if known is not None:
            return known
        if not isinstance(frame, dict):
            return None
        place = (
            _text(frame.get("filename")) or "?",
            count_or_none(frame.get("line")),
            _text(frame.get("name")) or "?",
        )
        index = self._index.setdefault(place, len(self.all))
        if index == len(self.all):
            self.all.append(list(place))
        self._seen[id(frame)] = index
        return index


ENTRY = 40
"""Objects that a collective takes without its lists."""


def _collective(entry: Mapping[str, Json], places: _Places, budget: Budget) -> dict[str, Json]:
    backend, colon, operation = (_text(entry.get("profiling_name")) or "?").partition(":")
    if not colon:
        backend, operation = "", backend
    p2p = entry.get("is_p2p") is True or operation.startswith(("send ", "recv "))
    sequence = entry.get("collective_seq_id", entry.get("seq_id"))
    frames = entry.get("frames")
    locations = map(places.of, frames[:MOST_FRAMES] if isinstance(frames, list) else ())
    inputs, outputs = _shapes(entry.get("input_sizes")), _shapes(entry.get("output_sizes"))
    dtypes = (_texts(entry.get("input_dtypes")), _texts(entry.get("output_dtypes")))
    stack = [index for index in locations if index is not None]
    sizes = sum(map(len, inputs)) + sum(map(len, outputs)) + len(inputs) + len(outputs)
    budget.take(ENTRY + sizes + len(dtypes[0]) + len(dtypes[1]) + len(stack))
    created, timeout = (
        count_or_none(entry.get("time_created_ns")),
        count_or_none(entry.get("timeout_ms")),
    )
    started = count_or_none(entry.get("time_discovered_started_ns"))
    return {
        "group": _group_of(entry),
        "backend": backend or None,
        "sequence": None if p2p else count_or_none(sequence),
        "operation": operation,
        "inputs": inputs,
        "outputs": outputs,
        "dtypes": [*dtypes[0], *dtypes[1]],
        "state": _text(entry.get("state")),
        "retired": entry.get("retired") if isinstance(entry.get("retired"), bool) else None,
        "created": created * 1e-9 if created else None,
        "started": started * 1e-9 if started else None,
        "duration": _seconds(entry.get("duration_ms")),
        "timeout": timeout * 1e-3 if timeout else None,
        "p2p": p2p,
        "stack": stack,
    }


def _group_of(entry: Mapping[str, Json]) -> str:
    """The name of its process group; torch writes it with a description."""
    named = entry.get("process_group")
    if isinstance(named, (list, tuple)) and named:
        named = named[0]
    if isinstance(named, str) and named:
        return clean(named, MOST_TEXT)
    number = count_or_none(entry.get("pg_id"))
    return "?" if number is None else str(number)


def _names_by_id(entries: Iterable[Json]) -> dict[str, str]:
    """A rank's own group ids -> group names, which all ranks share."""
    return {
        str(entry.get("pg_id")): _group_of(entry)
        for entry in entries
        if isinstance(entry, dict) and count_or_none(entry.get("pg_id")) is not None
    }


def _groups(config: object, entries: Iterable[Json], budget: Budget) -> dict[str, list[int]]:
    """Group -> ranks. gloo (torch 2.13) stores all groups under the name "", so only the last is
    known, which can only be the group of all ranks: a sub-group lists no ranks."""
    groups = {}
    for name, settings in list(config.items())[:MOST_GROUPS] if isinstance(config, dict) else ():
        ranks = settings.get("ranks") if isinstance(settings, dict) else None
        if isinstance(ranks, str):
            ranks = [int(digits) for digits in re.findall(r"\d{1,9}", ranks[: MOST_RANKS * 8])]
        if isinstance(name, str) and isinstance(ranks, (list, tuple)) and ranks:
            budget.take(len(ranks))
            numbers = {number for rank in ranks if (number := count_or_none(rank)) is not None}
            groups[clean(name, MOST_TEXT) or _default(entries)] = sorted(numbers)[:MOST_RANKS]
    return groups


def _default(entries: Iterable[Json]) -> str:
    for entry in entries:
        named = entry.get("process_group") if isinstance(entry, dict) else None
        if isinstance(named, (list, tuple)) and len(named) > 1 and named[1] == DEFAULT_GROUP:
            return _group_of(entry)
    return "0"


def _progress(status: object, names: Mapping[str, str]) -> dict[str, list[int | None]]:
    """Group -> last enqueued, started and completed; -1 (none) and missing are null."""
    by_group = {}
    for number, progress in list(status.items())[:MOST_GROUPS] if isinstance(status, dict) else ():
        if isinstance(progress, dict) and isinstance(number, str):
            counts = [
                _count(progress.get(f"last_{what}_collective"))
                for what in ("enqueued", "started", "completed")
            ]
            by_group[names.get(number, clean(number, MOST_TEXT))] = counts
    return by_group


def _lost(entries: list[Json], read: int) -> int:
    """The number of entries that the ring overwrote or that could not be read."""
    last = entries[-1] if entries else None
    number = count_or_none(last.get("record_id")) if isinstance(last, dict) else None
    written = len(entries) if number is None else number + 1
    return max(0, written - read)


def _unseen(entries: Iterable[Json]) -> int:
    """The number of operations without an entry: gloo counts sends and receives in each group, but
    does not record them (torch 2.13)."""
    last: dict[str, int] = {}
    unseen = 0
    for entry in entries:
        if not isinstance(entry, dict) or not str(entry.get("profiling_name")).startswith("gloo:"):
            continue
        number = count_or_none(entry.get("op_id"))
        if number is not None:
            group = _group_of(entry)
            unseen += max(0, number - last.get(group, number) - 1)
            last[group] = max(number, last.get(group, number))
    return unseen


def _shapes(sizes: object) -> list[list[int]]:
    listed = sizes[:MOST_TENSORS] if isinstance(sizes, (list, tuple)) else ()
    return [
        [count_or_none(dimension) or 0 for dimension in shape[:MOST_DIMENSIONS]]
        for shape in listed
        if isinstance(shape, (list, tuple))
    ]


def _texts(values: object) -> list[str]:
    listed = values[:MOST_TENSORS] if isinstance(values, (list, tuple)) else ()
    return [clean(value, 32) for value in listed if isinstance(value, str)]


def _seconds(milliseconds: object) -> float | None:
    """A duration in seconds; None if it is no duration of at most a day.

    A whole number is not one, either: some JSON dumps cut durations to milliseconds."""
    if not isinstance(milliseconds, float):
        return None
    return milliseconds * 1e-3 if 0 <= milliseconds <= MOST_MILLISECONDS else None


def _text(value: object) -> str | None:
    return (clean(value, MOST_TEXT) or None) if isinstance(value, str) else None


def count_or_none(value: object) -> int | None:
    """A whole number from 0 on that fits 63 bits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= MOST_INTEGER else None


def _count(value: object) -> int | None:
    """A count; torch's JSON writes numbers as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return count_or_none(value)
