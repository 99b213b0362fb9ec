"""Hand-made memory snapshots in the format of `torch.cuda.memory._dump_snapshot`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

MIB = 1 << 20


def frames(*places: tuple[str, str, int]) -> list[dict[str, Any]]:
    """(function, file, line), innermost first."""
    return [{"name": name, "filename": file, "line": line} for name, file, line in places]


FORWARD = frames(
    ("gemm", "/torch/csrc/gemm.cpp", 5),
    ("linear", "/usr/lib/python3.11/site-packages/torch/nn/functional.py", 100),
    ("forward", "/home/ada/model.py", 41),
    ("main", "/home/ada/train.py", 87),
)
STEP = frames(("step", "/x/site-packages/torch/optim/adam.py", 12), ("main", "/a/train.py", 90))


def block(size: int, state: str = "active_allocated", asked: Any = None) -> dict[str, Any]:
    return {
        "size": size,
        "requested_size": size,
        "address": 0,
        "state": state,
        "frames": FORWARD if asked is None else asked,
    }


def segment(*blocks: dict[str, Any]) -> dict[str, Any]:
    total = sum(block["size"] for block in blocks)
    return {
        "address": 0,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "allocated_size": total,
        "active_size": total,
        "blocks": list(blocks),
    }


def oom(size: int, free: int) -> dict[str, Any]:
    return {"action": "oom", "size": size, "device_free": free, "stream": 0, "frames": FORWARD}


def written(path: Path, *segments: dict[str, Any], events: Any = (), protocol: int = 4) -> Path:
    whole = {
        "segments": list(segments),
        "device_traces": [[{"action": "alloc", "size": 1, "addr": 3, "frames": []}, *events]],
        "allocator_settings": {"expandable_segments": False},
        "external_annotations": [],
    }
    path.write_bytes(pickle.dumps(whole, protocol=protocol))
    return path


FULL = (
    segment(block(900 * MIB), block(24 * MIB, "inactive")),
    segment(block(100 * MIB, asked=STEP)),
)
APART = tuple(segment(block(30 * MIB), block(70 * MIB, "inactive")) for _ in range(10))
