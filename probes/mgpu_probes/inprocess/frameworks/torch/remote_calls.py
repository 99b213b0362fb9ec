"""Wraps the functions of `torch.distributed.rpc` in which a process waits for another one, and
training over it: `torch.distributed.autograd` and `DistributedOptimizer`.

Processes that train together by remote calls alone are in no process group. A call that a parameter
server answers once all trainers have called is a wait for the slowest of them. A future that
`rpc_async` returns is an object of C++, whose wait cannot be wrapped. A distributed backward pass
runs here and on the callees within one call of C++, so it counts as backward as a whole.
"""

from __future__ import annotations

from math import nan
from types import ModuleType
from typing import Any

import torch

from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import backward_ended, updated
from .call_sites import CallSites
from .collectives import Call, call_ends, sends_to
from .torch_support import wrap

probe: ProbeContext

_MOST = 64
"""Callees that are looked up."""
_RANK, _WORLD = 2, 3
"""Positions of the arguments of `init_rpc`."""


class Callees:
    """The ranks that are called, which count as those that messages are sent to: a server is known
    by them. A callee is given by its name, its rank or both."""

    def __init__(self, api: ModuleType) -> None:
        self._api = api
        self._seen: set[str | int] = set()

    def note_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the callee of a call with these arguments."""
        callee = args[0] if args else kwargs.get("to")
        known = callee if isinstance(callee, (str, int)) else getattr(callee, "id", None)
        if known is None or known in self._seen or len(self._seen) >= _MOST:
            return
        self._seen.add(known)
        rank = known if isinstance(known, int) else self._api.get_worker_info(known).id
        sends_to.note_rank(rank)


def patch(api: ModuleType) -> None:
    """Wraps the call that waits for its answer."""
    begins = Call(CallSites("rpc_sync"), peers=Callees(api))
    wrap(api, "rpc_sync", begins, call_ends)


def patch_joining(rpc: ModuleType) -> None:
    """Wraps joining the other processes."""
    wrap(rpc, "init_rpc", _init_begins, _init_ends)


def patch_autograd(autograd: ModuleType) -> None:
    """Wraps the backward pass through remote calls."""
    wrap(autograd, "backward", _backward_begins, _backward_ends)


def patch_optimizer(optimizer: ModuleType) -> None:
    """Wraps the update of weights on several processes: the caller asks for it and waits."""
    wrap(optimizer.DistributedOptimizer, "step", _update_begins, _update_ends)
    waits = Call(CallSites("DistributedOptimizer.step", waits=True))
    wrap(optimizer, "_wait_for_all", waits, call_ends)


def _backward_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    if probe.in_backward or not probe.adopt():
        return None
    probe.trained = True
    roots = args[1] if len(args) > 1 else kwargs.get("roots")
    root = roots[0] if isinstance(roots, (list, tuple)) and roots else None
    loss = nan
    if isinstance(root, torch.Tensor) and root.is_cpu:
        probe.computes_on(None)
        loss = float(root.item()) if root.dim() == 0 else nan
    probe.mark(Steps.backward_begins, probe.clock())
    return loss


def _backward_ends(loss: float, _: Any) -> None:
    probe.mark(backward_ended, probe.clock(), (loss,))


def _update_begins(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    if not probe.adopt():
        return None
    probe.mark(Steps.update_begins, probe.clock())
    return True


def _update_ends(_: bool, __: Any) -> None:
    probe.mark(updated, probe.clock())


def _init_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int] | None:
    if not probe.adopt():
        return None
    rank = args[_RANK] if len(args) > _RANK else kwargs.get("rank")
    world = args[_WORLD] if len(args) > _WORLD else kwargs.get("world_size")
    known = rank if isinstance(rank, int) else -1, world if isinstance(world, int) else -1
    probe.join(*known)
    return known


def _init_ends(known: tuple[int, int], _: Any) -> None:
    probe.joined(*known)
