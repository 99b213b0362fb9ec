"""What else this host did while a test ran: other processes, CPU quota, waiting for cores.

Files: proc(5), cgroups(7). A test of a busy host says little about the host."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from mgpu_probes.outside import cgroups

Json = dict[str, Any]
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)
"""Columns of /proc/stat: idle, iowait. Time that a hypervisor took (steal) counts as use by
others."""
_COLUMNS = 8


class ContentionMeter:
    """Measures from its creation to `read`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._quotas = cgroups.find_cpu_quotas(root) or ()
        self._began = time.monotonic()
        self._busy = _read_busy(root)
        self._own = _read_own()
        self._throttled = self._read_throttled()

    def read(self) -> Json:
        """`seconds` (wall), `own` (cores that this process used on average), `others` (cores that
        everything else on the machine used; null if unknown), `throttled` (seconds without CPU
        quota, summed over cores; null without a quota), `quota` (cores; null: none)."""
        seconds = max(1e-9, time.monotonic() - self._began)
        own = (_read_own() - self._own) / seconds
        busy, throttled = _read_busy(self._root), self._read_throttled()
        others = None
        if busy is not None and self._busy is not None:
            others = max(0.0, (busy - self._busy) / seconds - own)
        waited = None
        if throttled is not None and self._throttled is not None:
            waited = throttled - self._throttled
        return {
            "seconds": seconds,
            "own": own,
            "others": others,
            "throttled": waited,
            "quota": min((quota.cores for quota in self._quotas), default=None),
        }

    def _read_throttled(self) -> float | None:
        known = [quota.now().get("throttled") for quota in self._quotas]
        seconds = [value for value in known if value is not None]
        return max(seconds, default=None)


def _read_own() -> float:
    """Processor seconds of this process and of its children that ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _read_busy(root: Path) -> float | None:
    """Processor seconds in which a core of this machine was not idle."""
    try:
        first, *_ = (root / "proc/stat").read_text("ascii", "replace").splitlines()
        ticks = [int(field) for field in first.split()[1 : 1 + _COLUMNS]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - sum(ticks[column] for column in _IDLE)) / _TICKS
