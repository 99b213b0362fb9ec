"""Describes the data loaders and optimizers of a process, for the process metadata.

Fixed settings are read once, when the object is first seen; changing ones each time the metadata is
written.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

Facts = dict[str, Any]

_MOST_OBJECTS = 8
"""Loaders and optimizers that are described."""
_MAP_STYLE = 0
"""`torch.utils.data._DatasetKind.Map`."""
_HOST = ("cpu", "meta")
_MOST_DEVICES = 16
_SHUFFLING = {"RandomSampler": True, "SequentialSampler": False}


class UnseenWaits(str, Enum):
    """Kinds of waits for other ranks that no hook can see."""

    COMPILED_CODE = "compiled_code"
    """Code that `torch.compile` generated in C++."""
    CUDA_GRAPH = "cuda_graph"
    """Collectives in a CUDA graph."""
    SYMMETRIC_MEMORY = "symmetric_memory"
    """Kernels that read the memory of other ranks."""
    UNMARKED = "unmarked"
    """Whatever a loop that marks its own steps does: no wait was seen or marked in any of them."""


class Described:
    """The description of one object; after the object's end, its last description."""

    def __init__(self, subject: Any, facts: Facts, changing: Callable[[Any], Facts]) -> None:
        self.facts = {**facts, **changing(subject)}
        self._fixed = dict(facts)
        self._changing = changing
        self._reference = weakref.ref(subject)

    @property
    def subject(self) -> Any:
        """The object; None if it no longer exists."""
        return self._reference()

    def replaced_by(self, other: Described) -> bool:
        """Whether the object no longer exists and `other` has the same settings."""
        return self.subject is None and self._fixed == other._fixed

    def now(self) -> Facts:
        """The description, updated if the object still exists."""
        subject = self.subject
        if subject is not None:
            self.facts.update(self._changing(subject))
        return self.facts


def describe_loader(loader: Any) -> Described:
    """Describes a `torch.utils.data.DataLoader`. The length of an iterable dataset is not read,
    because torch would then warn about batches beyond it."""
    sampler = sampler_of(loader)
    is_map_style = getattr(loader, "_dataset_kind", None) == _MAP_STYLE
    dataset = getattr(loader, "dataset", None)
    facts = {
        "workers": getattr(loader, "num_workers", None),
        "batch_size": getattr(loader, "batch_size", None),
        "pin_memory": getattr(loader, "pin_memory", None),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "persistent_workers": getattr(loader, "persistent_workers", None),
        "drop_last": getattr(loader, "drop_last", None),
        "sampler": type(sampler).__name__,
        "sampler_seed": _of_type(int, sampler, "seed"),
        "sampler_ranks": _of_type(int, sampler, "num_replicas"),
        "sampler_rank": _of_type(int, sampler, "rank"),
        "shuffles": _shuffles(sampler),
        "dataset": type(dataset).__name__,
        "dataset_length": _length(dataset) if is_map_style else None,
        "batches": _length(loader) if is_map_style else None,
        "epochs": 0,
    }
    return Described(loader, facts, _epoch)


def sampler_of(loader: Any) -> Any:
    """The sampler that orders the loader's samples. With a batch sampler, `loader.sampler` is
    unused."""
    batches = getattr(loader, "batch_sampler", None)
    if getattr(loader, "batch_size", None) is None and batches is not None:
        return getattr(batches, "sampler", batches)
    return getattr(loader, "sampler", None)


def describe_optimizer(optimizer: Any) -> Described:
    """Describes a `torch.optim.Optimizer`."""
    groups = getattr(optimizer, "param_groups", None) or [{}]
    parameters = [p for group in groups for p in group.get("params", ())]
    facts = {
        "class": type(optimizer).__name__,
        "lr": _rate(optimizer)["lr_now"],
        "lr_default": _default_rate(type(optimizer)),
        "parameters": sum(p.numel() for p in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "device": str(parameters[0].device) if parameters else None,
        "devices": _accelerators(parameters),
    }
    return Described(optimizer, facts, _rate)


def _accelerators(parameters: list[Any]) -> list[str]:
    """The accelerators that hold the parameters; several if a process divides its model."""
    devices = {p.device for p in parameters}
    return sorted(str(device) for device in devices if device.type not in _HOST)[:_MOST_DEVICES]


def _epoch(loader: Any) -> Facts:
    return {"sampler_epoch": _of_type(int, sampler_of(loader), "epoch")}


def _rate(optimizer: Any) -> Facts:
    """The learning rate of the first parameter group. A tensor is not read: it may be on a
    device."""
    groups = getattr(optimizer, "param_groups", None) or [{}]
    return {"lr_now": _real(groups[0].get("lr"))}


def _default_rate(kind: type) -> float | None:
    try:
        return _real(inspect.signature(kind).parameters["lr"].default)
    except (KeyError, ValueError, TypeError):  # it has none, or no signature at all
        return None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, (float, int)) else None


def _shuffles(sampler: Any) -> bool | None:
    option = _of_type(bool, sampler, "shuffle")
    return _SHUFFLING.get(type(sampler).__name__) if option is None else option


def _of_type(kind: type, subject: Any, name: str) -> Any:
    value = _ask_or_none(lambda: getattr(subject, name, None))
    return value if type(value) is kind else None


def _length(subject: Any) -> int | None:
    length: int | None = _ask_or_none(lambda: len(subject))
    return length


