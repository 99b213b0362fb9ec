"""Records digests of the first batches of the first epochs, to find ranks that train on the same
data."""

from __future__ import annotations

from typing import Any

import torch

from ...probe_context import ProbeContext
from . import tensor_digests
from .autograd import this
from .torch_support import size_of

probe: ProbeContext

_EPOCHS = 3
_BATCHES = 8
"""Batches of each of these epochs."""
_MOST_ROWS = 64
"""Rows in the process metadata."""


class _Loader:
    """The digests of one loader's batches."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.epoch = self.index = self._passes = 0
        self.trains = False
        """A backward pass ran between two of its batches."""
        self.rows: list[list[Any]] = []

    def begin(self, epoch: int) -> None:
        """Notes that an epoch begins."""
        self.epoch, self.index, self._passes = epoch, 0, this.passes

    def add_batch(self, batch: Any) -> None:
        """Adds the digest of the next batch."""
        digest = tensor_digests.of_batch(batch)
        if digest is not None:
            self.rows.append([self.place, self.epoch, self.index, digest])
        self.index += 1
        self.trains |= this.passes > self._passes


class _Batches:
    """The digests of all loaders, as rows: loader, epoch, index, digest."""

    def __init__(self) -> None:
        self.wanted: dict[int, _Loader] = {}
        """Loaders whose next batch is digested, by the id of the sampler."""
        self._seen: dict[int, _Loader] = {}
        """All loaders so far, by their index in the process metadata."""
        self._inputs = _Loader(0)
        self._input_samples = self._batch_samples = 0
        self.inputs_wanted = True
        """Whether `note_inputs` is to be called for the next inputs."""

    def begin(self, loader: Any) -> None:
        """Notes that a loader begins an epoch."""
        iterated = probe.objects.note_loader(loader)
        sampler = id(getattr(loader, "_index_sampler", None))
        self.wanted.pop(sampler, None)
        if iterated is None or iterated[1] >= _EPOCHS or probe.world_size < 2:
            return
        place, epoch = iterated
        self.wanted[sampler] = digests = self._seen.setdefault(place, _Loader(place))
        digests.begin(epoch)

    def note_batch(self, sampler: int, batch: Any) -> None:
        """Notes a batch of a loader that is in `wanted`."""
        digests = self.wanted[sampler]
        if torch.is_grad_enabled():
            self._batch_samples = max(self._batch_samples, size_of(batch)[0])
            digests.add_batch(batch)
        if digests.index >= _BATCHES:
            del self.wanted[sampler]

    def note_inputs(self, inputs: Any) -> None:
        """Notes the inputs of a wrapped module in training. Without a loader they are digested in
        place of batches. With one, their size shows whether the rank trains on a part of its
        batch."""
        self._input_samples = max(self._input_samples, size_of(inputs)[0])
        if self._seen or probe.world_size < 2:
            self._inputs.index += 1
        else:
            self._inputs.add_batch(inputs)
        self.inputs_wanted = self._inputs.index < _BATCHES

    def describe(self) -> dict[str, Any]:
        """The rows, for the process metadata: only of loaders whose batches feed backward
        passes."""
        rows = [row for digests in self._seen.values() if digests.trains for row in digests.rows]
        return {
            "batches": (rows if self._seen else self._inputs.rows)[:_MOST_ROWS],
            "batch_samples": self._batch_samples or None,
            "input_samples": self._input_samples or None,
        }

    def reset(self) -> None:
        """For a new box: a forked child must not report its parent's batches."""
        self.wanted.clear()
        self._seen.clear()
        self._inputs, self.inputs_wanted = _Loader(0), True
        self._input_samples = self._batch_samples = 0


batches = _Batches()


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_reset(batches.reset)
    context.add_metadata(batches.describe)
