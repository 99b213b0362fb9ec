"""XIDs from both who tell of them: the driver's own events, and the kernel's log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from mgpu_probes.outside.devices.errors import Json
from mgpu_probes.outside.devices.rounds import Rounds
from mgpu_probes.outside.kernel_lines import KMSG
from mgpu_probes.outside.kernel_xids import KernelXids

SAME = 5.0
"""Seconds between two tales of one XID: each is heard within a look."""
_REMEMBERED = 256


class LoggedXids:
    """Looks at the kernel's log in a thread of its own: its file may lie on a disk that hangs."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._log: KernelXids | None = None
        self._rounds = Rounds(self._look, "kernel-xids")

    @property
    def trouble(self) -> str | None:
        return self._log.trouble if self._log is not None else None

    def take(self, patience: float = 0.0) -> list[Json]:
        """What was found so far, while the next look begins. `patience`: seconds to wait for it."""
        round_ = self._rounds.ask()
        if patience > 0:
            self._rounds.wait(round_, patience)
        return self._log.take() if self._log is not None else []

    def close(self, seconds: float) -> None:
        if self._rounds.stop(seconds) and self._log is not None:
            self._log.close()

    def _look(self) -> None:
        if self._log is None:
            self._log = KernelXids(self._path)
        self._log.look()


class Told:
    """Tells each XID once, whoever told it first."""

    def __init__(self) -> None:
        self._known: deque[Json] = deque(maxlen=_REMEMBERED)

    def new(
        self, heard: Iterable[Json], logged: Iterable[Json], devices: Iterable[Json]
    ) -> list[Json]:
        """`heard`: from the driver, with `index`; `logged`: with `bus_id`. Those of the log say
        `logged`, and the index of the device that is at that address."""
        places = {_slot(one.get("bus_id")): one["index"] for one in devices}
        events = [{**one, "logged": False} for one in heard]
        events += [
            {**one, "index": places.get(_slot(one["bus_id"])), "logged": True} for one in logged
        ]
        found = []
        for event in events:
            if not any(_alike(event, one) for one in self._known):
                found.append(event)
                self._known.append(event)
        return [{name: value for name, value in one.items() if value is not False} for one in found]


def _alike(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two who tell speak of the same."""
    near = abs(float(str(one["at"])) - float(str(other["at"]))) <= SAME
    device = one["index"] == other["index"] or None in (one["index"], other["index"])
    same = one["number"] == other["number"] and one["logged"] is not other["logged"]
    return near and device and same


def _slot(address: object) -> tuple[int, ...] | None:
    """Domain, bus and slot of a PCI address, whatever its width: the driver writes none of the
    function into the log."""
    try:
        numbers = tuple(int(part, 16) for part in str(address).partition(".")[0].split(":"))
    except ValueError:
        return None
    return numbers if len(numbers) == 3 else None
