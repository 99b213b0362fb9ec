"""Records digests of the parameters at some steps, by which replicas on other ranks are
compared."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...probe_context import ProbeContext
from . import tensor_digests

probe: ProbeContext

_FIRST, _LAST = 16, 16
"""Rows kept of a long run: the first ones and the last ones."""
_PARTIAL = frozenset({"ZeroRedundancyOptimizer", "DistributedOptimizer"})
"""Optimizers that hold only a part of the parameters on each rank."""


class _Weights:
    """The recorded rows: step, sequence number of the default group, updates, digest."""

    def __init__(self) -> None:
        self.updates = 0
        """Optimizer steps so far."""
        self.rows: list[list[Any]] = []
        self._groups: dict[weakref.ref[Any], list[Any]] = {}
        """The parameters of optimizers, as long as these live: many scripts train in a function,
        and at the end of the process neither its model nor its optimizer exists."""

    def follow(self, optimizer: Any) -> None:
        """Samples the weights of this optimizer when it ceases to exist, too."""
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        if _are_whole([optimizer]) and all(map(tensor_digests.readable, parameters)):
            self._groups[weakref.ref(optimizer, self._sample_last)] = groups

    def _sample_last(self, optimizer: weakref.ref[Any]) -> None:
        groups = self._groups.pop(optimizer, None)
        try:
            if groups is not None and probe.on and probe.mine():
                self._add_row(groups)
        except Exception as trouble:
            probe.fail(trouble)

    def sample(self) -> None:
        """Adds a row. The context calls it after some steps and when the process ends."""
        optimizers = [optimizer.subject for optimizer in probe.objects.optimizers.values()]
        if _are_whole(optimizers):
            self._add_row(
                [
                    group
                    for optimizer in optimizers
                    for group in getattr(optimizer, "param_groups", None) or ()
                ]
            )

    def _add_row(self, groups: Sequence[Mapping[str, Any]]) -> None:
        digest = tensor_digests.of_weights(
            [parameter for group in groups for parameter in group["params"]]
        )
        if digest is not None:
            self.rows.append([probe.recorded, probe.sequence(), self.updates, digest])
            if len(self.rows) > _FIRST + _LAST:
                del self.rows[_FIRST]

    def describe(self) -> dict[str, Any]:
        """The rows, for the process metadata."""
        return {"weights": list(self.rows)}

    def reset(self) -> None:
        """For a new box: a forked child must not report what its parent did."""
        self.updates = 0
        self.rows.clear()
        self._groups.clear()


def _are_whole(optimizers: Iterable[Any]) -> bool:
    """Whether there are other ranks that hold all these parameters, too."""
    return (
        probe.world_size > 1
        and "deepspeed" not in probe.objects.strategies
        and not any(type(optimizer).__name__ in _PARTIAL for optimizer in optimizers)
    )


weights = _Weights()


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.on_step.append(weights.sample)
    context.on_end.append(weights.sample)
    context.add_reset(weights.reset)
    context.add_metadata(weights.describe)
