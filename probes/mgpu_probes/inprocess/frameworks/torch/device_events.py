"""Times the steps of a torch job on its GPU, by events in the stream in which the training
computes.

The home stream is the training thread's current stream at the begin of the backward pass, on the
device of the loss. Without backward passes it is the one on the device of the weights, at the first
update, or of the reduced tensors, at a recurring collective. Work in other streams (NCCL's, FSDP's,
a prefetcher's) shows where the home stream waits for it: in `Stream.wait_event` and `wait_stream`,
and in c10d's own waits. If the host waits for it instead, as DeepSpeed does, the home stream runs
empty: that shows in `synchronize`.

A process whose model is spread over several devices is not timed, because a wait for other ranks in
a stream of another device would look like work.

Nothing here synchronizes, and nothing touches an event while a CUDA graph is being captured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

import torch

from ... import layout
from ...device_clock import MOST_EVENTS, DeviceTimer
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import batch_copied
from . import cuda_captures
from .torch_support import tensors_of, wrap

probe: ProbeContext

_SLOTS = MOST_EVENTS
"""Values that are copied to the host and not read yet. There are at most two per turn, and a turn
has at least four events."""
_COMMUNICATES = ("torch.distributed", "deepspeed", "megatron", "apex")
"""Packages in which the compute stream waits for other ranks."""
_ONE_CONNECTION = (
    "CUDA_DEVICE_MAX_CONNECTIONS is 1: events between kernels would keep computing and "
    "communication from overlapping"
)


class StreamEvents:
    """The `DeviceClock` of one stream: events recorded in it. Resolution: that of the device's
    timer, about 0.5 µs."""

    def __init__(self, stream: Any, make: Callable[..., Any]) -> None:
        """`make`: a class of events, such as `torch.cuda.Event`."""
        self.stream = stream
        self._make = make
        self._free: list[Any] = []
        self._made = 0

    def record(self) -> Any | None:
        """As DeviceClock."""
        with cuda_captures.lock:
            if cuda_captures.is_capturing():
                return None
            if self._free:
                event = self._free.pop()
            elif self._made < MOST_EVENTS:
                event = self._make(enable_timing=True)
                self._made += 1
            else:
                return None
            event.record(self.stream)
            return event

    def has_completed(self, event: Any) -> bool:
        """As DeviceClock."""
        with cuda_captures.lock:
            return not cuda_captures.is_capturing() and bool(event.query())

    def nanoseconds_between(self, earlier: Any, later: Any) -> int:
        """As DeviceClock."""
        return int(earlier.elapsed_time(later) * 1e6)

    def give_back(self, events: list[Any]) -> None:
        """As DeviceClock."""
        self._free += events

    def enter_thread(self) -> bool:
        """As DeviceClock. First selects this process's device for the thread: any call on CUDA's
        default device would allocate half a GiB there."""
        device = self.stream.device
        select: Any = getattr(getattr(torch, device.type), "set_device", None)
        if select is None:
            return False
        select(device)
        return device.type != "cuda" or cuda_captures.allow_queries_during_captures()


class _Home:
    """The device and stream on which this process trains, and the state of its timing."""

    device: Any = None
    module: Any = None
    """torch's module for this kind of device, such as `torch.cuda`."""
    events: StreamEvents | None = None
    values: Any = None
    """Pinned host memory, into which the device writes values that are read later."""
    used = 0
    """The next free slot of `values`."""
    waits = False
    """Whether the process is inside a call in which its stream waits for another one."""
    batch: frozenset[tuple[Any, Any]] = frozenset()
    """Shape and dtype of each host tensor of the newest batch, if no module was called since."""
    communicating: set[int] = set()  # noqa: RUF012 - there is one `_Home`
    """Ids of other streams in which collectives were called."""
    trained: set[str] = set()  # noqa: RUF012
    """Devices of the trained weights."""


home = _Home()


def begin_backward(loss: Any) -> None:
    """Notes that a backward pass begins with this loss, which is on a device. Call it from the
    training thread, before the pass is marked."""
    timer = probe.device_timer
    if timer is None:
        time_on(loss.device)
    elif timer.is_timing:
        _check_home(timer, loss)


