"""A small HTTP server that answers `GET /metrics` and little else, with two threads for all
clients.

One thread handles all connections, the other makes the page. An idle or slow client holds a socket
and
a few bytes, never a thread. If there are too many, the oldest is dropped for a new one, so that no
client can lock out others.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from http import HTTPStatus
from itertools import islice
from operator import attrgetter
from queue import Empty, SimpleQueue

from mgpu_doctor.export import job_metrics
from mgpu_doctor.export.access import Address
from mgpu_doctor.export.http_request import MOST_HEAD, Access, Page, Reply, Request
from mgpu_doctor.export.job_metrics import Answer, Answers
from mgpu_doctor.export.metrics_page import END, lines
from mgpu_doctor.export.sampling import NoSampleError, Sampler, report_failure

MOST_OPEN = 256
MOST_AT_ONCE = 64
"""Requests that may wait until a sample arrives; others wait `SECONDS_FOR_A_PLACE`."""
MOST_TAKING = 32
"""The most slow clients, each of which may hold a page of 2 MB; beyond it, those that read least
are dropped."""
BACKLOG = 1024
"""Connections that the kernel queues until there is room."""
SEND_BUFFER = 128 << 10
"""Bytes per connection that the kernel buffers for a client that does not read."""
RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends a reset, and the kernel drops unread data."""
SECONDS_TO_ASK = 5.0
SECONDS_TO_TAKE = 10.0
SECONDS_FOR_A_PLACE = 1.0
SECONDS_OF_GRACE = 0.1
"""Seconds for which a connection is not dropped to make room: a normal client sends its request at
once and reads the reply at once."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that mean no room for another connection in this process or on this machine."""
PAUSE = 0.02
"""Seconds until connections are accepted again after there was no room."""
ACCEPTED_AT_ONCE = 64
MOST_LEFT = 64 << 10
"""Bytes after a request that are read before closing: unread ones would destroy the reply."""
END_OF_HEAD = b"\r\n\r\n"


@dataclass(eq=False, slots=True)
class Connection:
    """A connection. `queue`: all connections in the same state. `since`: when that state began."""

    socket: socket.socket
    queue: Queue
    since: float
    events: int = 0
    """The events that the selector watches for."""
    head: bytearray = field(default_factory=bytearray)
    request: Request | None = None
    unsent: list[memoryview] = field(default_factory=list)
    taken: int = 0
    """Bytes of the reply."""
    answer: Answer = Answer.BROKEN


Queue = dict[Connection, None]
"""An ordered set: the oldest comes first."""


