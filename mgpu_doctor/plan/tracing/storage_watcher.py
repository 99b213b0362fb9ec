"""Watches the storages of tensors being made and freed, as a caching allocator would see them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.flop_counter import flop_registry

from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream

MOST_EVENTS = 2_000_000
_DEVICE = torch.ops.prim.device.default
_VALUE = torch.ops.aten._local_scalar_dense.default
_SAME_WORK = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        torch.ops.aten._scaled_dot_product_flash_attention
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ),
}
"""Operators without a FLOP formula in torch -> an equivalent one."""
_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
LSTM = (
    "what an LSTM keeps inside its kernel for backward is not traced: the step needs more than "
    "shown"
)
"""A fake LSTM has no workspace bytes, and cuDNN has another reserve space."""


class UnfollowableError(Exception):
    """The step does something that cannot be traced; the message says what, as the end of a
    sentence."""


class StorageWatcher(TorchDispatchMode):
    """Records every storage that an operator makes while this mode is active, until it is freed.

    Sees what goes through the dispatcher, which scratch memory inside a kernel does not. `fake`:
    whether values are unknown.
    """

    def __init__(self, *, fake: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = fake
        self.phase = Phase.SETUP
        self.flops = 0
        self.values_read = 0
        """How often the step read a number from a tensor; it got 1."""
        self.notes: tuple[str, ...] = ()
        """What the stream of this step does not include."""
        self._steps: list[int] = []
        self._events: list[tuple[bool, int, Phase]] = []  # allocated or freed, block, phase
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._kinds: list[Kind | None] = []
        self._on_host: set[int] = set()
        self._block: dict[int, int] = {}  # of the storage at that address
        self._deaths: dict[int, Any] = {}  # weak references, whose callbacks report them
        self._forward_from = 0
        self._paused = False
        self._resize: Any = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns whether torch should guard this mode against being compiled, which takes time."""
        return False

    def step(self) -> None:
        """Starts another step."""
        self._steps.append(len(self._events))
        self.flops = 0

    def forward(self) -> None:
        self.phase = Phase.FORWARD
        self._forward_from = len(self._sizes)

    def backward(self) -> None:
        """Starts backward: what forward has left is kept for it."""
        for block in self._block.values():
            if block >= self._forward_from and self._kinds[block] is None:
                self._kinds[block] = Kind.ACTIVATIONS
        self.phase = Phase.BACKWARD

    def label(self, tensor: torch.Tensor, kind: Kind) -> None:
        """Sets a tensor's kind; a tensor that no operator made here counts as allocated now."""
        for storage in _storages(tensor):
            self._record_storage(storage, "")
            if (block := self._block.get(storage._cdata)) is not None:
                self._kinds[block] = kind

    def stays_on_host(self, tensor: torch.Tensor) -> None:
        """Excludes a tensor that, with a GPU, would be in host memory."""
        for storage in _storages(tensor):
            if (block := self._block.get(storage._cdata)) is not None:
                self._on_host.add(block)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the recording: new storages are only recorded if passed to `label`."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def stream(self, samples: int, parameters: int) -> Stream:
        events: list[Event] = []
        places = []  # of each step, without what is on the host
        starts = iter([*self._steps, -1])
        start = next(starts)
        for place, (taken, block, phase) in enumerate(self._events):
            while place == start:
                places.append(len(events))
                start = next(starts)
            if block in self._on_host:
                continue
            if taken:
                kind = self._kinds[block] or Kind.TEMPORARY
                name = self._names[block]
                events.append(Allocated(block, self._sizes[block], kind, phase, name))
            else:
                events.append(Freed(block, phase))
        return Stream(tuple(events), tuple(places), samples, parameters)

    def __enter__(self) -> Any:
        self._resize = resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            answer = resize(storage, size)
            if storage._cdata in self._block:
                self._record_storage(storage, "resize_")
            return answer

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._deaths.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.fake and func is _DEVICE:
            return args[0].fake_device  # the most frequent call by far
        if self.fake and func is _VALUE:
            return self._value(args[0])
        if self.fake and _writes_lists(func._schema.name):
            return None  # nothing is made, and asking would take most of the time of a large model
        if self.fake and func is _LSTM:
            self.notes = (LSTM,)
        made = func(*args, **(kwargs or {}))
        if not self._paused:
            self._record_output(made, func)
            self._count(func, args, kwargs or {}, made)
        return made

    def _value(self, tensor: torch.Tensor) -> int | float:
        if tensor.dtype == torch.bool:
            raise UnfollowableError("it branches on a tensor's value (an `if` on a tensor, .any())")
        self.values_read += self.phase is not Phase.OPTIMIZER  # which reads its count of steps
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _count(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> None:
        packet = _SAME_WORK.get(func._overloadpacket, func._overloadpacket)
        if (count := flop_registry.get(packet)) is not None:
            self.flops += int(count(*args, **kwargs, out_val=made))

    def _record_output(self, made: Any, func: Any) -> None:
        if isinstance(made, torch.Tensor):
            for storage in _storages(made):
                self._record_storage(storage, func._schema.name)
        elif isinstance(made, (tuple, list)):
            for each in made:
                self._record_output(each, func)

    def _record_storage(self, storage: Any, name: str) -> None:
        """Records a storage that is new or was resized."""
        address, size = storage._cdata, storage.nbytes()
        block = self._block.get(address)
        if block is not None:
            if self._sizes[block] == size:
                return
            self._record_death(address)
        if not size:
            return
        if len(self._events) >= MOST_EVENTS:
            raise UnfollowableError(f"it allocates and frees more than {MOST_EVENTS:,} times")
        kind = None if block is None else self._kinds[block]
        new = len(self._sizes)
        self._sizes.append(size)
        self._names.append(name)
        self._kinds.append(kind)
        self._block[address] = new
        self._deaths[address] = weakref.ref(storage, lambda _: self._record_death(address))
        self._events.append((True, new, self.phase))

    def _record_death(self, address: int) -> None:
        self._deaths.pop(address, None)
        block = self._block.pop(address, None)
        if block is not None:
            self._events.append((False, block, self.phase))


def _writes_lists(name: str) -> bool:
    return name.startswith("aten::_foreach_") and name.endswith("_")


def _storages(tensor: torch.Tensor) -> Iterator[Any]:
    """Returns the storages of the tensors that contain the data, inside wrappers such as
    DTensor."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _storages(getattr(tensor, name))
        return
    try:
        yield tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return  # sparse, or without storage
