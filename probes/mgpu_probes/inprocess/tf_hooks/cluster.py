"""TF_CONFIG: which task of which cluster this process is. No TensorFlow."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

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


def place() -> Place | None:
    """This process's; None where TF_CONFIG is not there or not right."""
    text = os.environ.get("TF_CONFIG", "")
    if not text or len(text) > _LONGEST:
        return None
    try:
        told = json.loads(text)
        return _place(told.get("cluster") or {}, told.get("task") or {})
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
    before = sum(sizes[name] for name in TRAINING[: TRAINING.index(kind)])
    return Place(kind, before + index, world, sizes["ps"])
