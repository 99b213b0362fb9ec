"""What DistributedDataParallel knows of itself: buckets, unused parameters, how long it reduces.

Its logger takes times in the first ten iterations and each hundredth one, whoever asks; they are
only read here. It is private to torch: what of it is missing stays unknown.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from ...probe_context import ProbeContext

probe: ProbeContext

_MOST = 8
"""Modules that are counted; the process metadata describes the first that is still there."""
_FIRST_LOOK, _LAST_EARLY, _APART = 3, 11, 100
"""Backward passes before a look: the sample of the second is there before the third begins."""
_SAMPLES = 32
_BUCKETS = 1024

known: dict[int, Reduced] = {}
"""Modules by their id."""


class Reduced:
    """A DistributedDataParallel."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)
        self.searches = bool(
            getattr(module, "find_unused_parameters", False)
            and not getattr(module, "static_graph", False)
        )
        """Whether it searches for unused parameters in each forward pass."""
        self.forwards = self.synced = self.scans = self.scan_nanoseconds = 0
        self.due = _FIRST_LOOK
        """Reduced backward passes before the next look."""
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
        """Whether the module is still there."""
        return self._module() is not None

    def look(self) -> None:
        """Takes the newest sample of the logger's."""
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
        """For the process metadata; of a module that is gone what was known last."""
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
        """Medians of the samples."""
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
        """Whether the search has ever found another set than the time before."""
        reducer = getattr(self._module(), "reducer", None)
        static = getattr(reducer, "_ddp_graph_static", None)
        return not static() if static is not None and self.scans > 2 else None


def saw(module: Any) -> Reduced | None:
    """A module that was just made; None where it is one too many."""
    probe.objects.strategies.add("ddp")
    if len(known) >= _MOST:
        return None
    known[id(module)] = made = Reduced(module)
    return made


def _sizes(listed: str | None) -> list[int] | None:
    if not listed:
        return None
    sizes = [size.strip() for size in listed.split(",")[:_BUCKETS]]
    return [int(size) for size in sizes if size.isdigit()]


def _median(values: Iterable[int]) -> int:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _ddp() -> dict[str, Any]:
    modules = sorted(known.values(), key=lambda one: not one.lives)
    return {"ddp": modules[0].describe() if modules else None}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_ddp)
    context.add_reset(known.clear)
