"""DeepSpeed: its engine."""

from __future__ import annotations

from ...framework_adapters import HookTable

ADAPTER = HookTable(
    "deepspeed",
    __name__,
    {
        "deepspeed_hooks": {
            "deepspeed.runtime.engine": "patch",
        },
    },
    metadata="deepspeed_hooks",
)
