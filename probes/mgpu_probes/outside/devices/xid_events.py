"""XIDs, the driver's error events of a GPU: from NVML's events and from the kernel's log.

The log also has events that NVML does not report: before NVML is open, of a GPU that it no longer
lists, and where events are not supported or not permitted."""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pynvml

from mgpu_probes.outside.devices.driver_polling import (
    LOST_ERRORS,
    Json,
    PollingThread,
    describe_error,
)
from mgpu_probes.outside.kernel_log import KMSG, LOG_FILES, LogFile, Records, first_readable

MOST_LOGGED = 256
_XID = r"NVRM: Xid \(PCI:(?P<bus_id>[0-9A-Fa-f:.]{4,16})[^)]{0,40}\): (?P<number>\d{1,5})\b"
"""As the driver has written it since 2013: `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`; on MIG devices
`(PCI:0000:3b:00 GPU-I:03)`."""
_IN_A_FILE = r"\bkernel: (?:\[ *\d{1,12}\.\d{1,9}\] )?(?=NVRM: Xid )"
"""The prefix that system loggers write: other programs may write anything into these files."""
_PERIOD = 2.0
"""Seconds between looks at NVML's events when no sample asks for them. NVML keeps those that come
in between. Waiting in NVML would not end when the thread should."""
_MOST_KEPT = 256
SAME_SECONDS = 5.0
"""Most seconds between the two reports of one XID: each arrives within a sample."""
_REMEMBERED = 256


class LoggedXids:
    """Reads XIDs from the kernel log from now on. `trouble`: why it cannot. For one thread."""

    def __init__(self, path: Path = KMSG, files: tuple[Path, ...] = LOG_FILES) -> None:
        self._records = Records(path)
        self._file: LogFile | None = first_readable(files) if self._records.trouble else None
        self._looked = time.time()
        self._logged: deque[dict[str, Any]] = deque(maxlen=MOST_LOGGED)

    @property
    def trouble(self) -> str | None:
        return None if self._file is not None else self._records.trouble

    def poll(self) -> None:
        """Reads what was written since the previous call."""
        now = time.time()
        booted = now - time.monotonic()
        for since_boot, text in self._records.new():
            if match := re.match(_XID, text):
                # The kernel's clock drifts by seconds per day; the times of our reads bound that.
                self._note(match, min(now, max(self._looked, booted + since_boot)))
        for line in self._file.new() if self._file is not None else ():
            begin = re.search(_IN_A_FILE, line)
            if begin is not None and (match := re.match(_XID, line[begin.end() :])):
                self._note(match, now)
        self._looked = now

    def take(self) -> list[dict[str, Any]]:
        """The XIDs since the previous call: `at`, `number`, `bus_id`."""
        return [self._logged.popleft() for _ in range(len(self._logged))]

    def close(self) -> None:
        self._records.close()
        if self._file is not None:
            self._file.close()

    def _note(self, match: re.Match[str], at: float) -> None:
        self._logged.append({"at": at, "number": int(match["number"]), "bus_id": match["bus_id"]})