class Connections:
    """All connections. `order` requests a page from another thread, which calls `deliver`; never
    two at once."""

    def __init__(
        self,
        listener: socket.socket,
        access: Access,
        answers: Answers,
        order: Callable[[], None],
        *,
        seconds_to_ask: float,
        seconds_to_wait: float,
    ) -> None:
        self._listener, self._access, self._answers = listener, access, answers
        self._order = order
        self._asking: Queue = {}
        self._waiting: Queue = {}
        self._taking: Queue = {}
        self._limits = (
            (self._asking, seconds_to_ask, self._drop),
            (self._waiting, seconds_to_wait, partial(self._refuse, Answer.FAILED)),
            (self._taking, SECONDS_TO_TAKE, self._drop),
        )
        self._too_slow = f"the sample takes longer than {seconds_to_wait:.0f} s"
        self._ordered: list[Connection] = []
        """Connections that waited when the page was requested; empty if none is being made."""
        self._pages: SimpleQueue[Page | str] = SimpleQueue()
        self._paused_until: float | None = None
        self._is_over = False
        self._alarm, self._bell = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (listener, self._alarm, self._bell):
            sock.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._alarm, selectors.EVENT_READ, self._take_page)

    def run(self) -> None:
        """Serves until `stop`, then closes everything."""
        try:
            while not self._is_over:
                for key, _ in self._selector.select(self._seconds_to_deadline()):
                    key.data()
                self._apply_deadlines()
        finally:
            for queue in (self._asking, self._waiting, self._taking):
                for connection in list(queue):
                    self._close(connection)
            self._selector.close()
            for sock in (self._listener, self._alarm, self._bell):
                sock.close()

    def deliver(self, page: Page | str) -> None:
        """Delivers the requested page, or why there is none. For another thread."""
        self._pages.put(page)
        self._ring()

    def stop(self) -> None:
        """For another thread."""
        self._is_over = True
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # full: a wake-up is already pending; closed: the server has ended
            self._bell.send(b"\0")

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            is_full = sum(map(len, (self._asking, self._waiting, self._taking))) >= MOST_OPEN
            oldest = next(iter(self._asking), None)
            now = time.monotonic()
            if is_full and (oldest is None or now < oldest.since + SECONDS_OF_GRACE):
                self._pause(now)
                return
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if error.errno in NO_ROOM:
                    self._pause(now)
                    if oldest is not None:
                        self._drop(oldest)
                return
            if is_full and oldest is not None:
                self._drop(oldest)
            client.setblocking(False)
            connection = Connection(client, self._asking, now)
            self._asking[connection] = None
            self._read(connection)  # the request has usually arrived already

    def _pause(self, now: float) -> None:
        if self._paused_until is None:
            self._selector.unregister(self._listener)
        self._paused_until = now + PAUSE

    def _read(self, connection: Connection) -> None:
        head = connection.head
        try:
            part = connection.socket.recv(MOST_HEAD - len(head))
        except BlockingIOError:
            self._watch(connection, selectors.EVENT_READ, self._read)
            return
        except OSError:
            self._drop(connection)
            return
        head += part
        if part and END_OF_HEAD not in head and len(head) < MOST_HEAD:
            self._watch(connection, selectors.EVENT_READ, self._read)
        elif head:
            self._judge(connection)
        else:
            self._drop(connection)

    def _judge(self, connection: Connection) -> None:
        self._unwatch(connection)
        try:
            connection.request = Request(bytes(connection.head))
            reply = connection.request.judge(self._access)
        except Exception:  # whatever this client sent, the others must be served
            self._drop(connection)
            return
        if reply is not None:
            self._send_reply(connection, reply)
            return
        self._move(connection, self._waiting)
        self._order_page()

    def _order_page(self) -> None:
        if self._waiting and not self._ordered:
            self._ordered = list(self._waiting)
            self._order()

    def _take_page(self) -> None:
        with suppress(OSError):
            self._alarm.recv(4096)
        try:
            page = self._pages.get_nowait()
        except Empty:
            return
        ordered, self._ordered = self._ordered, []
        if isinstance(page, Page):
            for connection in list(self._waiting):
                if connection.request is not None:
                    self._send_reply(connection, connection.request.show(page))
        else:
            for connection in ordered:
                self._refuse(Answer.FAILED, connection, page)
        self._order_page()

    def _refuse(self, answer: Answer, connection: Connection, sentence: str | None = None) -> None:
        """Refuses a request because there is no sample. Does nothing if the client has its reply by
        now."""
        if connection in self._waiting and connection.request is not None:
            status, again = HTTPStatus.SERVICE_UNAVAILABLE, ("Retry-After", "1")
            words = sentence or self._too_slow
            reply = connection.request.refuse(status, words, again, answer=answer)
            self._send_reply(connection, reply)

    def _send_reply(self, connection: Connection, reply: Reply) -> None:
        self._move(connection, self._taking)
        connection.unsent = [memoryview(part) for part in reply.parts if part]
        connection.answer = reply.answer
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        unsent = connection.unsent
        try:
            sent = connection.socket.sendmsg(unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        connection.taken += sent
        while unsent and sent >= len(unsent[0]):
            sent -= len(unsent.pop(0))
        if unsent:
            unsent[0] = unsent[0][sent:]
            self._watch(connection, selectors.EVENT_WRITE, self._send)
            return
        self._answers.count(connection.answer)
        with suppress(OSError):
            connection.socket.recv(MOST_LEFT)
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
        self._close(connection)

    def _seconds_to_deadline(self) -> float | None:
        first = min(self._deadlines(), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _deadlines(self) -> Iterator[float]:
        for queue, seconds, _ in self._limits:
            if queue:
                yield next(iter(queue)).since + seconds
        for connection in islice(self._waiting, MOST_AT_ONCE, MOST_AT_ONCE + 1):
            yield connection.since + SECONDS_FOR_A_PLACE
        for connection in islice(self._taking, MOST_TAKING, MOST_TAKING + 1):
            yield connection.since + SECONDS_OF_GRACE
        if self._paused_until is not None:
            yield self._paused_until

    def _apply_deadlines(self) -> None:
        now = time.monotonic()
        for queue, seconds, end in self._limits:
            for connection in [each for each in queue if each.since + seconds <= now]:
                end(connection)
        for connection in list(islice(self._waiting, MOST_AT_ONCE, None)):
            if connection.since + SECONDS_FOR_A_PLACE <= now:
                self._refuse(Answer.BUSY, connection, "too many requests at once")
        slow = [each for each in self._taking if each.since + SECONDS_OF_GRACE <= now]
        for connection in nsmallest(len(slow) - MOST_TAKING, slow, attrgetter("taken")):
            self._drop(connection)
        if self._paused_until is not None and self._paused_until <= now:
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _watch(
        self, connection: Connection, events: int, handle: Callable[[Connection], None]
    ) -> None:
        if connection.events != events:
            self._unwatch(connection)
            act = partial(self._act, connection, events, handle)
            self._selector.register(connection.socket, events, act)
            connection.events = events

    @staticmethod
    def _act(connection: Connection, events: int, handle: Callable[[Connection], None]) -> None:
        """Handles an event. Does nothing if the connection changed state or was closed in the same
        round."""
        if connection.events == events:
            handle(connection)

    def _unwatch(self, connection: Connection) -> None:
        if connection.events:
            self._selector.unregister(connection.socket)
            connection.events = 0

    def _move(self, connection: Connection, queue: Queue) -> None:
        del connection.queue[connection]
        queue[connection] = None
        connection.queue, connection.since = queue, time.monotonic()

    def _drop(self, connection: Connection) -> None:
        """Drops a client that is too slow, went away or must make room for a new one."""
        self._answers.count(Answer.BROKEN)
        if connection in self._taking:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._unwatch(connection)
        del connection.queue[connection]
        connection.socket.close()


class Server:
    """The server. `token`: required in each request; None: none required. `names`: allowed names of
    this server. Raises `OSError` if it cannot listen."""

    def __init__(
        self,
        address: Address,
        sampler: Sampler,
        *,
        token: str | None,
        names: Sequence[str],
        seconds_to_ask: float = SECONDS_TO_ASK,
    ) -> None:
        self._sampler = sampler
        self._answers = Answers()
        self._orders: SimpleQueue[bool] = SimpleQueue()
        listener = _listener(address)
        self.port = int(listener.getsockname()[1])
        self._connections = Connections(
            listener,
            Access(token, ("localhost", *names)),
            self._answers,
            partial(self._orders.put, True),
            seconds_to_ask=seconds_to_ask,
            seconds_to_wait=sampler.patience,
        )

    def run(self) -> None:
        """Serve until `stop`."""
        threading.Thread(target=self._make_pages, name="pages", daemon=True).start()
        self._connections.run()

    def stop(self) -> None:
        """For another thread."""
        self._orders.put(False)
        self._connections.stop()

    def _make_pages(self) -> None:
        while self._orders.get():
            self._connections.deliver(self._page())

    def _page(self) -> Page | str:
        """Returns the page, or one sentence why there is none."""
        try:
            sample = self._sampler.get()
            families = job_metrics.exporter_families(self._sampler, sample, self._answers)
            return Page.of(sample.text + lines(families) + END)
        except NoSampleError as error:
            return str(error)
        except Exception as error:  # whatever it is: the next page may succeed
            report_failure(error)
            return "the sample failed"


def _listener(address: Address) -> socket.socket:
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by each connection.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def serve(server: Server) -> Callable[[], None]:
    """Serves in a thread of its own; returns a function that stops it."""
    thread = threading.Thread(target=server.run, name="connections", daemon=True)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join()

    return stop
