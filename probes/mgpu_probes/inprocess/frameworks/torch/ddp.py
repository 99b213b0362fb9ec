"""Wraps DistributedDataParallel: marks its forward pass, its waits in buffer broadcasts, and times
its search for unused parameters. `ddp_reducer` reads its statistics."""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from ... import layout
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import evaluation_forward_begins, evaluation_forward_ends
from ...wrap import around, hidden, wrapped
from . import autograd, ddp_reducer, device_events
from .batch_digests import batches
from .torch_support import ignore_at_rest, wrap

probe: ProbeContext

_FORWARD, _FORWARD_ENDS, _CALLS = Steps.forward_begins, Steps.forward_ends, Steps.call_begins


def patch(distributed: ModuleType) -> None:
    """Wraps `forward` and `__init__` of the class."""
    ddp = distributed.DistributedDataParallel
    wrap(ddp, "forward", forward_begins, forward_ends, raised_at_rest=ignore_at_rest)
    wrap(ddp, "__init__", _making, _made)


def forward_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """The hook before the call of a wrapped module, the first argument."""
    if not probe.on or get_ident() != probe.owner:
        return None
    training = torch.is_grad_enabled()
    if training:
        if batches.inputs_wanted:
            batches.note_inputs([*args[1:], kwargs])
        module = args[0]
        sample = ddp_reducer.known.get(id(module))
        if sample is not None:
            sample.forwards += 1
            if module.require_backward_grad_sync:
                if sample.synced == sample.due:
                    sample.read_sample()
                sample.synced += 1
        timer = probe.device_timer
        if timer is not None and timer.is_timing:
            device_events.enters_module([*args[1:], kwargs])
        probe.mark(_FORWARD, probe.clock())
    else:
        probe.mark(evaluation_forward_begins, probe.clock())
    return training


def forward_ends(training: bool, _: Any) -> None:
    """The hook after the call."""
    if training:
        probe.mark(_FORWARD_ENDS, probe.clock())
    else:
        probe.mark(evaluation_forward_ends, probe.clock())


def _making(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _made(module: Any, _: Any) -> None:
    autograd.this.engine_waits = True
    one = ddp_reducer.note_module(module)
    if one is not None and one.searches:
        _time_searches(type(module))
    if next(iter(module.buffers()), None) is not None:
        _watch_buffers(type(module))
    _watch(module)


def _time_searches(ddp: Any) -> None:
    """Times what follows each forward pass of a module that searches for unused parameters: little
    else than the search. torch.compile, which DistributedDataParallel loads, must skip the wrapper
    as it skips the original, so the wrapper calls no other function of the probe."""
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    original = getattr(ddp, "_post_forward", None)
    if skip is None or original is None or wrapped(original):
        return
    known, enabled = ddp_reducer.known, torch.is_grad_enabled

    @functools.wraps(original)
    def post_forward(module: Any, output: Any) -> Any:
        sample = known.get(id(module))
        if sample is None or not sample.searches or not module.require_backward_grad_sync:
            return original(module, output)
        began = probe.clock()
        result = original(module, output)
        if enabled():
            sample.scans += 1
            sample.scan_nanoseconds += probe.clock() - began
        return result

    ddp._post_forward = hidden(post_forward)
    skip(ddp._post_forward.__code__)


def _watch_buffers(ddp: Any) -> None:
    """Marks the broadcast of buffers (of batch norm, for example) before each forward pass: with
    gloo the first rank waits there for the others. In code that torch.compile compiles, only the
    original may run."""
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    inside = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    compiles = _read_compiler(inside)
    original = getattr(ddp, "_sync_buffers", None)
    if skip is None or compiles is None or original is None or wrapped(original):
        return
    watched = around(original, _buffers_begin, _buffers_end, probe.fail, probe.was_interrupted)

    @functools.wraps(original)
    def sync_buffers(module: Any) -> Any:
        return watched(module) if compiles() is None else original(module)

    ddp._sync_buffers = hidden(sync_buffers)
    skip(ddp._sync_buffers.__code__)


def _read_compiler(eval_frame: Any) -> Any:
    """What gives the callback that compiles the calling thread's frames, None for none; None where
    this torch has nothing to read it by."""
    read = getattr(eval_frame, "get_eval_frame_callback", None)
    put = getattr(eval_frame, "set_eval_frame", None)
    if read is not None or put is None:
        return read

    def read_by_putting() -> Any:  # older versions give it only in exchange for another
        callback = put(None)
        put(callback)
        return callback

    return read_by_putting


def _buffers_begin(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    if not probe.mine() or probe.ledger.phase == layout.WAIT:
        return None
    probe.mark(_CALLS, probe.clock())
    return True


def _buffers_end(_: bool, __: Any) -> None:
    probe.mark(buffers_synced, probe.clock())


def buffers_synced(steps: Steps, now: int) -> None:
    """The broadcast of buffers ends."""
    steps.call_ends(now)


def _watch(module: Any) -> None:
    """Has one parameter of the module mark the wait in its backward passes. Possible only if all
    parameters take part in every pass and the module queues no callback before."""
    unusual = ("find_unused_parameters", "static_graph")
    if any(getattr(module, setting, True) for setting in unusual):
        autograd.this.modules_alike = False
        return
    for parameter in getattr(module, "_module_parameters", ()):
        if parameter.requires_grad and parameter.is_cpu:
            with torch.enable_grad():
                autograd.watch(parameter.expand_as(parameter).grad_fn.next_functions[0][0])
            return
