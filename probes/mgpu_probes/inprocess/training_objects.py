"""What the process metadata says of data loaders and optimizers: settings once, and what changes
each time that it is written."""

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
    """Where this rank may have waited for others without a hook that saw it."""

    COMPILED_CODE = "compiled_code"
    """Code that `torch.compile` generated in C++."""
    CUDA_GRAPH = "cuda_graph"
    """Collectives in a CUDA graph."""
    SYMMETRIC_MEMORY = "symmetric_memory"
    """Kernels that read the memory of other ranks."""


class Described:
    """One object, as it was when it was last seen alive."""

    def __init__(self, thing: Any, facts: Facts, changing: Callable[[Any], Facts]) -> None:
        self.facts = {**facts, **changing(thing)}
        self._fixed = dict(facts)
        self._changing = changing
        self._thing = weakref.ref(thing)

    @property
    def thing(self) -> Any:
        """The object; None: it is gone."""
        return self._thing()

    def replaced_by(self, other: Described) -> bool:
        """Whether it is gone, and the other one has the same settings."""
        return self.thing is None and self._fixed == other._fixed

    def now(self) -> Facts:
        """All that is known of it."""
        thing = self.thing
        if thing is not None:
            self.facts.update(self._changing(thing))
        return self.facts


def describe_loader(one: Any) -> Described:
    """A `torch.utils.data.DataLoader`. An iterable dataset is not asked for its length: torch would
    then warn of batches beyond it."""
    sampler = sampler_of(one)
    known = getattr(one, "_dataset_kind", None) == _MAP_STYLE
    dataset = getattr(one, "dataset", None)
    facts = {
        "workers": getattr(one, "num_workers", None),
        "batch_size": getattr(one, "batch_size", None),
        "pin_memory": getattr(one, "pin_memory", None),
        "prefetch_factor": getattr(one, "prefetch_factor", None),
        "persistent_workers": getattr(one, "persistent_workers", None),
        "drop_last": getattr(one, "drop_last", None),
        "sampler": type(sampler).__name__,
        "sampler_seed": _of_type(int, sampler, "seed"),
        "sampler_ranks": _of_type(int, sampler, "num_replicas"),
        "sampler_rank": _of_type(int, sampler, "rank"),
        "shuffles": _shuffles(sampler),
        "dataset": type(dataset).__name__,
        "dataset_length": _length(dataset) if known else None,
        "batches": _length(one) if known else None,
        "epochs": 0,
    }
    return Described(one, facts, _epoch)


def sampler_of(one: Any) -> Any:
    """What orders the loader's samples: its own `sampler` is idle where it was given batches."""
    batches = getattr(one, "batch_sampler", None)
    if getattr(one, "batch_size", None) is None and batches is not None:
        return getattr(batches, "sampler", batches)
    return getattr(one, "sampler", None)


def describe_optimizer(one: Any) -> Described:
    """A `torch.optim.Optimizer`."""
    groups = getattr(one, "param_groups", None) or [{}]
    parameters = [p for group in groups for p in group.get("params", ())]
    facts = {
        "class": type(one).__name__,
        "lr": _rate(one)["lr_now"],
        "lr_default": _default_rate(type(one)),
        "parameters": sum(p.numel() for p in parameters),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "device": str(parameters[0].device) if parameters else None,
        "devices": _accelerators(parameters),
    }
    return Described(one, facts, _rate)


def _accelerators(parameters: list[Any]) -> list[str]:
    """Of those parameters: several where a process divides one model among them."""
    known = {p.device for p in parameters}
    return sorted(str(one) for one in known if one.type not in _HOST)[:_MOST_DEVICES]


def _epoch(one: Any) -> Facts:
    return {"sampler_epoch": _of_type(int, sampler_of(one), "epoch")}


def _rate(one: Any) -> Facts:
    """Of the first parameter group; a tensor, which may be on a device, is not read."""
    groups = getattr(one, "param_groups", None) or [{}]
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


def _of_type(kind: type, thing: Any, name: str) -> Any:
    value = _asked(lambda: getattr(thing, name, None))
    return value if type(value) is kind else None


def _length(thing: Any) -> int | None:
    length: int | None = _asked(lambda: len(thing))
    return length


