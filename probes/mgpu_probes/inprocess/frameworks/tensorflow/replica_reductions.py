"""Reductions over replicas: there each waits for the others."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_segments import Call
from . import function_calls, graph_stamps
from .stamp_timeline import REDUCED, REDUCES
from .tensorflow_support import eagerly, wrap

probe: ProbeContext

_SITE: Call = ("tensorflow", 0, "reduce")


def patch(distribute_lib: ModuleType) -> None:
    """Wraps what optimizers and training loops reduce with."""
    context = getattr(distribute_lib, "ReplicaContextBase", distribute_lib.ReplicaContext)
    wrap(context, "all_reduce", _begins, _ends)
    wrap(distribute_lib.StrategyBase, "reduce", _reduces, _reduced)


def _begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Any] | None:
    if eagerly() or graph_stamps.graph() is None or _alone(args[0]):
        return None
    value = args[2] if len(args) > 2 else kwargs.get("value")
    replica = graph_stamps.replica_of()
    try:
        graph_stamps.stamp(REDUCES, value, replica)
        graph_stamps.live(layout.WAIT, value, reduces=True)
    except Exception as trouble:
        graph_stamps.fail(trouble)
        return None
    return replica, value


def _alone(context: Any) -> bool:
    """Whether there is nobody to wait for."""
    return int(getattr(context, "num_replicas_in_sync", 2)) < 2


def _ends(token: tuple[int, Any], reduced: Any) -> None:
    try:
        graph_stamps.stamp(REDUCED, reduced, token[0])
        graph_stamps.live(layout.OPTIMIZER, reduced)
    except Exception as trouble:
        graph_stamps.fail(trouble)


def _reduces(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    """A reduction that the training loop asks for itself."""
    if (
        probe.world_size < 2
        or function_calls.current_call.facts is not None
        or not probe.mine()
        or not eagerly()
    ):
        return None
    if probe.ledger.phase == layout.WAIT:
        return None
    probe.mark(Steps.call_begins, probe.clock())
    return True


def _reduced(_: bool, __: Any) -> None:
    probe.mark(_returned, probe.clock())


def _returned(steps: Steps, now: int) -> None:
    steps.call_ends(now, _SITE, recurs=False)
