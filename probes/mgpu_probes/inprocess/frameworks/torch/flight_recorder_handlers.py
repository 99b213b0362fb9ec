"""What a rank answers when it is asked, beside its stacks: torch's record of its collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import worker_server
from ...probe_context import ProbeContext
from . import collective_timing

probe: ProbeContext

_socket: list[str] = []


def listen() -> None:
    """From the moment at which this rank is one of several, or has trained for some steps."""
    if _socket or probe.box is None:
        return
    if probe.world_size > 1:
        _serve_flight_records()
    _socket.extend(filter(None, (worker_server.listen(probe.box.path),)))


def _serve_flight_records() -> None:
    from torch._C import _distributed_c10d as c10d

    for name, dumps in _DUMPS.items():
        names = dumps[:1] if probe.objects.backend == "gloo" else dumps  # NCCL's has nothing of it
        dump = next(filter(None, (getattr(c10d, name, None) for name in names)), None)
        if dump is not None:
            worker_server.handlers[name] = _asking(dump, _GIVEN[name])
    collective_timing.serve()


_DUMPS = {
    "fr_trace": ("_dump_fr_trace", "_dump_nccl_trace"),
    "fr_trace_plain": ("_dump_fr_trace", "_dump_nccl_trace"),
    "fr_trace_json": ("_dump_fr_trace_json", "_dump_nccl_trace_json"),
}
"""Of every backend, and of NCCL alone, which is all that older versions have. The first, a pickle,
has call sites; to look these up for the first time takes torch seconds: to be asked of a rank that
stands. The second is the same without them: JSON may cut durations to whole milliseconds."""
_GIVEN = {
    "fr_trace": (True, True, False),
    "fr_trace_plain": (True, False, False),
    "fr_trace_json": (True, False),
}
"""Collectives, call sites, only those that are under way."""


def _asking(dump: Callable[..., Any], arguments: tuple[bool, ...]) -> Callable[[], bytes]:
    def dump_text() -> bytes:
        dumped = dump(*arguments)
        return dumped.encode() if isinstance(dumped, str) else bytes(dumped)

    return dump_text


def _describe() -> dict[str, Any]:
    return {"worker_socket": _socket[0]} if _socket else {}


def attach(context: ProbeContext) -> None:
    """Adds what this module knows to the process metadata."""
    context.add_metadata(_describe)
    context.add_reset(_socket.clear)