def _asked(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:  # a sampler or dataset of the user's own may raise anything: not known then
        return None


_MOST_PARAMETERS = 4096
"""More are not reported, because each takes some microseconds."""


def measure_holdings(optimizers: Iterable[Any]) -> dict[str, Any]:
    """For the process metadata: of all parameters of these optimizers, of each once. `on`: the
    kind of device that they are on; what is elsewhere (offloaded) is not counted."""
    weights = gradients = states = 0
    on: str | None = None
    seen: set[int] = set()
    for optimizer in optimizers:
        parameters = [p for group in _groups(optimizer) for p in group.get("params", ())]
        if len(parameters) + len(seen) > _MOST_PARAMETERS:
            return {}
        for parameter in parameters:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                on = on or _kind(parameter)
                size = _size(parameter, on)
                weights += size
                if getattr(parameter, "requires_grad", False):
                    gradients += _size(getattr(parameter, "grad", None), on) or size
        if parameters:
            for state in list((getattr(optimizer, "state", None) or {}).values()):
                kept = state.values() if isinstance(state, dict) else ()
                states += sum(_size(tensor, on) for tensor in kept)
    if not seen or on is None:
        return {}
    sizes = {"weights": weights, "gradients": gradients, "optimizer": states}
    return {"memory_parts": {"on": on, **sizes}}


def _groups(one: Any) -> list[Any]:
    groups = getattr(one, "param_groups", None)
    return groups if isinstance(groups, list) else []


def _kind(tensor: Any) -> str | None:
    kind = getattr(getattr(tensor, "device", None), "type", None)
    return kind if isinstance(kind, str) else None


def _size(tensor: Any, on: str | None) -> int:
    """Of this rank's part of a tensor; 0: it is none, or elsewhere."""
    local = getattr(tensor, "_local_tensor", tensor)
    if not hasattr(local, "element_size") or not hasattr(local, "numel") or _kind(local) != on:
        return 0
    return int(local.numel()) * int(local.element_size())


class TrainingObjects:
    """What hooks have seen a process train with."""

    def __init__(self) -> None:
        self.loaders: list[Described] = []
        self.optimizers: dict[int, Described] = {}
        """By their id."""
        self.strategies: set[str] = set()
        """Ways to divide a model or a batch that are in use."""
        self.backend: str | None = None
        """Of the default process group."""
        self.autocast: str | None = None
        """The dtype of the first autocast mode that was entered."""
        self.unseen_waits: UnseenWaits | None = None
        """Why the waits of this rank are not known; None: hooks see them all."""
        self._holdings: dict[tuple[tuple[int, int], ...], Facts] = {}
        """What the optimizers hold, by their states' lengths."""

    def miss_waits(self, where: UnseenWaits) -> None:
        """From now on the wait of a step is not known."""
        self.unseen_waits = self.unseen_waits or where

    def saw_loader(self, loader: Any) -> tuple[int, int] | None:
        """A DataLoader that is being iterated: its place among the loaders and the epoch, both from
        0; None where it is one too many."""
        known = self.loaders
        place = next((at for at, each in enumerate(known) if each.thing is loader), None)
        if place is None:
            seen = describe_loader(loader)
            place = next((at for at, each in enumerate(known) if each.replaced_by(seen)), None)
            if place is None and len(known) >= _MOST_OBJECTS:
                return None
            if place is None:
                place = len(known)
                known.append(seen)
            else:  # made anew for each epoch
                seen.facts["epochs"] = known[place].facts["epochs"]
                known[place] = seen
        facts = known[place].now()
        facts["epochs"] += 1
        return place, facts["epochs"] - 1

    def saw_optimizer(self, optimizer: Any) -> None:
        """An optimizer that steps."""
        key = id(optimizer)
        if key not in self.optimizers and len(self.optimizers) < _MOST_OBJECTS:
            self.optimizers[key] = describe_optimizer(optimizer)

    def holdings(self) -> Facts:
        """Bytes of weights, gradients and optimizer states. Walked through only where an optimizer
        or its state is new: some µs for each parameter."""
        try:
            known = [
                optimizer.thing
                for optimizer in self.optimizers.values()
                if optimizer.thing is not None
            ]
            sizes = tuple((id(each), len(getattr(each, "state", ()))) for each in known)
            if sizes not in self._holdings:
                self._holdings.clear()
                self._holdings[sizes] = measure_holdings(known)
            return self._holdings[sizes]
        except Exception:  # an optimizer or tensor of the user's own may raise anything
            return {}

    def forget(self) -> None:
        """In a forked child: what the parent saw is not the child's."""
        self.loaders.clear()
        self.optimizers.clear()
        self.strategies.clear()
        self.backend = None
        self._holdings.clear()
