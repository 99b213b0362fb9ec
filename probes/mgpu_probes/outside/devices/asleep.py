"""Whether the kernel has put a device to sleep: to ask the driver about it would wake it."""

from __future__ import annotations

from pathlib import Path

SYSFS = Path("/sys/bus/pci/devices")


class Sleep:
    """Of one device. Where it may not sleep (most servers), the first look is the last."""

    def __init__(self, bus_id: str, devices: Path = SYSFS) -> None:
        self._power = devices / bus_id / "power"
        self._may = self._read("control") == "auto"

    def now(self) -> bool:
        return self._may and self._read("runtime_status") == "suspended"

    def _read(self, name: str) -> str | None:
        try:
            return (self._power / name).read_text().strip()
        except OSError:
            return None
