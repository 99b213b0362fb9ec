"""Snapshots of a job on several hosts as one: a hang is only seen in all ranks at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
MOST_BYTES = 240 << 10
"""Bytes of a snapshot: a line of a recording may have a little more."""


def join_snapshots(snapshots: Mapping[str, Json]) -> Json | None:
    """One snapshot of the processes of all hosts; None if two hosts have processes of one number,
    because stacks are matched by them. `snapshots`: of each host, lines of looks.jsonl taken at
    about the same time."""
    lines = list(snapshots.values())
    pids = Counter(process["pid"] for line in lines for process in line["processes"])
    if not lines or any(count > 1 for count in pids.values()):
        return None
    joint = {
        "at": max(line["at"] for line in lines),
        "launcher": next((line["launcher"] for line in lines if line.get("launcher")), None),
        "world_size": max((line.get("world_size") or 0 for line in lines), default=0) or None,
        **{
            name: [item for line in lines for item in line.get(name) or ()]
            for name in ("processes", "stacks", "loops", "untold", "missing")
        },
    }
    return _shortened(joint)


def _shortened(snapshot: Json) -> Json:
    """The snapshot within the limit: without threads beside the main ones, then without stacks."""
    if len(json.dumps(snapshot)) <= MOST_BYTES:
        return snapshot
    main = [
        {**stack, "threads": [thread for thread in stack["threads"] if thread.get("main")]}
        for stack in snapshot["stacks"]
    ]
    shorter = {**snapshot, "stacks": main}
    return shorter if len(json.dumps(shorter)) <= MOST_BYTES else {**snapshot, "stacks": []}
