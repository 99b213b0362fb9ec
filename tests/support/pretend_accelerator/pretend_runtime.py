"""The Python side of the pretend device: `torch.pretend` and a process group."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

_untyped: Any = dist
NAME = "pretend"
MOST_COLLECTIVES = 1 << 15
"""Of one group."""


class Stream(torch.Stream):
    """As torch.cuda.Stream."""

    def __new__(cls, **stream: Any) -> Any:
        return super().__new__(cls, **(stream or {"device": NAME}))

    def wait_event(self, event: Any) -> None:
        """What is queued from now on begins after the event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """What is queued from now on begins after all that is queued in `stream`."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """An event at the end of the stream."""
        event = event or Event()
        event.record(self)
        return event


def Event(enable_timing: bool = False) -> Any:  # noqa: N802 - as torch.cuda.Event
    """An event of this device. Not a class of its own: torch measures between its own events."""
    return torch.Event(NAME, enable_timing=enable_timing)


class _Within(AbstractContextManager[None]):
    """Makes a stream the current one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.__enter__()

    def __exit__(self, *trouble: Any) -> None:
        if self._stream is not None:
            self._stream.__exit__(*trouble)


def current_stream(_: Any = None) -> Any:
    """Of the calling thread."""
    stream = torch.accelerator.current_stream()
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


class Work(_untyped._Work):  # type: ignore[misc]
    """The handle of a collective that was queued."""

    def __init__(self, module: Any, event: Any, result: Any, device: torch.device) -> None:
        super().__init__()
        self._module = module
        self._event = event
        self._result = result
        self._future: Any = torch.futures.Future(devices=[device])
        self._future.set_result(result)

    def wait(self, _: Any = None) -> bool:
        """The current stream waits; the host does not."""
        self._module.current_stream().wait_event(self._event)
        return True

    def result(self) -> Any:
        """The tensors."""
        return self._result

    def get_future(self) -> Any:
        """Its streams wait for the collective."""
        return self._future


