"""A sample of the parameters now and then, to be compared with the other ranks' at that moment."""

from __future__ import annotations

from typing import Any

from ...probe_context import ProbeContext
from . import tensor_digests

probe: ProbeContext

_FIRST, _LAST = 16, 16
"""Moments that are kept, of a long run."""
_PARTIAL = frozenset({"ZeroRedundancyOptimizer", "DistributedOptimizer"})
"""Optimizers that hold a part of the parameters in each rank."""


class _Weights:
    """Rows of step, sequence number of the default group, updates and digest."""

    def __init__(self) -> None:
        self.updates = 0
        """Optimizer steps so far."""
        self.rows: list[list[Any]] = []

    def look(self) -> None:
        """Called by the probe after a step that is due, and when the process ends."""
        if probe.world_size < 2:
            return
        optimizers = [optimizer.thing for optimizer in probe.objects.optimizers.values()]
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
        """For the process metadata."""
        return {"weights": list(self.rows)}

    def start_anew(self) -> None:
        """In a new box: what a forked child's parent did is not the child's."""
        self.updates = 0
        self.rows.clear()


weights = _Weights()


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.on_step.append(weights.look)
    context.on_end.append(weights.look)
    context.add_reset(weights.start_anew)
    context.add_metadata(weights.describe)
