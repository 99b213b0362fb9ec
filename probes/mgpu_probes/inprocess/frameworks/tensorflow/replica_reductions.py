"""Wraps reductions over replicas, in which each replica waits for the others."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ... import layout
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_segments import Call
from . import function_calls, graph_stamps
from .stamp_timeline import REDUCE_BEGINS, REDUCE_ENDS
from .tensorflow_support import is_eager, wrap

probe: ProbeContext

_SITE: Call = ("tensorflow", 0, "reduce")


def patch(distribute_lib: ModuleType) -> None:
    """Wraps `ReplicaContext.all_reduce` and `Strategy.reduce`."""
    context = getattr(distribute_lib, "ReplicaContextBase", distribute_lib.ReplicaContext)
    wrap(context, "all_reduce", _all_reduce_begins, _all_reduce_ends)
    wrap(distribute_lib.StrategyBase, "reduce", _reduce_begins, _reduce_ends)


def patch_legacy(optimizer_utils: ModuleType) -> None:
    """Wraps what the optimizers of Keras 2 (`tf_keras`) call once all replicas are there, where
    `all_reduce` is not called."""
    wrap(optimizer_utils, "_all_reduce_sum_fn", _sum_begins, _all_reduce_ends)


def _sum_begins(args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, Any] | None:
    strategy, pairs = args
    return _begin_in_graph(strategy, [gradient for gradient, _ in pairs])


def _all_reduce_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Any] | None:
    return _begin_in_graph(args[0], args[2] if len(args) > 2 else kwargs.get("value"))


def _begin_in_graph(replicas: Any, value: Any) -> tuple[int, Any] | None:
    """`replicas`: a strategy, or the context of one of its replicas. `value`: what is reduced."""
    if is_eager() or graph_stamps.stampable_graph() is None or _is_single_replica(replicas):
        return None
    replica = graph_stamps.current_replica()
    try:
        graph_stamps.stamp(REDUCE_BEGINS, value, replica)
        graph_stamps.show_phase(layout.WAIT, value, reduces=True)
    except Exception as trouble:
        graph_stamps.disable(trouble)
        return None
    return replica, value


def _is_single_replica(replicas: Any) -> bool:
    """Whether there is no other replica to wait for."""
    return int(getattr(replicas, "num_replicas_in_sync", 2)) < 2


def _all_reduce_ends(token: tuple[int, Any], reduced: Any) -> None:
    try:
        graph_stamps.stamp(REDUCE_ENDS, reduced, token[0])
        graph_stamps.show_phase(layout.OPTIMIZER, reduced)
    except Exception as trouble:
        graph_stamps.disable(trouble)


def _reduce_begins(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    """Marks a reduction that the training loop calls itself, outside of graphs."""
    if (
        probe.world_size < 2
        or function_calls.current_call.facts is not None
        or not probe.mine()
        or not is_eager()
    ):
        return None
    if probe.ledger.phase == layout.WAIT:
        return None
    probe.mark(Steps.call_begins, probe.clock())
    return True


def _reduce_ends(_: bool, __: Any) -> None:
    probe.mark(_mark_reduce_end, probe.clock())


def _mark_reduce_end(steps: Steps, now: int) -> None:
    steps.call_ends(now, _SITE, recurs=False)