class XidListener:
    """Listens for XIDs in a thread, which goes on while the driver's other calls hang. `trouble`:
    why it cannot, for all devices or some."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._events: deque[Json] = deque(maxlen=_MOST_KEPT)
        self._set: Any = None
        self._known: dict[int, int | None] = {}
        self._due, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="xid", daemon=True)

    def listen(self, handles: dict[int, Any]) -> None:
        """Listens to these devices (by index) from now on, and no longer to others."""
        for index in [index for index in self._known if index not in handles]:
            del self._known[index]
        for index, handle in handles.items():
            if index not in self._known and not self._over.is_set():
                self._register(index, handle)
        if self._known and self._thread.ident is None and not self._over.is_set():
            self._thread.start()

    def ask(self) -> None:
        """Looks for events now, in the thread."""
        self._due.set()

    def take(self) -> list[Json]:
        """The XIDs since the previous call: `at`, `index`, `number`."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def stop(self, seconds: float) -> bool:
        """Whether the thread has ended."""
        self._over.set()
        self._due.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        ended = not self._thread.is_alive()
        if ended and self._set is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = None
        return ended

    def _register(self, index: int, handle: Any) -> None:
        try:
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except (pynvml.NVMLError, AttributeError) as error:
            if getattr(error, "value", None) not in LOST_ERRORS:
                self.trouble = f"XIDs cannot be received: {describe_error(error)}"
                self._known[index] = None  # a second attempt would be denied too
        else:
            self._known[index] = _address(handle)

    def _run(self) -> None:
        while not self._over.is_set():
            self._due.clear()
            try:
                while not self._over.is_set():
                    self._note(pynvml.nvmlEventSetWait_v2(self._set, 0))
            except pynvml.NVMLError as error:
                # One device may be lost: the others still report.
                if error.value not in (pynvml.NVML_ERROR_TIMEOUT, *LOST_ERRORS):
                    self.trouble = f"XIDs cannot be received: {describe_error(error)}"
                    return
            except AttributeError as error:
                self.trouble = f"XIDs cannot be received: {describe_error(error)}"
                return
            self._due.wait(_PERIOD)

    def _note(self, event: Any) -> None:
        if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            self._events.append(
                {
                    "at": time.time(),
                    "index": self._index(event.device),
                    "number": int(event.eventData),
                }
            )

    def _index(self, handle: Any) -> int | None:
        wanted = _address(handle)
        return next(
            (index for index, number in list(self._known.items()) if number == wanted), None
        )


def _address(handle: Any) -> int | None:
    """The address that a handle points to; the device is not queried, as it may be lost."""
    return ctypes.cast(handle, ctypes.c_void_p).value


class XidLogThread:
    """Reads the kernel log in a thread, because its file may be on a disk that hangs."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._log: LoggedXids | None = None
        self._rounds = PollingThread(self._poll, "kernel-xids")

    @property
    def trouble(self) -> str | None:
        return self._log.trouble if self._log is not None else None

    def take(self, patience: float = 0.0) -> list[Json]:
        """The XIDs so far; starts the next read. `patience`: seconds to wait for it."""
        round_ = self._rounds.ask()
        if patience > 0:
            self._rounds.wait(round_, patience)
        return self._log.take() if self._log is not None else []

    def close(self, seconds: float) -> None:
        if self._rounds.stop(seconds) and self._log is not None:
            self._log.close()

    def _poll(self) -> None:
        if self._log is None:
            self._log = LoggedXids(self._path)
        self._log.poll()


class XidMerger:
    """Merges XIDs of both sources: each is reported once."""

    def __init__(self) -> None:
        self._known: deque[Json] = deque(maxlen=_REMEMBERED)

    def new(
        self, reported: Iterable[Json], logged: Iterable[Json], devices: Iterable[Json]
    ) -> list[Json]:
        """`reported`: by the driver, with `index`; `logged`: with `bus_id`. Those of the log say
        `logged`, and the index of the device that is at that address."""
        places = {_pci_slot(device.get("bus_id")): device["index"] for device in devices}
        events = [{**json, "logged": False} for json in reported]
        events += [
            {**event, "index": places.get(_pci_slot(event["bus_id"])), "logged": True}
            for event in logged
        ]
        fresh = []
        for event in events:
            if not any(_is_same(event, known) for known in self._known):
                fresh.append(event)
                self._known.append(event)
        return [
            {name: value for name, value in event.items() if value is not False} for event in fresh
        ]


def _is_same(event: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether both are the same XID from the two sources."""
    near = abs(float(str(event["at"])) - float(str(other["at"]))) <= SAME_SECONDS
    device = event["index"] == other["index"] or None in (event["index"], other["index"])
    same = event["number"] == other["number"] and event["logged"] is not other["logged"]
    return near and device and same


def _pci_slot(address: object) -> tuple[int, ...] | None:
    """Domain, bus and slot of a PCI address of any width; None if it is none. The driver's log
    lines have no function number."""
    try:
        numbers = tuple(int(part, 16) for part in str(address).partition(".")[0].split(":"))
    except ValueError:
        return None
    return numbers if len(numbers) == 3 else None