def begin_update(optimizer: Any) -> None:
    """Notes that an optimizer steps although no backward pass has run: gradients come from
    elsewhere."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            time_on(parameter.device)
            return


def time_on(device: torch.device) -> None:
    """Starts timing steps on this device, if that is possible and it is not the host itself."""
    if device.type in {"cpu", "meta"} or probe.device_timer is not None:
        return
    if probe.accelerator is None:
        probe.computes_on(str(device))
    if probe.why_untimed is None:
        try:
            probe.why_untimed = _start(device)
        except RuntimeError as error:  # a device without streams or events
            probe.why_untimed = str(error)[:200]


def _start(device: torch.device) -> str | None:
    """Starts timing on this device. Returns why it cannot be timed; None: it is timed from now
    on."""
    if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        return _ONE_CONNECTION
    module: Any = getattr(torch, device.type, None)  # torch.cuda, torch.xpu, …
    if not hasattr(module, "Event") or not hasattr(module, "current_stream"):
        return f"torch has no events of {device.type} devices"
    with cuda_captures.lock:
        if cuda_captures.is_capturing():
            return None
        home.values = _page_locked()
    home.device, home.module = device, module
    home.events = StreamEvents(module.current_stream(device), module.Event)
    wrap(module.Stream, "wait_event", _waits_for_event, _waited)
    wrap(module.Stream, "wait_stream", _waits_for_stream, _waited)
    wrap(module.Stream, "synchronize", _host_waits_for_stream, _waited)
    wrap(module.Event, "synchronize", _host_waits_for_event, _waited)
    wrap(module, "synchronize", _host_waits_for_device, _waited)
    probe.time_on_device(home.events, {Steps.backward_begins, Steps.gradient_begins})
    return None


def trains_on(devices: Collection[str]) -> None:
    """Notes that an optimizer updates weights on these devices (`cuda:0`, …)."""
    home.trained.update(devices)
    if len(home.trained) > 1:
        _stop_timing_several(home.trained)


def communicates_on(device: torch.device) -> None:
    """Notes that a collective transfers a tensor on this device."""
    if home.device is not None and device.type == home.device.type and device != home.device:
        _stop_timing_several({str(home.device), str(device)})


def _stop_timing_several(devices: Collection[str]) -> None:
    listed = ", ".join(sorted(devices))
    probe.stop_timing(f"this process computes on several devices: {listed}")


def _page_locked() -> Any | None:
    """Pinned host memory, which the device can write asynchronously; None: it is not available."""
    try:
        return torch.empty(_SLOTS, dtype=torch.float64, pin_memory=True)
    except RuntimeError:
        return None


def _check_home(timer: DeviceTimer, loss: Any) -> None:
    assert home.events is not None
    if loss.device != home.device:
        _stop_timing_several({str(home.device), str(loss.device)})
        return
    stream = home.module.current_stream(loss.device)
    if stream != home.events.stream:
        timer.drop()
        home.events.stream = stream
    elif loss.dim() == 0 and loss.is_floating_point():
        timer.read_later(loss=_copy(loss))


def skips_update(optimizer: Any) -> None:
    """Reads later whether the optimizer skips its update: a fused optimizer skips it if gradients
    are not finite, which only the device knows."""
    timer = probe.device_timer
    if timer is None or not timer.is_timing:
        return
    overflow = getattr(optimizer, "found_inf", None)
    if isinstance(overflow, torch.Tensor) and overflow.numel() == 1:
        timer.read_later(skipped=_copy(overflow))


def _copy(value: Any) -> Callable[[], float] | None:
    """Queues a copy of a device's value to host memory. Returns its reader; None if impossible."""
    with cuda_captures.lock:
        if home.values is None or value.device != home.device or cuda_captures.is_capturing():
            return None
        slot = home.values[home.used]
        home.used = (home.used + 1) % _SLOTS
        with torch.no_grad():
            slot.copy_(value.detach().reshape(()), non_blocking=True)
    return slot.item  # type: ignore[no-any-return]


# --- copies of batches --------------------------------------------------------------------------


def fetched(batch: Any) -> None:
    """Notes that the loader returned a batch, in a timed turn."""
    home.batch = frozenset(
        (tensor.shape, tensor.dtype) for tensor in tensors_of(batch) if tensor.is_cpu
    )


