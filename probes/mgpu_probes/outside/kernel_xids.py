"""XIDs of the kernel's log: what NVIDIA's driver writes there of a GPU with an error. Facts only.

Also those that the driver reports to nobody who listens: before NVML is there, of a GPU that it no
longer lists, and where events are not supported or not permitted.
"""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path
from typing import Any

from mgpu_probes.outside.kernel_lines import KMSG, LOG_FILES, LogFile, Records, first_readable

MOST_KEPT = 256
_XID = r"NVRM: Xid \(PCI:(?P<bus_id>[0-9A-Fa-f:.]{4,16})[^)]{0,40}\): (?P<number>\d{1,5})\b"
"""As the driver has written it since 2013: `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`; on MIG devices
`(PCI:0000:3b:00 GPU-I:03)`."""
_IN_A_FILE = r"\bkernel: (?:\[ *\d{1,12}\.\d{1,9}\] )?(?=NVRM: Xid )"
"""Before it, as system loggers write it: other programs may write anything into these files."""


class KernelXids:
    """Reads them from now on. `trouble`: why it cannot; None where it can. For one thread."""

    def __init__(self, path: Path = KMSG, files: tuple[Path, ...] = LOG_FILES) -> None:
        self._records = Records(path)
        self._file: LogFile | None = first_readable(files) if self._records.trouble else None
        self._looked = time.time()
        self._found: deque[dict[str, Any]] = deque(maxlen=MOST_KEPT)

    @property
    def trouble(self) -> str | None:
        return None if self._file is not None else self._records.trouble

    def look(self) -> None:
        """Read what was written since the call before."""
        now = time.time()
        booted = now - time.monotonic()
        for since_boot, text in self._records.new():
            if told := re.match(_XID, text):
                # The kernel's clock drifts by seconds a day; our own looks bound that.
                self._note(told, min(now, max(self._looked, booted + since_boot)))
        for line in self._file.new() if self._file is not None else ():
            begin = re.search(_IN_A_FILE, line)
            if begin is not None and (told := re.match(_XID, line[begin.end() :])):
                self._note(told, now)
        self._looked = now

    def take(self) -> list[dict[str, Any]]:
        """What was found since the call before: `at`, `number`, `bus_id`."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def close(self) -> None:
        self._records.close()
        if self._file is not None:
            self._file.close()

    def _note(self, told: re.Match[str], at: float) -> None:
        self._found.append({"at": at, "number": int(told["number"]), "bus_id": told["bus_id"]})
