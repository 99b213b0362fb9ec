"""Reads DistributedDataParallel's own statistics: buckets, unused parameters, durations of
reductions.

Its private logger measures durations in the first ten iterations and in every hundredth one, with
or without the probe, which only reads them. Whatever a version of torch lacks stays unknown.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from ...probe_context import ProbeContext

probe: ProbeContext

_MOST = 8
"""Modules that are tracked; the process metadata describes the first one that still exists."""
_FIRST_SAMPLE, _LAST_EARLY, _APART = 3, 11, 100
"""Backward passes before a sample is read: that of the second pass exists before the third
begins."""
_SAMPLES = 32
_BUCKETS = 1024

known: dict[int, ReducerStatistics] = {}
"""The statistics of modules, by their id."""


class ReducerStatistics:
    """The statistics of one DistributedDataParallel module."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)
        self.searches = bool(
            getattr(module, "find_unused_parameters", False)
            and not getattr(module, "static_graph", False)
        )
        """Whether it searches for unused parameters in each forward pass."""
        self.forwards = self.synced = self.scans = self.scan_nanoseconds = 0
        self.due = _FIRST_SAMPLE
        """The number of reduced backward passes at which the next sample is read."""
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=_SAMPLES)
        self._facts: dict[str, Any] = {
            "find_unused_parameters": getattr(module, "find_unused_parameters", None),
            "static_graph": getattr(module, "static_graph", None),
            "gradient_as_bucket_view": getattr(module, "gradient_as_bucket_view", None),
            "broadcast_buffers": getattr(module, "broadcast_buffers", None),
            "bucket_cap_bytes": getattr(module, "bucket_bytes_cap", None),
        }

    @property
    def lives(self) -> bool:
        """Whether the module still exists."""
        return self._module() is not None

    def read_sample(self) -> None:
        """Reads the logger's newest sample."""
        self.due += 1 if self.due < _LAST_EARLY else _APART - self.due % _APART + 1
        numbers, _ = self._logged()
        sample = (
            numbers.get("backward_compute_time", 0),
            numbers.get("backward_comm_time", 0),
            numbers.get("backward_compute_comm_overlap_time", 0),
        )
        if sample[0] > 0 and sample[1] > 0:
            self._samples.append(sample)

    def describe(self) -> dict[str, Any]:
        """The statistics, for the process metadata; after the module's end what was known last."""
        numbers, texts = self._logged()
        if numbers:
            self._facts.update(
                parameter_bytes=numbers.get("total_parameter_size_bytes"),
                unused_bytes=numbers.get("unused_parameter_size") if self.searches else None,
                buckets=_sizes(texts.get("rebuilt_bucket_sizes") or texts.get("bucket_sizes")),
                comm_hook=texts.get("comm_hook") or None,
                graph_varies=self._varies(),
            )
        counted = {"forwards": self.forwards, "synced": self.synced}
        if self.searches:
            counted["scans"] = self.scans
        return {**self._facts, **counted, **self._seconds()}

    def _seconds(self) -> dict[str, float]:
        """Medians of the samples, and the total time of searches; seconds."""
        found: dict[str, float] = {}
        if self.searches and self.scans:
            found["scan_seconds"] = self.scan_nanoseconds / 1e9
        if self._samples:
            names = ("backward_seconds", "communication_seconds", "overlap_seconds")
            for name, taken in zip(names, zip(*self._samples, strict=True), strict=True):
                found[name] = _median(taken) / 1e9
        return found

    def _logged(self) -> tuple[dict[str, int], dict[str, str]]:
        logger = getattr(self._module(), "logger", None)
        read = getattr(logger, "_get_ddp_logging_data", None)
        data = read() if read is not None else None
        numbers, texts = getattr(data, "ints_map", None), getattr(data, "strs_map", None)
        return (numbers or {}, texts or {})

    def _varies(self) -> bool | None:
        """Whether the set of unused parameters has ever changed; None: unknown."""
        reducer = getattr(self._module(), "reducer", None)
        static = getattr(reducer, "_ddp_graph_static", None)
        return not static() if static is not None and self.scans > 2 else None


def note_module(module: Any) -> ReducerStatistics | None:
    """Starts tracking a new module; None if `_MOST` modules are tracked already."""
    probe.objects.strategies.add("ddp")
    if len(known) >= _MOST:
        return None
    known[id(module)] = made = ReducerStatistics(module)
    return made


def _sizes(listed: str | None) -> list[int] | None:
    if not listed:
        return None
    sizes = [size.strip() for size in listed.split(",")[:_BUCKETS]]
    return [int(size) for size in sizes if size.isdigit()]


def _median(values: Iterable[int]) -> int:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _describe() -> dict[str, Any]:
    modules = sorted(known.values(), key=lambda one: not one.lives)
    return {"ddp": modules[0].describe() if modules else None}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
    context.add_reset(known.clear)
