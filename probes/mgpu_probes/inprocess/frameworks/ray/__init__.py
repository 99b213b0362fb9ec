"""Ray Train: the runner of each rank's function."""

from __future__ import annotations

from ...framework_adapters import HookTable

ADAPTER = HookTable(
    "ray",
    __name__,
    {
        "ray_hooks": {
            "ray.train.v2._internal.execution.worker_group.thread_runner": "patch",
        },
    },
    metadata="ray_hooks",
)
