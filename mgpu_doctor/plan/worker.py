"""A process that traces, seen from outside: asked, waited for as long as it may take, ended."""

from __future__ import annotations

import selectors
import socket
import time

from mgpu_doctor.analysis.memory.settings import Settings
from mgpu_doctor.plan import wire
from mgpu_doctor.plan.nursery import Child, Nursery
from mgpu_doctor.plan.wire import Answer, Refusal, WireError


class Worker:
    """`limit`: seconds for one answer, with what must be loaded for it."""

    def __init__(self, nursery: Nursery, limit: float) -> None:
        self.limit = limit
        self._nursery = nursery
        self._child: Child | None = None

    def trace(self, settings: Settings, *, real: bool = False) -> Answer | Refusal:
        """A process that has died, or took too long, is replaced by the next request."""
        deadline = time.monotonic() + self.limit
        try:
            child = self._child = self._child or self._nursery.child(deadline)
            return self._answer(child, wire.write_request(settings, real=real), deadline)
        except TimeoutError:
            why = f"it took more than {self.limit:.0f} s (--limit allows more)"
        except WireError as error:
            why = str(error)
        except EOFError as error:
            why = str(error)
        self.close()
        return Refusal(why, target=False)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.close()
        self._child = None

    def _answer(self, child: Child, request: str, deadline: float) -> Answer | Refusal:
        """Raises TimeoutError, WireError, EOFError where the process is gone."""
        try:
            child.connection.sendall(request.encode() + b"\n")
            return wire.read_answer(_line(child.connection, deadline))
        except ConnectionError:
            raise EOFError(self._nursery.how_ended(child, deadline)) from None


def _line(connection: socket.socket, deadline: float) -> bytes:
    """Raises TimeoutError, ConnectionError where it has ended, WireError for a long line."""
    read = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while not read.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            part = connection.recv(1 << 20)
            if not part:
                raise ConnectionError
            read += part
            if len(read) > wire.MOST_BYTES:
                raise WireError("the trace is too long")
    return bytes(read)