def _ask_or_none(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:  # the user's sampler or dataset may raise anything: then it is unknown
        return None


_MOST_PARAMETERS = 4096
"""With more parameters nothing is measured, because each takes some microseconds."""


def measure_holdings(optimizers: Iterable[Any]) -> dict[str, Any]:
    """Bytes of weights, gradients and optimizer states of these optimizers, for the process
    metadata. `on`: the kind of device of the first parameter; tensors elsewhere (offloaded) are not
    counted."""
    weights = gradients = states = 0
    device_kind: str | None = None
    measured: set[int] = set()
    for optimizer in optimizers:
        parameters = [p for group in _groups(optimizer) for p in group.get("params", ())]
        if len(parameters) + len(measured) > _MOST_PARAMETERS:
            return {}
        for parameter in parameters:
            if id(parameter) not in measured:
                measured.add(id(parameter))
                device_kind = device_kind or _kind(parameter)
                size = _size(parameter, device_kind)
                weights += size
                if getattr(parameter, "requires_grad", False):
                    gradients += _size(getattr(parameter, "grad", None), device_kind) or size
        if parameters:
            for state in list((getattr(optimizer, "state", None) or {}).values()):
                tensors = state.values() if isinstance(state, dict) else ()
                states += sum(_size(tensor, device_kind) for tensor in tensors)
    if not measured or device_kind is None:
        return {}
    sizes = {"weights": weights, "gradients": gradients, "optimizer": states}
    return {"memory_parts": {"on": device_kind, **sizes}}


def _groups(optimizer: Any) -> list[Any]:
    groups = getattr(optimizer, "param_groups", None)
    return groups if isinstance(groups, list) else []


def _kind(tensor: Any) -> str | None:
    kind = getattr(getattr(tensor, "device", None), "type", None)
    return kind if isinstance(kind, str) else None


def _size(tensor: Any, device_kind: str | None) -> int:
    """Bytes of this rank's part of a tensor; 0 if it is no tensor or on another kind of device."""
    local = getattr(tensor, "_local_tensor", tensor)
    if (
        not hasattr(local, "element_size")
        or not hasattr(local, "numel")
        or _kind(local) != device_kind
    ):
        return 0
    return int(local.numel()) * int(local.element_size())


class TrainingObjects:
    """The loaders, optimizers and strategies that hooks have seen in this process."""

    def __init__(self) -> None:
        self.loaders: list[Described] = []
        self.optimizers: dict[int, Described] = {}
        """By the id of the optimizer."""
        self.strategies: set[str] = set()
        """Names of the parallel strategies in use, such as `ddp`."""
        self.backend: str | None = None
        """The backend of the default process group."""
        self.autocast: str | None = None
        """The dtype of the first autocast mode that was entered."""
        self.unseen_waits: UnseenWaits | None = None
        """The first kind of wait that hooks could not see; None: they saw all waits."""
        self._holdings: dict[tuple[tuple[int, int], ...], Facts] = {}
        """The newest result of `measure_holdings`, by the optimizers' ids and numbers of states."""

    def note_unseen_waits(self, where: UnseenWaits) -> None:
        """Notes that waits of this kind are not seen: from now on a step's wait is unknown."""
        self.unseen_waits = self.unseen_waits or where

    def hides_wait(self, waited: int) -> bool:
        """Whether the wait in a step is unknown; `waited`: ns of it that were seen."""
        if waited and self.unseen_waits is UnseenWaits.UNMARKED:
            self.unseen_waits = None
        return self.unseen_waits is not None

    def note_loader(self, loader: Any) -> tuple[int, int] | None:
        """Notes that a DataLoader begins an epoch. Returns its index among the loaders and the
        epoch, both from 0; None if too many loaders are described already."""
        loaders = self.loaders
        place = next(
            (index for index, described in enumerate(loaders) if described.subject is loader), None
        )
        if place is None:
            newest = describe_loader(loader)
            place = next(
                (index for index, described in enumerate(loaders) if described.replaced_by(newest)),
                None,
            )
            if place is None and len(loaders) >= _MOST_OBJECTS:
                return None
            if place is None:
                place = len(loaders)
                loaders.append(newest)
            else:  # the script makes a new loader for each epoch
                newest.facts["epochs"] = loaders[place].facts["epochs"]
                loaders[place] = newest
        facts = loaders[place].now()
        facts["epochs"] += 1
        return place, facts["epochs"] - 1

    def note_optimizer(self, optimizer: Any) -> None:
        """Describes an optimizer that steps, if it is new."""
        key = id(optimizer)
        if key not in self.optimizers and len(self.optimizers) < _MOST_OBJECTS:
            self.optimizers[key] = describe_optimizer(optimizer)

    def holdings(self) -> Facts:
        """Bytes of weights, gradients and optimizer states. They are measured again only if an
        optimizer or a state is new, because each parameter takes some µs."""
        try:
            optimizers = [
                optimizer.subject
                for optimizer in self.optimizers.values()
                if optimizer.subject is not None
            ]
            sizes = tuple(
                (id(optimizer), len(getattr(optimizer, "state", ()))) for optimizer in optimizers
            )
            if sizes not in self._holdings:
                self._holdings.clear()
                self._holdings[sizes] = measure_holdings(optimizers)
            return self._holdings[sizes]
        except Exception:  # an optimizer or tensor of the user's own may raise anything
            return {}

    def forget(self) -> None:
        """For a forked child, which must not report its parent's objects."""
        self.loaders.clear()
        self.optimizers.clear()
        self.strategies.clear()
        self.backend = None
        self._holdings.clear()