def enters_module(inputs: Any) -> None:
    """Marks the copy of a batch when a wrapped module is called in a timed turn: inputs on the
    device with the shapes of the fetched tensors were copied in between. Other device work since
    the fetch counts as transfer, too, because no mark separates it."""
    batch, home.batch = home.batch, frozenset()
    for tensor in tensors_of(inputs) if batch else ():
        if tensor.device == home.device and (tensor.shape, tensor.dtype) in batch:
            probe.mark_device(batch_copied)
            break


# --- waits of the home stream -----------------------------------------------------------------


def communicates() -> None:
    """Notes that a collective is called in the current stream."""
    timer = probe.device_timer
    if timer is None or not timer.is_timing or home.events is None:
        return
    stream = home.module.current_stream(home.device)
    if stream != home.events.stream:
        home.communicating.add(stream.stream_id)


def _may_wait() -> bool:
    """Whether a wait may be marked: in a timed turn, from a thread that sets marks, not nested."""
    timer = probe.device_timer
    return (
        timer is not None
        and timer.is_timing
        and not home.waits
        and probe.mine()
        and probe.ledger.phase != layout.WAIT
    )


def _is_timed(stream: Any) -> bool:
    return home.events is not None and stream == home.events.stream and _may_wait()


def _communicates_in(stream: Any, caller: FrameType) -> bool:
    """Whether a wait for this stream is a wait for other ranks: the caller is a package that
    communicates, or collectives were called in the stream. Otherwise batches are copied in it."""
    package = str(caller.f_globals.get("__name__", ""))
    return package.startswith(_COMMUNICATES) or (
        getattr(stream, "stream_id", None) in home.communicating
    )


def _waits_for_event(args: tuple[Any, ...], _: dict[str, Any]) -> bool | None:
    """Before `Stream.wait_event`. The event's stream is unknown, so it counts as a wait."""
    if not _is_timed(args[0]):
        return None
    home.waits = True
    probe.mark_device(_wait_begins)
    return True


def _waits_for_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Before `Stream.wait_stream`."""
    if not _is_timed(args[0]):
        return None
    other = args[1] if len(args) > 1 else kwargs.get("stream")
    return _enter(other, sys._getframe(2))


def _enter(stream: Any, caller: FrameType) -> bool:
    home.waits = True
    waits = _communicates_in(stream, caller)
    probe.mark_device(_wait_begins if waits else _transfer_begins)
    return True


# --- waits of the host, during which the home stream runs empty -------------------------------


def _host_waits_for_stream(args: tuple[Any, ...], _: dict[str, Any]) -> bool | None:
    """Before `Stream.synchronize`, unless it waits for the home stream itself."""
    events = home.events
    if events is None or args[0] == events.stream or not _may_wait():
        return None
    return _enter(args[0], sys._getframe(2))


def _host_waits_for_event(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    """Before `Event.synchronize`. The event's stream is unknown, so the caller decides."""
    caller = sys._getframe(2)
    if not _may_wait() or not _communicates_in(None, caller):
        return None
    return _enter(None, caller)


def _host_waits_for_device(_: tuple[Any, ...], __: dict[str, Any]) -> bool | None:
    """Before `torch.cuda.synchronize`, which waits for all streams, including those of
    collectives."""
    if probe.world_size <= 1 or not _may_wait():
        return None
    home.waits = True
    probe.mark_device(_wait_begins)
    return True


def _waited(_: bool, __: Any) -> None:
    home.waits = False
    probe.mark_device(_wait_ends)


def _wait_begins(steps: Steps, now: int) -> None:
    steps.ledger.enter(layout.WAIT, now)


def _transfer_begins(steps: Steps, now: int) -> None:
    steps.ledger.enter(layout.TRANSFER, now)


def _wait_ends(steps: Steps, now: int) -> None:
    steps.ledger.leave(now)


def _describe() -> dict[str, Any]:
    timer = probe.device_timer
    if timer is None:
        return {"untimed": probe.why_untimed} if probe.why_untimed else {}
    return {"device_timing": {"interval": timer.interval, "dropped": timer.dropped}}


def attach(context: ProbeContext) -> None:
    """Adds the state of the timing to the process metadata."""
    context.add_metadata(_describe)
