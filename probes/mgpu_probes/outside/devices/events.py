"""XIDs as the driver reports them."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from typing import Any

import pynvml

from mgpu_probes.outside.devices.errors import GONE, Json, sentence

_WAIT_MS = 200
"""A bounded wait: the thread must end when it is told to."""
_MOST_KEPT = 256


class Listener:
    """Hears XIDs in a thread of its own. `trouble`: why it does not, or not of every device."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._heard: deque[Json] = deque(maxlen=_MOST_KEPT)
        self._set: Any = None
        self._known: dict[int, int | None] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xid", daemon=True)

    def listen(self, handles: dict[int, Any]) -> None:
        """From now on hear these devices, by index; those that are known already go on."""
        for index in [index for index in self._known if index not in handles]:
            del self._known[index]
        for index, handle in handles.items():
            if index not in self._known and not self._over.is_set():
                self._register(index, handle)
        if self._known and self._thread.ident is None and not self._over.is_set():
            self._thread.start()

    def take(self) -> list[Json]:
        """What was heard since the call before: `at`, `index`, `number`."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def stop(self, seconds: float) -> bool:
        """Whether the thread has ended."""
        self._over.set()
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
            if getattr(error, "value", None) not in GONE:
                self.trouble = f"XIDs cannot be heard: {sentence(error)}"
                self._known[index] = None  # it would only be denied again
        else:
            self._known[index] = _address(handle)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                if error.value in GONE:  # one device is: the others are still heard
                    self._over.wait(_WAIT_MS / 1000)
                    continue
                self.trouble = f"XIDs cannot be heard: {sentence(error)}"
                break
            except AttributeError as error:
                self.trouble = f"XIDs cannot be heard: {sentence(error)}"
                break
            if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                self._heard.append(
                    {
                        "at": time.time(),
                        "index": self._index(event.device),
                        "number": int(event.eventData),
                    }
                )

    def _index(self, handle: Any) -> int | None:
        wanted = _address(handle)
        return next((index for index, one in list(self._known.items()) if one == wanted), None)


def _address(handle: Any) -> int | None:
    """Which device a handle means, without a question to it: it may be lost."""
    return ctypes.cast(handle, ctypes.c_void_p).value
