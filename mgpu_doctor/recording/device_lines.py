"""Writes device samples compactly: facts that rarely change are not repeated in each line."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mgpu_doctor.recording.write import MAX_LINES_BYTES, Lines

Json = dict[str, Any]

WHOLE_EVERY = 60
"""Lines after which a device is written in full again: once per minute, with one line per
second."""
KEPT_EVENTS = 32
"""The number of newest events repeated in every line, because lines are thinned out later."""
STEADY = frozenset(
    {
        "name",
        "uuid",
        "memory_total",
        "power_limit_watts",
        "max_sm_clock_mhz",
        "bus_id",
        "numa_node",
        "cores",
        "nvlinks",
        "nvlink_errors",
        "ecc",
        "mig",
        "instances",
        "unified_memory",
        "vendor",
    }
)
"""Facts left out of a device marked `same`: they are as in its previous line. Of `pcie`: all except
what changes constantly."""
TRAFFIC = frozenset({"sent", "received"})


class DeviceLines:
    """A bounded file of device samples. `append` raises `OSError`."""

    def __init__(self, path: Path, limit: int = MAX_LINES_BYTES) -> None:
        self._lines = Lines(path, limit, samples=True)
        self._stride = self._lines.stride
        self._written: dict[int, tuple[Json, int]] = {}
        self._events: deque[Json] = deque(maxlen=KEPT_EVENTS)
        self._topology: Any = None
        self._topology_written: Any = None

    def append(self, sample: Mapping[str, Any]) -> None:
        """Appends a sample as `Devices` returns it."""
        self._events.extend(sample.get("events") or ())
        self._topology = sample.get("topology") or self._topology
        written = self._written
        try:
            self._lines.append_made(lambda: self._line(sample))
        except OSError:
            self._written = {}  # it is unknown which part of it was written
            raise
        if self._lines.stride != self._stride:  # thinned: lines that others refer to may be gone
            self._stride = self._lines.stride
            written.clear()
            self._topology_written = None

    def _line(self, sample: Mapping[str, Any]) -> Json:
        line = _known(sample)
        line["devices"] = [self._device(device) for device in sample.get("devices") or ()]
        line.pop("topology", None)
        if self._topology != self._topology_written:
            line["topology"] = self._topology_written = self._topology
        if self._events:
            line["events"] = list(self._events)
        else:
            line.pop("events", None)
        return line

    def _device(self, device: Mapping[str, Any]) -> Json:
        facts = _quiet(_rounded(_known(device)))
        pcie = _known(facts.pop("pcie", None) or {})
        steady = {name: facts.pop(name) for name in STEADY & facts.keys()}
        link = {name: value for name, value in pcie.items() if name not in TRAFFIC}
        traffic = {name: value for name, value in pcie.items() if name in TRAFFIC}
        index = device["index"]
        before, lines = self._written.get(index, ({}, WHOLE_EVERY))
        now = {**steady, "link": link}
        if before == now and lines < WHOLE_EVERY:
            self._written[index] = (before, lines + 1)
            return {**facts, "same": True, **({"pcie": traffic} if traffic else {})}
        self._written[index] = (now, 1)
        return {**facts, **steady, **({"pcie": pcie} if pcie else {})}


def _known(facts: Mapping[str, Any]) -> Json:
    """Returns the facts without unknown ones and empty lists."""
    return {
        name: value
        for name, value in facts.items()
        if value is not None and (value != [] or name == "clock_reasons")
    }


def _quiet(facts: Json) -> Json:
    """Returns the facts, with equal counters of links written once and zeros left out."""
    links = facts.get("nvlinks")
    kinds = {tuple(kind for kind, _ in link["errors"]) for link in links or ()}
    if not links or len(kinds) != 1 or () in kinds:
        return facts
    short = []
    for link in links:
        errors = [[kind, count] for kind, count in link["errors"] if count]
        rest = {name: value for name, value in link.items() if name != "errors"}
        short.append({**rest, "errors": errors} if errors else rest)
    return {**facts, "nvlinks": short, "nvlink_errors": list(kinds.pop())}


def _rounded(facts: Json) -> Json:
    """Returns the facts, rounded to three decimals."""
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in facts.items()
    }
