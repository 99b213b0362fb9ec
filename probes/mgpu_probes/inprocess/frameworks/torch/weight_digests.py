"""Records digests of the parameters at some steps, by which replicas on other ranks are
compared."""

from __future__ import annotations

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

    def sample(self) -> None:
        """Adds a row. The context calls it after some steps and when the process ends."""
        if probe.world_size < 2:
            return
        optimizers = [optimizer.subject for optimizer in probe.objects.optimizers.values()]
        if "deepspeed" in probe.objects.strategies or any(
            type(optimizer).__name__ in _PARTIAL for optimizer in optimizers
        ):
            return
        groups = [
            group
            for optimizer in optimizers
            for group in getattr(optimizer, "param_groups", None) or ()
        ]
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


weights = _Weights()


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.on_step.append(weights.sample)
    context.on_end.append(weights.sample)
    context.add_reset(weights.reset)
    context.add_metadata(weights.describe)
