"""Serves torch's flight recorder over the rank's worker server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import worker_server
from ...probe_context import ProbeContext
from . import collective_timing

probe: ProbeContext

_socket: list[str] = []


def listen() -> None:
    """Starts the worker server, once the rank has joined a group or trained for some steps."""
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
            worker_server.handlers[name] = _make_handler(dump, _ARGUMENTS[name])
    collective_timing.serve()


_DUMPS = {
    "fr_trace": ("_dump_fr_trace", "_dump_nccl_trace"),
    "fr_trace_plain": ("_dump_fr_trace", "_dump_nccl_trace"),
    "fr_trace_json": ("_dump_fr_trace_json", "_dump_nccl_trace_json"),
}
"""Requests -> functions of torch that answer: that of every backend, then that of NCCL alone, which
is all that older versions have. `fr_trace` is a pickle with call sites; torch needs seconds to look
these up for the first time, so only a rank that hangs is asked for it. `fr_trace_plain` has none.
`fr_trace_json` may round durations to milliseconds."""
_ARGUMENTS = {
    "fr_trace": (True, True, False),
    "fr_trace_plain": (True, False, False),
    "fr_trace_json": (True, False),
}
"""Arguments of the functions: include collectives, include call sites, only unfinished ones."""


def _make_handler(dump: Callable[..., Any], arguments: tuple[bool, ...]) -> Callable[[], bytes]:
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
