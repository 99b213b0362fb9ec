"""Digests of the first batches of the first epochs: do other ranks train on the same ones?"""

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
"""Of each of these epochs."""
_MOST_ROWS = 64
"""Rows in the process metadata."""


class _Loader:
    """What was seen of one loader's batches."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.epoch = self.index = self._passes = 0
        self.trains = False
        """A backward pass ran between two of its batches."""
        self.rows: list[list[Any]] = []

    def begin(self, epoch: int) -> None:
        """An epoch begins."""
        self.epoch, self.index, self._passes = epoch, 0, this.passes

    def look(self, batch: Any) -> None:
        """Its next batch."""
        digest = tensor_digests.of_batch(batch)
        if digest is not None:
            self.rows.append([self.place, self.epoch, self.index, digest])
        self.index += 1
        self.trains |= this.passes > self._passes


class _Batches:
    """Rows of loader, epoch, index and digest."""

    def __init__(self) -> None:
        self.wanted: dict[int, _Loader] = {}
        """By the sampler's id: those whose next batch is looked at."""
        self._seen: dict[int, _Loader] = {}
        """By their place in the process metadata."""
        self._inputs = _Loader(0)
        self._input_samples = 0
        self.inputs_wanted = True
        """By `saw_inputs`."""

    def begin(self, loader: Any) -> None:
        """A loader begins an epoch."""
        iterated = probe.objects.saw_loader(loader)
        sampler = id(getattr(loader, "_index_sampler", None))
        self.wanted.pop(sampler, None)
        if iterated is None or iterated[1] >= _EPOCHS or probe.world_size < 2:
            return
        place, epoch = iterated
        self.wanted[sampler] = digests = self._seen.setdefault(place, _Loader(place))
        digests.begin(epoch)

    def saw(self, sampler: int, batch: Any) -> None:
        """A loader that is in `wanted` gave a batch."""
        digests = self.wanted[sampler]
        if torch.is_grad_enabled():
            digests.look(batch)
        if digests.index >= _BATCHES:
            del self.wanted[sampler]

    def saw_inputs(self, inputs: Any) -> None:
        """A wrapped module was called to train. Its inputs stand for the batch where there is no
        loader; where there is one, their size shows whether the rank takes only its part."""
        self._input_samples = max(self._input_samples, size_of(inputs)[0])
        if self._seen or probe.world_size < 2:
            self._inputs.index += 1
        else:
            self._inputs.look(inputs)
        self.inputs_wanted = self._inputs.index < _BATCHES

    def describe(self) -> dict[str, Any]:
        """For the process metadata; batches of those loaders alone that feed backward passes."""
        rows = [row for digests in self._seen.values() if digests.trains for row in digests.rows]
        return {
            "batches": (rows if self._seen else self._inputs.rows)[:_MOST_ROWS],
            "input_samples": self._input_samples or None,
        }

    def start_anew(self) -> None:
        """In a new box: what a forked child's parent saw is not the child's."""
        self.wanted.clear()
        self._seen.clear()
        self._inputs, self._input_samples, self.inputs_wanted = _Loader(0), 0, True


batches = _Batches()


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_reset(batches.start_anew)
    context.add_metadata(batches.describe)
