"""Describes the `tf.data` pipelines that the program iterates over, for the process metadata.

A pipeline is read once, when its iterator is made, by following each data set to its input (private
attributes). Pipelines inside a graph, as on workers of parameter servers, are not seen.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from .tensorflow_support import wrap

probe: ProbeContext

_MOST = 4
_LONGEST = 32
"""Operations of a pipeline."""
_UNREADABLE = ("Variant", "ReincarnatedPerDeviceGenerator")
"""Data sets that arrived as a handle: their inputs are unknown."""
_pipelines: list[dict[str, Any]] = []


def patch(iterator_ops: ModuleType) -> None:
    """Wraps the creation of iterators over data sets."""
    wrap(iterator_ops.OwnedIterator, "_create_iterator", _note_pipeline, _ignore)


def patch_distributed(input_lib: ModuleType) -> None:
    """Wraps the creation of iterators for several devices, which precede their inner iterators."""
    owner = getattr(input_lib, "_SingleWorkerOwnedDatasetIterator", None)
    if owner is not None:
        wrap(owner, "__init__", _note_pipeline, _ignore)


def _note_pipeline(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dataset = kwargs.get("dataset") or (args[1] if len(args) > 1 else None)
    if not probe.on or dataset is None or len(_pipelines) >= _MOST:
        return
    pipeline = describe_pipeline(dataset)
    readable = pipeline["operations"] and pipeline["operations"][-1] not in _UNREADABLE
    if readable and pipeline not in _pipelines:
        _pipelines.append(pipeline)


def _ignore(_: Any, __: Any) -> None:
    """Nothing is left to do once the iterator exists."""


def describe_pipeline(dataset: Any) -> dict[str, Any]:
    """The operations of the pipeline, the last one first, and its settings. `prefetch`: elements;
    -1: autotuned, 0: none. `parallel_calls`: the fewest of all maps; -1: autotuned, 1: sequential,
    None: there is no map."""
    operations, calls = list[str](), list[int]()
    prefetch, cached, autotune, threads = 0, False, None, None
    part: Any = dataset
    while part is not None and len(operations) < _LONGEST:
        name = type(part).__name__.strip("_").removesuffix("Dataset")
        settings = getattr(part, "_options_attr", None)
        if autotune is None:
            autotune = getattr(getattr(settings, "autotune", None), "enabled", None)
        if threads is None:
            threading = getattr(settings, "threading", None)
            threads = getattr(threading, "private_threadpool_size", None)
        if name == "Prefetch" and not prefetch:
            prefetch = _number(getattr(part, "_buffer_size", None)) or 0
        elif name in ("Map", "ParallelMap"):
            calls.append(_number(getattr(part, "_num_parallel_calls", 1)) or 1)
        cached = cached or name == "Cache"
        if name not in ("Options", ""):
            operations.append(name[:40])
        part = getattr(part, "_input_dataset", None)
    return {
        "operations": operations,
        "prefetch": prefetch,
        "parallel_calls": 1 if 1 in calls else min(calls, default=None),
        "cached": cached,
        "autotune": autotune if type(autotune) is bool else None,
        "threads": threads if type(threads) is int else None,
    }


def _number(tensor: Any) -> int | None:
    if type(tensor) is int:
        return tensor
    value = getattr(tensor, "numpy", None)  # a tensor of a graph has none
    return int(value()) if callable(value) else None


def _describe() -> dict[str, Any]:
    return {"pipelines": list(_pipelines)} if _pipelines else {}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
