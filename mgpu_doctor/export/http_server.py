"""A small HTTP server that answers `GET /metrics` and little else, with two threads for all
clients.

One thread has all connections, the other makes the page. An idle or slow client holds a socket and
a few bytes, never a thread. If there are too many, the oldest makes room for a new one, so that no
one can lock others out.
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
"""Requests that may wait for a sample until it comes; the others wait `SECONDS_FOR_A_PLACE`."""
MOST_TAKING = 32
"""Clients that are slow to take their reply, of which each may hold a page of 2 MB; beyond it those
are dropped that took least."""
BACKLOG = 1024
"""Connections that the kernel keeps until there is room."""
SEND_BUFFER = 128 << 10
"""Bytes: what a client does not take must not pile up in the kernel by the megabyte."""
RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: the end is a reset, and the kernel forgets what was not taken."""
SECONDS_TO_ASK = 5.0
SECONDS_TO_TAKE = 10.0
SECONDS_FOR_A_PLACE = 1.0
SECONDS_OF_GRACE = 0.1
"""For so long nobody has to make room: a client sends its request as soon as it is connected, and
takes the reply as soon as it comes."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""For one more connection in this process or on this machine."""
PAUSE = 0.02
"""Seconds until a newcomer is looked for again, where there was no room."""
ACCEPTED_AT_ONCE = 64
MOST_LEFT = 64 << 10
"""Bytes behind a request that are read before the end: unread ones would destroy the reply."""
END_OF_HEAD = b"\r\n\r\n"


@dataclass(eq=False, slots=True)
class Connection:
    """`queue`: of all connections in the same state; `since`: when that state began."""

    socket: socket.socket
    queue: Queue
    since: float
    events: int = 0
    """Those that the selector watches for."""
    head: bytearray = field(default_factory=bytearray)
    request: Request | None = None
    unsent: list[memoryview] = field(default_factory=list)
    taken: int = 0
    """Bytes of the reply."""
    answer: Answer = Answer.BROKEN


Queue = dict[Connection, None]
"""A set that keeps its order: the oldest is the first."""


class Connections:
    """`order` asks another thread for a page, which comes by `deliver`; never two at once."""

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
        """Those that waited when the page was ordered; empty: none is being made."""
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
        """Serve until `stop`; then all is closed."""
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
        """Hand over the page that was ordered, or why there is none. For another thread."""
        self._pages.put(page)
        self._ring()

    def stop(self) -> None:
        """For another thread."""
        self._is_over = True
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: all is over
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
            self._read(connection)  # the request is mostly there already

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
        except Exception:  # whatever a stranger sent: the others are served
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
        """For want of a sample. Nothing for a client that has its reply meanwhile."""
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
                self._refuse(Answer.BUSY, connection, "too many ask at once")
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
        """Nothing where the connection has gone on or was closed within the same round."""
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
        """A client that is too slow, goes away or is in the way of a newcomer."""
        self._answers.count(Answer.BROKEN)
        if connection in self._taking:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._unwatch(connection)
        del connection.queue[connection]
        connection.socket.close()


class Server:
    """`token`: what a request must bear; None: nothing. `names`: what it may call us. Raises
    `OSError` where it cannot listen."""

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
        """The sentence says why there is none."""
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
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # of each connection
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def serve(server: Server) -> Callable[[], None]:
    """Serve in a thread of its own; what is returned ends that."""
    thread = threading.Thread(target=server.run, name="connections", daemon=True)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join()

    return stop
