"""Collectives of compiled code: their waits, and a note where waits stay hidden.

What `torch.compile` generates calls no function of `torch.distributed`: it calls the operator
`_c10d_functional.wait_tensor` from Python, so that is where its wait is marked. Code generated in
C++ calls it without Python, a replayed CUDA graph (`cuda_captures`) calls nothing, and kernels on
symmetric memory wait while they compute. Such waits look like work of this rank. They are noted in
`UnseenWaits`, and from then on the wait of a step counts as not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ...probe_context import ProbeContext
from ...training_objects import UnseenWaits
from ...wrap import around
from . import collectives, process_groups
from .call_sites import Place, Places
from .torch_support import wrap

probe: ProbeContext

_WAIT = "wait_tensor"
_CHECKS = 512
"""Calls of compiled regions that are checked for hidden collectives after each compilation."""


class _Regions:
    """What is known of compiled regions."""

    checks = 0
    """Calls that are still checked."""
    waits = 0
    """Waits that hooks saw."""


this = _Regions()


class WatchedOperator:
    """Calls an operator of torch, with hooks. torch hashes an operator by what it calls, so this
    has the hash of the original."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def patch_functional(functional_collectives: ModuleType) -> None:
    """Watches the wait of functional collectives, which themselves return at once: the function,
    and the operator, which is called by its name (`eager`) or its overload (generated code)."""
    wrap(functional_collectives, _WAIT, collectives.Call(Places(_WAIT)), collectives.called)
    operator = getattr(torch.ops._c10d_functional, _WAIT, None)
    watch_operator(operator)
    watch_operator(getattr(operator, "default", None))


def watch_operator(operator: Any) -> None:
    """Adds the hooks to what this operator of torch calls, where it is known."""
    original = getattr(operator, "_op", None)
    if callable(original) and not isinstance(original, WatchedOperator):
        hooks = (_wait_begins, collectives.called, probe.fail, probe.was_interrupted)
        call = staticmethod(around(original, *hooks))
        operator._op = type("Watched", (WatchedOperator,), {"__call__": call})(original)


_begins = collectives.Call(Places(_WAIT), frames_up=3)


def _wait_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place | None:
    """Before the wait. What the compiler traces with tensors of its own does not wait."""
    if not args or type(args[0]) is not torch.Tensor:
        return None
    this.waits += 1
    return _begins(args, kwargs)


def patch_regions(output_code: ModuleType) -> None:
    """Checks compiled regions, whatever language they are in."""
    graph = getattr(output_code, "CompiledFxGraph", None)
    if graph is not None:
        if hasattr(graph, "post_compile"):
            wrap(graph, "post_compile", _compiled, _no_end)
        else:  # up to torch 2.5; one that comes from torch's cache is not made anew
            this.checks = _CHECKS
            wrap(graph, "__init__", _compiled, _no_end)
        wrap(graph, "__call__", _region_begins, _region_ends)


def _compiled(_: tuple[Any, ...], __: dict[str, Any]) -> None:
    this.checks = _CHECKS


def _no_end(_: Any, __: Any) -> None:
    """Not called: nothing follows a compilation."""


def _region_begins(_: tuple[Any, ...], __: dict[str, Any]) -> tuple[int, int] | None:
    if not this.checks or probe.world_size < 2 or not probe.mine():
        return None
    this.checks -= 1
    return process_groups.issued(), this.waits


def _region_ends(before: tuple[int, int], _: Any) -> None:
    issued, waits = before
    if process_groups.issued() > issued and this.waits == waits:
        probe.objects.miss_waits(UnseenWaits.COMPILED_CODE)


def patch_symmetric_memory(symmetric_memory: ModuleType) -> None:
    """Notes that kernels may wait for other ranks."""
    wrap(symmetric_memory, "rendezvous", _meets, _no_end)
    wrap(symmetric_memory, "get_symm_mem_workspace", _meets, _no_end)


def _meets(_: tuple[Any, ...], __: dict[str, Any]) -> None:
    probe.objects.miss_waits(UnseenWaits.SYMMETRIC_MEMORY)
