"""Iterators over data sets: the loop, or a graph, waits for a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import Mark, fetch_found_end, fetched
from ...wrap import hidden, wrapped
from . import dataset_pipelines, function_calls, graph_stamps
from .stamp_timeline import ASKS, INPUT, SAMPLES, TOKENS
from .tensorflow_support import eagerly, parts_of, size_of, tensorflow, tensors, unseen

probe: ProbeContext

_MARKS_KEPT = 256
_NOTHING_LEARNED = (layout.EVALUATION, layout.CHECKPOINT)
_fetch_marks: dict[int, Mark] = {}
"""The mark of a fetch from each data set."""
_sizes: dict[tuple[int, tuple[Any, ...]], tuple[int, int]] = {}
"""Samples and tokens of its batches, by their shapes."""


class _Fetch:
    """The fetch that is under way: iterators over several devices ask others."""

    runs = False


current_fetch = _Fetch()


def patch(iterator_ops: ModuleType) -> None:
    """Wraps the iterators over data sets."""
    owner = iterator_ops.OwnedIterator
    _watch(owner, "_next_internal")
    _watch(owner, "get_next_as_optional")
    dataset_pipelines.patch(iterator_ops)


def patch_distributed(input_lib: ModuleType) -> None:
    """Wraps those that divide batches over replicas."""
    dataset_pipelines.patch_distributed(input_lib)
    for name in ("DistributedIteratorBase", "DistributedIterator"):
        owner = getattr(input_lib, name, None)
        if owner is not None and "get_next" in vars(owner):
            _watch(owner, "get_next")
            _watch(owner, "get_next_as_optional")


def _watch(owner: Any, name: str) -> None:
    original = getattr(owner, name, None)
    if not callable(original) or wrapped(original):
        return

    @functools.wraps(original)
    def fetches(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        if current_fetch.runs or not probe.on:
            return original(iterator, *args, **kwargs)
        current_fetch.runs = True
        try:
            if eagerly():
                return _fetch_eagerly(original, iterator, args, kwargs)
            _stamp_fetch()
            batch = original(iterator, *args, **kwargs)
        except BaseException as error:
            unseen(error)
            raise
        finally:
            current_fetch.runs = False
        function_calls.noted(fetches=True)
        try:
            return _stamped(batch)
        except Exception as trouble:
            graph_stamps.fail(trouble)
            return batch

    setattr(owner, name, hidden(fetches))


def _stamp_fetch() -> None:
    try:
        graph_stamps.begin(ASKS)
    except Exception as trouble:
        graph_stamps.fail(trouble)


def _fetch_eagerly(
    original: Callable[..., Any], iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The loop fetches a batch itself."""
    within = function_calls.current_call.facts is not None or probe.ledger.phase in _NOTHING_LEARNED
    if within or not probe.mine():
        return original(iterator, *args, **kwargs)
    dataset = id(_dataset(iterator))
    probe.mark(_fetch_marks.get(dataset) or _make_fetch_mark(dataset), probe.clock())
    batch = None
    try:
        batch = original(iterator, *args, **kwargs)
        return batch
    except BaseException as error:
        unseen(error)
        raise
    finally:
        try:
            _mark_fetched(dataset, batch)
        except Exception as trouble:
            probe.fail(trouble)


def _mark_fetched(dataset: int, batch: Any) -> None:
    if batch is None:
        probe.mark(fetch_found_end, probe.clock())
    else:
        probe.mark(fetched, probe.clock(), _size_of(dataset, batch))


def _size_of(dataset: int, batch: Any) -> tuple[int, int]:
    """As `size_of`, which is asked once for each shape of a data set's batches."""
    shapes = _shapes(batch)
    if shapes is None:
        return size_of(batch)
    size = _sizes.get((dataset, shapes))
    if size is None:
        if len(_sizes) >= _MARKS_KEPT:
            _sizes.clear()
        size = _sizes[dataset, shapes] = size_of(batch)
    return size


def _shapes(batch: Any) -> tuple[Any, ...] | None:
    """Of the tensors in a plain tuple, each perhaps one for every replica; None: it is none."""
    if type(batch) is not tuple:
        return None
    shapes: list[Any] = []
    for component in batch:
        if hasattr(component, "_shape_tuple"):
            shapes.append(component._shape_tuple())
            continue
        parts = getattr(component, "values", None)
        if type(parts) is not tuple or not all(hasattr(part, "_shape_tuple") for part in parts):
            return None
        shapes.append(("replicas", *[part._shape_tuple() for part in parts]))
    return tuple(shapes)


def _stamped(batch: Any) -> Any:
    """The batch of a graph, which is not used before its moment is taken: the stamp would else be
    taken whenever a thread has nothing better to do."""
    if graph_stamps.graph() is None:
        return batch
    tf = tensorflow()
    flat = tf.nest.flatten(batch, expand_composites=True)
    moment = graph_stamps.stamp(INPUT, flat, -1)
    if moment is None:
        return batch
    graph_stamps.live(layout.FORWARD, flat)
    if hasattr(batch, "has_value"):
        return batch
    _count(batch)
    with tf.control_dependencies([moment]):
        later = [_identity(tf, tensor) for tensor in flat]
    return tf.nest.pack_sequence_as(batch, later, expand_composites=True)


def _identity(tf: Any, tensor: Any) -> Any:
    if getattr(tensor, "dtype", None) in (None, tf.variant, tf.resource):
        return tensor
    with tf.device(tensor.device):
        return tf.identity(tensor)


def _count(batch: Any) -> None:
    samples, tokens = size_of(batch)
    if samples:
        graph_stamps.number(SAMPLES, samples, -1)
        graph_stamps.number(TOKENS, tokens, -1)
        return
    for part in parts_of(batch):
        first = next((tensor for tensor in tensors(part) if tensor.shape.rank), None)
        if first is not None:
            graph_stamps.number(SAMPLES, tensorflow().shape(first)[0], -1)


def _make_fetch_mark(dataset: int) -> Mark:
    def fetch_begins(steps: Steps, now: int) -> None:
        steps.fetch_begins(dataset, now)

    if len(_fetch_marks) >= _MARKS_KEPT:
        _fetch_marks.clear()
    _fetch_marks[dataset] = fetch_begins
    return fetch_begins


def _dataset(iterator: Any) -> Any:
    """What it iterates over: iterators come and go with the epochs."""
    dataset = getattr(iterator, "_dataset", None)
    if dataset is not None:
        return dataset
    parts = getattr(iterator, "_iterators", None) or [iterator]
    return getattr(parts[0], "_dataset", type(iterator))
