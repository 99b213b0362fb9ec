"""Marks the waits of collectives in compiled code, and notes if some waits cannot be seen.

Code that `torch.compile` generates does not call `torch.distributed`. It calls the operator
`_c10d_functional.wait_tensor` from Python, which is therefore wrapped. Generated C++ calls the
operator without Python, a replayed CUDA graph (`cuda_captures`) calls nothing, and kernels on
symmetric memory wait while they compute. Such waits would look like this rank's own work. They are
noted as `UnseenWaits`, and from then on the wait of a step counts as not measured.
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
from .call_sites import CallSite, CallSites
from .torch_support import wrap

probe: ProbeContext

_WAIT = "wait_tensor"
_CHECKS = 512
"""Calls of compiled regions that are checked for hidden collectives after each compilation."""


class _Regions:
    """Counters for the check of compiled regions."""

    checks = 0
    """How many more calls of compiled regions are checked."""
    waits = 0
    """Waits that the hooks have seen so far."""


regions = _Regions()


class WatchedOperator:
    """A callable in place of an operator's function, with hooks. It hashes and compares like the
    original, because torch hashes an operator by its function."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def patch_functional(functional_collectives: ModuleType) -> None:
    """Wraps the wait of functional collectives: the Python function, the operator (called in eager
    mode), and its default overload (called by generated code). The collectives return at once."""
    wrap(functional_collectives, _WAIT, collectives.Call(CallSites(_WAIT)), collectives.call_ends)
    operator = getattr(torch.ops._c10d_functional, _WAIT, None)
    watch_operator(operator)
    watch_operator(getattr(operator, "default", None))


def watch_operator(operator: Any) -> None:
    """Adds the hooks to the function of an operator (private attribute `_op`), if there is one."""
    original = getattr(operator, "_op", None)
    if callable(original) and not isinstance(original, WatchedOperator):
        hooks = (_wait_begins, collectives.call_ends, probe.fail, probe.was_interrupted)
        call = staticmethod(around(original, *hooks))
        operator._op = type("Watched", (WatchedOperator,), {"__call__": call})(original)


_begins = collectives.Call(CallSites(_WAIT), frames_up=3)


def _wait_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSite | None:
    """The hook before a wait. Calls with the compiler's own kinds of tensors are not waits."""
    if not args or type(args[0]) is not torch.Tensor:
        return None
    regions.waits += 1
    return _begins(args, kwargs)


def patch_regions(output_code: ModuleType) -> None:
    """Wraps compiled regions, to check whether they issue collectives that the hooks do not see."""
    graph = getattr(output_code, "CompiledFxGraph", None)
    if graph is not None:
        if hasattr(graph, "post_compile"):
            wrap(graph, "post_compile", _compile_begins, _ignore)
        else:  # up to torch 2.5; a graph from torch's cache is not made anew there
            regions.checks = _CHECKS
            wrap(graph, "__init__", _compile_begins, _ignore)
        wrap(graph, "__call__", _region_begins, _region_ends)


def _compile_begins(_: tuple[Any, ...], __: dict[str, Any]) -> None:
    regions.checks = _CHECKS


def _ignore(_: Any, __: Any) -> None:
    """Never called, because the hooks before it return None."""


def _region_begins(_: tuple[Any, ...], __: dict[str, Any]) -> tuple[int, int] | None:
    if not regions.checks or probe.world_size < 2 or not probe.mine():
        return None
    regions.checks -= 1
    return process_groups.count_issued(), regions.waits


def _region_ends(before: tuple[int, int], _: Any) -> None:
    issued, waits = before
    if process_groups.count_issued() > issued and regions.waits == waits:
        probe.objects.note_unseen_waits(UnseenWaits.COMPILED_CODE)


def patch_symmetric_memory(symmetric_memory: ModuleType) -> None:
    """Wraps the setup of symmetric memory: afterwards kernels may wait for other ranks unseen."""
    wrap(symmetric_memory, "rendezvous", _note_symmetric_memory, _ignore)
    wrap(symmetric_memory, "get_symm_mem_workspace", _note_symmetric_memory, _ignore)


def _note_symmetric_memory(_: tuple[Any, ...], __: dict[str, Any]) -> None:
    probe.objects.note_unseen_waits(UnseenWaits.SYMMETRIC_MEMORY)
