"""Distribution strategies: which one, over how many replicas, and who of the cluster this is."""

from __future__ import annotations

import json
import os
import weakref
from math import nan
from types import ModuleType
from typing import Any, NamedTuple

from ...probe_context import ProbeContext
from . import graph_stamps
from .tensorflow_support import wrap

probe: ProbeContext

_LONGEST = 1 << 20
_MOST_TASKS = 65_536
TRAINING = ("chief", "master", "worker")
"""Tasks that train, in the order of their ranks; TensorFlow itself puts the chief first."""


class Place(NamedTuple):
    """One process of a cluster."""

    task: str
    rank: int
    """-1: it is none of those that train."""
    world_size: int
    servers: int
    """Parameter servers."""


def read_tf_config() -> Place | None:
    """The place of this process by TF_CONFIG; None: unset or malformed."""
    text = os.environ.get("TF_CONFIG", "")
    if not text or len(text) > _LONGEST:
        return None
    try:
        config = json.loads(text)
        return _place(config.get("cluster") or {}, config.get("task") or {})
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _place(cluster: dict[str, Any], task: dict[str, Any]) -> Place | None:
    kind, index = str(task.get("type", "")), int(task.get("index", 0))
    sizes = {name: min(len(cluster.get(name) or ()), _MOST_TASKS) for name in (*TRAINING, "ps")}
    world = sum(sizes[name] for name in TRAINING)
    if kind in ("ps", "evaluator"):
        return Place(kind, -1, world, sizes["ps"])
    if kind not in TRAINING or not 0 <= index < sizes[kind]:
        return None
    first_place = sum(sizes[name] for name in TRAINING[: TRAINING.index(kind)])
    return Place(kind, first_place + index, world, sizes["ps"])


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

    strategy: weakref.ref[Any] | None = None
    name = ""


newest_strategy = _Strategy()


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
    newest_strategy.name, newest_strategy.strategy = name, weakref.ref(strategy)
    if name != "single":
        probe.objects.strategies.add(name)
    if name in _NOT_HERE:
        graph_stamps.tracing.off = _NOT_HERE[name]
    probe.renew_metadata()


def _joining(_: tuple[Any, ...], __: dict[str, Any]) -> Place | None:
    place = read_tf_config()
    if place is None or place.rank < 0 or place.world_size < 2 or not probe.adopt():
        return None
    probe.objects.strategies.add("multiworker")
    probe.sequence = lambda: graph_stamps.tracing.reductions
    probe.thread_clock = lambda: nan
    probe.join(place.rank, place.world_size)
    return place


def _joined(place: Place, _: Any) -> None:
    if newest_strategy.name == "multiworker":  # else it raised
        probe.joined(place.rank, place.world_size)


def describe_replicas() -> dict[str, Any]:
    """For the process metadata."""
    strategy = newest_strategy.strategy() if newest_strategy.strategy is not None else None
    if strategy is None:
        return {}
    extended = strategy.extended
    devices = [str(device) for device in getattr(extended, "worker_devices", ())]
    return {
        "replicas": int(strategy.num_replicas_in_sync),
        "replica_devices": [_short(device) for device in devices[:_MOST_DEVICES]],
    }


def _short(device: str) -> str:
    """`cpu:0` for `/job:localhost/replica:0/task:0/device:CPU:0`."""
    return device.rpartition("device:")[2].lower()[:100] or device[:100]
