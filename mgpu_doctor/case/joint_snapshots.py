"""Snapshots of a job on several hosts as one: a hang is only seen in all ranks at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mgpu_doctor.case.job_snapshots import PIDS

Json = dict[str, Any]
MOST_BYTES = 240 << 10
"""Bytes of a snapshot: a line of a recording may have a little more."""


def join_snapshots(snapshots: Mapping[str, Json], hosts: Sequence[str]) -> Json | None:
    """One snapshot of the processes of all hosts; None without any. `snapshots`: of each host, a
    line of looks.jsonl, taken at about the same time. `hosts`: all hosts of the job, in an order
    that stays."""
    if not snapshots:
        return None
    if len(hosts) > 1:
        snapshots = {
            host: _number_pids(line, hosts.index(host) * PIDS) for host, line in snapshots.items()
        }
    lines = list(snapshots.values())
    joint = {
        "at": max(line["at"] for line in lines),
        "launcher": next((line["launcher"] for line in lines if line.get("launcher")), None),
        "world_size": max((line.get("world_size") or 0 for line in lines), default=0) or None,
        **{
            name: [item for line in lines for item in line.get(name) or ()]
            for name in ("processes", "stacks", "loops", "untold", "missing")
        },
        "hosts": list(hosts) if len(hosts) > 1 else [],
    }
    return _shortened(joint)


def _number_pids(snapshot: Json, above: int) -> Json:
    """The snapshot with higher pids, by which its processes are told from those of other hosts."""
    numbered = {
        name: [
            {
                **item,
                **{
                    key: item[key] + above for key in ("pid", "parent") if item.get(key) is not None
                },
            }
            for item in snapshot.get(name) or ()
        ]
        for name in ("processes", "stacks", "untold")
    }
    return {**snapshot, **numbered}


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
