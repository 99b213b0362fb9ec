"""Wraps the functions of `torch.distributed.rpc` in which a process waits for another one.

Processes that train together by remote calls alone are in no process group. A call that a parameter
server answers once all trainers have called is a wait for the slowest of them. A future that
`rpc_async` returns is an object of C++, whose wait cannot be wrapped.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from .call_sites import CallSites
from .collectives import Call, call_ends
from .torch_support import wrap

probe: ProbeContext

_RANK, _WORLD = 2, 3
"""Positions of the arguments of `init_rpc`."""


def patch(api: ModuleType) -> None:
    """Wraps the call that waits for its answer."""
    wrap(api, "rpc_sync", Call(CallSites("rpc_sync")), call_ends)


def patch_joining(rpc: ModuleType) -> None:
    """Wraps joining the other processes."""
    wrap(rpc, "init_rpc", _init_begins, _init_ends)


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