class Group(_untyped.ProcessGroup):  # type: ignore[misc]
    """A process group whose collectives run in a stream of their own, and move nothing. Other
    devices with streams can take the place of the pretend one."""

    module: Any = None
    """`torch.pretend`, `torch.cuda`, …"""
    device = NAME
    moving_ns = 200_000
    """How long the data moves once all ranks have arrived."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._messages_at = MOST_COLLECTIVES * size * 8
        """Behind the slots of collectives: as many bytes for messages, the same for each pair."""
        if rank == 0:
            path = f"/dev/shm/pretend-{os.getpid()}-{id(self):x}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            os.ftruncate(descriptor, 2 * self._messages_at)
            store.set("pretend", path)
        else:
            path = store.get("pretend").decode()
            descriptor = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(descriptor, 2 * self._messages_at)
        os.close(descriptor)
        store.add("opened", 1)
        while rank == 0 and store.add("opened", 0) < size:
            pass
        if rank == 0:
            os.unlink(path)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._open(self._address, 2 * self._messages_at)
        self._stream = self.module.Stream(device=self.device)
        self._sequence = 0
        self._channels: dict[tuple[int, int], tuple[Any, int]] = {}
        """Sender and receiver -> the stream of their messages, and how many there were."""
        self._name = ""

    def _open(self, address: int, size: int) -> None:
        """Makes the memory that all ranks share usable for the device."""

    def _meet(self, address: int) -> None:
        """Has the current stream wait until all ranks have come to this collective, and move."""
        self.module.native.collective(address, self._size, self._rank, self.moving_ns)

    def getBackendName(self) -> str:  # noqa: N802
        """As of ProcessGroup."""
        return self.device

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """As of ProcessGroup."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """As of ProcessGroup."""
        return self._name

    def _queue(self, result: Sequence[torch.Tensor]) -> Work:
        assert self._sequence < MOST_COLLECTIVES
        address = self._address + self._sequence * self._size * 8
        self._sequence += 1
        self._stream.wait_stream(self.module.current_stream())
        with self.module.stream(self._stream):
            self._meet(address)
            event = self.module.Event()
            event.record(self._stream)
            return Work(self.module, event, result, torch.device(self.device, 0))

    def _exchange(self, tensors: Sequence[torch.Tensor], sender: int, receiver: int) -> Work:
        """A message begins when both ranks have queued it."""
        stream, number = self._channels.get((sender, receiver), (None, 0))
        stream = stream or self.module.Stream(device=self.device)
        self._channels[sender, receiver] = stream, number + 1
        slots = MOST_COLLECTIVES // (2 * self._size)
        assert number < slots
        first = (sender * self._size + receiver) * slots
        address = self._address + self._messages_at + (first + number) * 16
        stream.wait_stream(self.module.current_stream())
        with self.module.stream(stream):
            self.module.native.collective(address, 2, int(self._rank == receiver), self.moving_ns)
            event = self.module.Event()
            event.record(stream)
            return Work(self.module, event, tensors, torch.device(self.device, 0))

    def send(self, tensors: Any, receiver: int, _: int = 0) -> Work:
        """As of ProcessGroup; only integers move, as objects are sent by them."""
        for tensor in tensors:
            if not tensor.is_floating_point():
                key = self._message_key(self._rank, receiver)
                self._store.set(key, tensor.cpu().numpy().tobytes())
        return self._exchange(tensors, self._rank, receiver)

    @torch.no_grad()
    def recv(self, tensors: Any, sender: int, _: int = 0) -> Work:
        """As of ProcessGroup; of floats, zeros arrive."""
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.zero_()
            else:
                sent = bytearray(self._store.get(self._message_key(sender, self._rank)))
                tensor.copy_(torch.frombuffer(sent, dtype=tensor.dtype).view_as(tensor))
        return self._exchange(tensors, sender, self._rank)

    def _message_key(self, sender: int, receiver: int) -> str:
        _, number = self._channels.get((sender, receiver), (None, 0))
        return f"message {sender} {receiver} {number}"

    def allreduce(self, tensors: Any, _: Any = None) -> Work:
        """As of ProcessGroup; the values stay."""
        return self._queue(tensors)

    def broadcast(self, tensors: Any, _: Any = None) -> Work:
        """As of ProcessGroup; the values stay."""
        return self._queue(tensors)

    def barrier(self, opts: Any = None) -> Work:  # noqa: ARG002
        """As of ProcessGroup."""
        return self._queue([])

    def allgather(self, outputs: Any, inputs: Any, _: Any = None) -> Work:
        """As of ProcessGroup; every part is this rank's own."""
        for output, input in zip(outputs, inputs, strict=True):
            for part in output:
                part.copy_(input)
        return self._queue(outputs)

    def _allgather_base(self, output: Any, given: Any, _: Any = None) -> Work:
        output.view(self._size, -1).copy_(given.reshape(1, -1).expand(self._size, -1))
        return self._queue([output])

    def all_gather_single(self, output: Any, given: Any, _: Any = None) -> Work:
        """As of ProcessGroup since torch 2.13."""
        return self._allgather_base(output, given)

    def reduce_scatter_single(self, output: Any, given: Any, _: Any = None) -> Work:
        """As of ProcessGroup since torch 2.13."""
        return self._reduce_scatter_base(output, given)

    def _reduce_scatter_base(self, output: Any, given: Any, _: Any = None) -> Work:
        output.view(-1).copy_(given.view(self._size, -1)[self._rank])
        return self._queue([output])


def _make_group(store: Any, rank: int, size: int, _: Any) -> Group:
    return Group(store, rank, size)


def register(native: Any) -> ModuleType:
    """Registers the compiled device in this process; `torch.pretend`."""
    module = ModuleType(f"torch.{NAME}")
    vars(module).update(
        Stream=Stream,
        Event=Event,
        current_stream=current_stream,
        stream=_Within,
        current_device=lambda: 0,
        device_count=lambda: 1,
        is_available=lambda: True,
        is_initialized=lambda: True,
        set_device=lambda _: None,
        synchronize=lambda _=None: torch.accelerator.synchronize(),
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _: None,
        get_rng_state=lambda _=None: torch.zeros(0, dtype=torch.uint8),
        set_rng_state=lambda *_: None,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        native=native,
    )
    sys.modules[module.__name__] = module
    backend: Any = torch.utils
    backend.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)
    backend.generate_methods_for_privateuse1_backend()
    Group.module = module
    dist.Backend.register_backend(NAME, _make_group, devices=[NAME])
    return module
