"""Wraps iterators over `tf.data` sets: marks a fetch by the loop, stamps a fetch inside a graph."""

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
from .stamp_timeline import FETCH_BEGINS, INPUT, SAMPLES, TOKENS
from .tensorflow_support import (
    batch_size,
    hide_caller_frame,
    is_eager,
    split_replicas,
    tensorflow,
    tensors,
)

probe: ProbeContext

_MARKS_KEPT = 256
_NO_TRAINING = (layout.EVALUATION, layout.CHECKPOINT)
_fetch_marks: dict[int, Mark] = {}
"""The mark that begins a fetch, by the id of the data set."""
_sizes: dict[tuple[int, tuple[Any, ...]], tuple[int, int]] = {}
"""Samples and tokens of a batch, by the id of its data set and its shapes."""


class _Fetch:
    """Whether a fetch is running: an iterator over several devices fetches from inner iterators,
    which are not counted."""

    runs = False


current_fetch = _Fetch()


def patch(iterator_ops: ModuleType) -> None:
    """Wraps the iterators over data sets."""
    owner = iterator_ops.OwnedIterator
    _watch(owner, "_next_internal")
    _watch(owner, "get_next_as_optional")
    dataset_pipelines.patch(iterator_ops)


def patch_distributed(input_lib: ModuleType) -> None:
    """Wraps iterators that divide batches over replicas."""
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
            if is_eager():
                return _fetch_eagerly(original, iterator, args, kwargs)
            _stamp_fetch()
            batch = original(iterator, *args, **kwargs)
        except BaseException as error:
            hide_caller_frame(error)
            raise
        finally:
            current_fetch.runs = False
        function_calls.note_operations(fetches=True)
        try:
            return _stamp_batch(batch)
        except Exception as trouble:
            graph_stamps.disable(trouble)
            return batch

    setattr(owner, name, hidden(fetches))


def _stamp_fetch() -> None:
    try:
        graph_stamps.stamp_start(FETCH_BEGINS)
    except Exception as trouble:
        graph_stamps.disable(trouble)


def _fetch_eagerly(
    original: Callable[..., Any], iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Fetches a batch for the loop, between two marks; inside a watched call, without marks."""
    within = function_calls.current_call.facts is not None or probe.ledger.phase in _NO_TRAINING
    if within or not probe.mine():
        return original(iterator, *args, **kwargs)
    dataset = id(_dataset(iterator))
    probe.mark(_fetch_marks.get(dataset) or _make_fetch_mark(dataset), probe.clock())
    batch = None
    try:
        batch = original(iterator, *args, **kwargs)
        return batch
    except BaseException as error:
        hide_caller_frame(error)
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
        probe.mark(fetched, probe.clock(), _cached_batch_size(dataset, batch))


def _cached_batch_size(dataset: int, batch: Any) -> tuple[int, int]:
    """Samples and tokens of the batch (`batch_size`), cached by data set and shapes."""
    shapes = _shapes(batch)
    if shapes is None:
        return batch_size(batch)
    size = _sizes.get((dataset, shapes))
    if size is None:
        if len(_sizes) >= _MARKS_KEPT:
            _sizes.clear()
        size = _sizes[dataset, shapes] = batch_size(batch)
    return size


def _shapes(batch: Any) -> tuple[Any, ...] | None:
    """The shapes of a batch that is a plain tuple of tensors or per-replica tensors; None if it is
    anything else."""
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


def _stamp_batch(batch: Any) -> Any:
    """Stamps the moment at which the graph has its batch, and makes everything that uses the batch
    wait for the stamp: otherwise a thread would take the stamp at any later time."""
    if graph_stamps.stampable_graph() is None:
        return batch
    tf = tensorflow()
    flat = tf.nest.flatten(batch, expand_composites=True)
    moment = graph_stamps.stamp(INPUT, flat, -1)
    if moment is None:
        return batch
    graph_stamps.show_phase(layout.FORWARD, flat)
    if hasattr(batch, "has_value"):
        return batch
    _send_batch_size(batch)
    with tf.control_dependencies([moment]):
        later = [_identity(tf, tensor) for tensor in flat]
    return tf.nest.pack_sequence_as(batch, later, expand_composites=True)


def _identity(tf: Any, tensor: Any) -> Any:
    if getattr(tensor, "dtype", None) in (None, tf.variant, tf.resource):
        return tensor
    with tf.device(tensor.device):
        return tf.identity(tensor)


def _send_batch_size(batch: Any) -> None:
    samples, tokens = batch_size(batch)
    if samples:
        graph_stamps.send_number(SAMPLES, samples, -1)
        graph_stamps.send_number(TOKENS, tokens, -1)
        return
    for part in split_replicas(batch):
        first = next((tensor for tensor in tensors(part) if tensor.shape.rank), None)
        if first is not None:
            graph_stamps.send_number(SAMPLES, tensorflow().shape(first)[0], -1)


def _make_fetch_mark(dataset: int) -> Mark:
    def fetch_begins(steps: Steps, now: int) -> None:
        steps.fetch_begins(dataset, now)

    if len(_fetch_marks) >= _MARKS_KEPT:
        _fetch_marks.clear()
    _fetch_marks[dataset] = fetch_begins
    return fetch_begins


def _dataset(iterator: Any) -> Any:
    """The data set of an iterator: a new iterator is made for each epoch, but the set stays."""
    dataset = getattr(iterator, "_dataset", None)
    if dataset is not None:
        return dataset
    parts = getattr(iterator, "_iterators", None) or [iterator]
    return getattr(parts[0], "_dataset", type(iterator))
