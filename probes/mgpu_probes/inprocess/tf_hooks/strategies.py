"""Distribution strategies: which one, over how many replicas, and who of the cluster this is."""

from __future__ import annotations

import weakref
from math import nan
from types import ModuleType
from typing import Any

from .. import births
from ..rank import probe
from . import cluster, tracing
from .common import wrap

NAMES = {
    "MirroredStrategy": "mirrored",
    "CollectiveAllReduceStrategy": "multiworker",
    "MultiWorkerMirroredStrategy": "multiworker",
    "ParameterServerStrategyV2": "ps",
    "OneDeviceStrategy": "single",
    "TPUStrategy": "tpu",
    "TPUStrategyV2": "tpu",
    "CentralStorageStrategy": "central",
}
_NOT_HERE = {
    "tpu": "what TPUs run is compiled, so that graphs cannot tell moments",
    "ps": "graphs run on the workers, where nothing of the probe is",
}
_MOST_DEVICES = 64


class _Strategy:
    """The newest one."""

    told: weakref.ref[Any] | None = None
    name = ""


this = _Strategy()


def patch(distribute_lib: ModuleType) -> None:
    """Sees every strategy that is made."""
    wrap(distribute_lib.StrategyBase, "__init__", _making, _made)


def patch_collective(module: ModuleType) -> None:
    """A worker of several joins them while its strategy is made, and waits for them there."""
    wrap(module.CollectiveAllReduceStrategy, "__init__", _joining, _joined)


def _making(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _made(strategy: Any, _: Any) -> None:
    name = NAMES.get(type(strategy).__name__)
    if name is None:
        return
    this.name, this.told = name, weakref.ref(strategy)
    if name != "single":
        births.strategies.add(name)
    if name in _NOT_HERE:
        tracing.this.off = _NOT_HERE[name]
    probe.renew_birth()


def _joining(_: tuple[Any, ...], __: dict[str, Any]) -> cluster.Place | None:
    place = cluster.place()
    if place is None or place.rank < 0 or place.world_size < 2 or not probe.adopt():
        return None
    births.strategies.add("multiworker")
    probe.sequence = lambda: tracing.this.reductions
    probe.thread_clock = lambda: nan
    probe.join(place.rank, place.world_size)
    return place


def _joined(place: cluster.Place, _: Any) -> None:
    if this.name == "multiworker":  # else it raised
        probe.joined(place.rank, place.world_size)


def told() -> dict[str, Any]:
    """For the birth certificate."""
    strategy = this.told() if this.told is not None else None
    if strategy is None:
        return {}
    extended = strategy.extended
    devices = [str(one) for one in getattr(extended, "worker_devices", ())]
    return {
        "replicas": int(strategy.num_replicas_in_sync),
        "replica_devices": [_short(one) for one in devices[:_MOST_DEVICES]],
    }


def _short(device: str) -> str:
    """`cpu:0` for `/job:localhost/replica:0/task:0/device:CPU:0`."""
    return device.rpartition("device:")[2].lower()[:100] or device[:100]
