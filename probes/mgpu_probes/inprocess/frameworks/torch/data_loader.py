"""Wraps torch's DataLoader: marks the time in which the loop waits for a batch, and counts
samples."""

from __future__ import annotations

import weakref
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import (
    Mark,
    evaluation_fetch_begins,
    fetch_found_end,
    fetched,
    loader_started,
    loader_starts,
)
from . import device_events
from .batch_digests import batches
from .torch_support import size_of, wrap

probe: ProbeContext

_MARKS_KEPT = 256
asked_marks: dict[int, Mark] = {}
"""The mark that begins a fetch, by the id of the loader's sampler."""
_plain: dict[int, type] = {}
"""The type of the batches of loaders that return a list or tuple without tokens: for these only the
first tensor is read, to count the samples."""
_alive: dict[int, Any] = {}
"""Weak references to the samplers seen so far, by their id."""
_Tensor = torch.Tensor


def patch(dataloader: ModuleType) -> None:
    """Wraps the iterators' `__next__`, which every kind of loader iterator inherits."""
    iterator = dataloader._BaseDataLoaderIter
    wrap(iterator, "__next__", _begins, _ends, raised_at_rest=_raised_at_rest)
    wrap(dataloader.DataLoader, "__iter__", _opens, _opened)
    probe.is_data_worker = _is_worker


def _is_worker() -> bool:
    """Whether this process is a data-loader worker."""
    return torch.utils.data.get_worker_info() is not None


def _begins(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    if not probe.on or get_ident() != probe.owner:
        return None
    # Each epoch has a new iterator, but the loader keeps its sampler.
    sampler = getattr(args[0], "_index_sampler", None)
    loader = id(sampler)
    if loader not in _alive:
        _meets(sampler)
    if torch.is_grad_enabled():
        probe.mark(asked_marks.get(loader) or _asks(loader), probe.clock())
        queue = getattr(args[0], "_data_queue", None)  # None: no workers
        # It is about the step that begins here; the last one is recorded already.
        probe.batch_ready = queue is not None and _holds_batch(queue)
    else:
        probe.mark(evaluation_fetch_begins, probe.clock(), (loader,))
    return loader


def _raised_at_rest(_: BaseException) -> None:
    probe.sampler.interrupt()  # the loader has no more batches


def _holds_batch(queue: Any) -> bool:
    """Whether a worker has put a batch into the iterator's queue (private; False where unknown)."""
    try:
        return bool(queue.qsize())
    except (AttributeError, NotImplementedError):  # a system without sem_getvalue
        return False


def _ends(loader: int, batch: Any) -> None:
    now = probe.clock()
    if loader in batches.wanted and batch is not None:
        batches.note_batch(loader, batch)
    timer = probe.device_timer
    if timer is not None and timer.is_timing:
        device_events.fetched(batch)
    kind = type(batch)
    if _plain.get(loader) is kind and batch and type(batch[0]) is _Tensor and batch[0].ndim:
        probe.mark(fetched, now, (batch[0].size(0), 0))
    elif batch is None:
        probe.mark(fetch_found_end, now)
    else:
        samples, tokens = size = size_of(batch)
        probe.mark(fetched, now, size)
        if samples and not tokens and kind in (list, tuple) and len(_plain) < _MARKS_KEPT:
            _plain[loader] = kind


def _meets(sampler: Any) -> None:
    """Watches a new sampler, and forgets it when it is deleted: another one may get the same id,
    such as the sampler of a validation loader."""
    loader = id(sampler)

    def forget(_: Any) -> None:
        probe.steps.training.discard(loader)
        for known in (asked_marks, _plain, _alive):
            known.pop(loader, None)

    if len(_alive) < _MARKS_KEPT:
        try:
            _alive[loader] = weakref.ref(sampler, forget)
        except TypeError:  # a list of batches
            _alive[loader] = None


def _asks(loader: int) -> Mark:
    def asked(steps: Steps, now: int) -> None:
        steps.fetch_begins(loader, now)

    if len(asked_marks) >= _MARKS_KEPT:
        asked_marks.clear()
    asked_marks[loader] = asked
    return asked


def _opens(args: tuple[Any, ...], _: dict[str, Any]) -> bool | None:
    if not probe.mine():
        return None
    batches.begin(args[0])
    probe.mark(loader_starts, probe.clock())
    return True


def _opened(_: bool, __: Any) -> None:
    probe.mark(loader_started, probe.clock())
