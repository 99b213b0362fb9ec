"""Switches on torch's timing of NCCL collectives, on request (`mgpu-doctor trace --collectives`).

torch then records one more event per collective, and its flight recorder holds each duration, from
this rank's arrival to the end. The timing can be switched on at any moment, from any thread,
because torch checks the switch for each new collective. It cannot be switched off again. Nothing
here waits for a device.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from ... import worker_server
from ...probe_context import ProbeContext

probe: ProbeContext

BUFFER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables that set the recorder's size: of torch 2.9 and later, and of earlier ones."""
MAX_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_SWITCH = "_enable_collectives_timing"


def serve() -> None:
    """Adds the two request handlers to the rank's worker server."""
    worker_server.handlers["collective_timing"] = describe
    worker_server.handlers["collective_timing_begin"] = begin


def describe() -> bytes:
    """The reply to a query: the rank's number of steps, and why timing would be refused, if so."""
    return _answer(refusal(), 0)


def begin() -> bytes:
    """Switches timing on for all present NCCL groups, and returns the same reply."""
    why = refusal()
    if why is not None:
        return _answer(why, 0)
    groups = _nccl_groups()
    try:
        for group in groups:
            getattr(group, _SWITCH)()
    except RuntimeError as error:
        why = f"torch refused to time collectives: {error}"[:300]
    return _answer(why, len(groups))


def refusal() -> str | None:
    """Why collectives cannot be timed here, as a predicate of the rank; None: they can."""
    if not probe.on:
        return "its probe has switched itself off"
    groups = _nccl_groups()
    if not groups:
        backend = probe.objects.backend or "unknown"
        return f"its backend is {backend}, and only NCCL times collectives"
    if not all(hasattr(group, _SWITCH) for group in groups):
        return f"torch {torch.__version__} cannot time the collectives of a running job"
    if os.environ.get(MAX_CONNECTIONS) == "1":
        return (
            f"with {MAX_CONNECTIONS}=1, timed events keep computation and transfer from overlapping"
        )
    size = next(filter(None, (os.environ.get(name) for name in BUFFER_SIZES)), None)
    if size is not None and size.strip() == "0":
        return "its flight recorder is disabled: start the job without TORCH_FR_BUFFER_SIZE=0"
    return None


def _answer(why: str | None, groups: int) -> bytes:
    """The reply as JSON. `told`: the steps of this rank so far; the key is part of the protocol."""
    state = {"rank": probe.rank, "told": probe.recorded, "why": why, "groups": groups}
    return json.dumps(state).encode()


def _nccl_groups() -> list[Any]:
    """The groups that this rank is in and that have an NCCL backend."""
    world = getattr(torch.distributed.distributed_c10d, "_world", None)
    table = getattr(world, "pg_map", None)
    groups = list(table) if isinstance(table, dict) else []
    return [group for group in groups if any("nccl" in name for name in _backends(group))]


def _backends(group: Any) -> list[str]:
    """Names of a group's backends, one for each type of device: `nccl`, or `processgroupnccl`."""
    names = []
    for device in list(getattr(group, "_device_types", ())):
        try:
            backend = group._get_backend(device)
        except RuntimeError:  # a device without a backend
            continue
        named = getattr(backend, "name", None)
        names.append(str(named() if named is not None else type(backend).__name__).lower())
    return names
