"""Reports the distribution strategy, its replicas, and this process's place in the cluster."""

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
    """-1: a process that does not train, such as a parameter server."""
    world_size: int
    servers: int
    """Number of parameter servers in the cluster."""


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
_WITHOUT_STAMPS = {
    "tpu": "programs for TPUs are compiled by XLA, which cannot compile time stamps",
    "ps": "graphs run on the workers, where no probe runs",
}
_MOST_DEVICES = 64


class _Strategy:
    """The newest strategy that the program made."""

    strategy: weakref.ref[Any] | None = None
    name = ""


newest_strategy = _Strategy()


def patch(distribute_lib: ModuleType) -> None:
    """Wraps the creation of every strategy."""
    wrap(distribute_lib.StrategyBase, "__init__", _strategy_init_begins, _strategy_init_ends)


def patch_collective(module: ModuleType) -> None:
    """Wraps the creation of a multi-worker strategy, in which a worker waits for the others."""
    wrap(module.CollectiveAllReduceStrategy, "__init__", _join_begins, _join_ends)


def _strategy_init_begins(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if probe.on else None


def _strategy_init_ends(strategy: Any, _: Any) -> None:
    name = NAMES.get(type(strategy).__name__)
    if name is None:
        return
    newest_strategy.name, newest_strategy.strategy = name, weakref.ref(strategy)
    if name != "single":
        probe.objects.strategies.add(name)
    if name in _WITHOUT_STAMPS:
        graph_stamps.tracing.off = _WITHOUT_STAMPS[name]
    probe.renew_metadata()


def _join_begins(_: tuple[Any, ...], __: dict[str, Any]) -> Place | None:
    place = read_tf_config()
    if place is None or place.rank < 0 or place.world_size < 2 or not probe.adopt():
        return None
    probe.objects.strategies.add("multiworker")
    probe.sequence = lambda: graph_stamps.tracing.reductions
    probe.thread_clock = lambda: nan
    probe.join(place.rank, place.world_size)
    return place


def _join_ends(place: Place, _: Any) -> None:
    if newest_strategy.name == "multiworker":  # else it raised
        probe.joined(place.rank, place.world_size)


def describe_replicas() -> dict[str, Any]:
    """The number of replicas and their devices, for the process metadata; empty if unknown."""
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
