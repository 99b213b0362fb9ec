"""The exporter with idle, slow or too many clients: an honest scrape is answered."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from mgpu_doctor.export import http_server
from mgpu_doctor.export.access import resolved
from mgpu_doctor.export.http_server import MOST_OPEN, Server, serve
from mgpu_doctor.export.sampling import Sampler
from tests.support.jobs import until
from tests.support.scraping import ask

TEXT = b"# HELP a A.\n# TYPE a gauge\na 1.0\n"
LONG = TEXT + b"# HELP b " + b"long " * 400_000 + b"\n# TYPE b gauge\n"
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT = 60
SCRAPES = 20


@contextmanager
def running(text: bytes = TEXT, *, token: str | None = None) -> Iterator[Server]:
    sampler = Sampler(lambda: text, WAIT, patience=WAIT)
    server = Server(resolved("127.0.0.1", 0), sampler, token=token, names=())
    stop = serve(server)
    try:
        yield server
    finally:
        stop()


class Crowd:
    """`many` clients that never read. Each sends `opening`, then, where `drips`, a letter of a
    request again and again. A client that is dropped is back at once."""

    def __init__(self, port: int, many: int, opening: bytes = b"", *, drips: bool = False) -> None:
        self.opened = 0
        self._port, self._many, self._opening, self._drips = port, many, opening, drips
        self._clients: dict[int, socket.socket] = {}
        self._ends = select.epoll()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Crowd:
        self._thread.start()
        until(lambda: self.opened >= self._many)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        for _ in range(self._many):
            self._open()
        while not self._over.is_set():
            for descriptor, _ in self._ends.poll(0.01):
                self._ends.unregister(descriptor)
                self._clients.pop(descriptor).close()
                self._open()
            if self._drips:
                for client in self._clients.values():
                    with suppress(OSError):
                        client.send(b"G")
        for client in self._clients.values():
            client.close()
        self._ends.close()

    def _open(self) -> None:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with suppress(OSError):
            client.connect(("127.0.0.1", self._port))
            client.send(self._opening)
        client.setblocking(False)
        self._clients[client.fileno()] = client
        self._ends.register(client, select.EPOLLRDHUP)
        self.opened += 1


def scrape(server: Server, **headers: str) -> None:
    for _ in range(SCRAPES):
        reply = ask(server.port, **headers)
        assert reply.status == 200, reply.body
        assert reply.body.startswith(TEXT)


@pytest.mark.parametrize("many", [16, 64, 300])
@pytest.mark.parametrize("drips", [False, True], ids=["idle", "trickling"])
def test_clients_without_a_whole_request_lock_nobody_out(many: int, drips: bool) -> None:
    with running(token="a-token-of-theirs") as server:
        threads = threading.active_count()
        opening = b"GET /metrics HTTP/1.1\r\n" if drips else b""
        with Crowd(server.port, many, opening, drips=drips) as crowd:
            scrape(server, Authorization="Bearer a-token-of-theirs")
            assert threading.active_count() <= threads + 2, "the crowd's own, and the sampler"
            assert (crowd.opened > many) == (many > MOST_OPEN), "beyond it they make room"


@pytest.mark.parametrize("many", [16, 64, 300])
@pytest.mark.slow
def test_clients_that_do_not_take_their_reply_lock_nobody_out(many: int) -> None:
    with running(LONG) as server, Crowd(server.port, many, REQUEST) as crowd:
        scrape(server, Accept_Encoding="identity")
        if many > http_server.MOST_TAKING:
            until(lambda: crowd.opened > many)


@pytest.mark.slow
def test_clients_of_all_kinds_lock_nobody_out() -> None:
    with (
        running(LONG) as server,
        Crowd(server.port, 64),
        Crowd(server.port, 64, b"GET ", drips=True),
        Crowd(server.port, 64, REQUEST),
        Crowd(server.port, 64, b"\x16\x03\x01\r\n\r\n"),
    ):
        scrape(server)


def test_a_reply_that_is_not_taken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SECONDS_TO_TAKE", 0.05)
    with running(LONG) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(WAIT)
        client.connect(("127.0.0.1", server.port))
        client.sendall(REQUEST)
        until(lambda: ended(client))
        until(lambda: counted(server, "broken") == 1)


def ended(client: socket.socket) -> bool:
    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET


def counted(server: Server, answer: str) -> float:
    (value,) = ask(server.port).page.of("mgpu_exporter_requests_total", answer=answer)
    return value


def test_a_reply_that_is_taken_slowly_is_whole() -> None:
    with running(LONG) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(WAIT)
        client.connect(("127.0.0.1", server.port))
        client.sendall(REQUEST)
        taken = b""
        while part := client.recv(3001):
            taken += part
        head, _, body = taken.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert body.startswith(LONG)
        assert body.endswith(b"# EOF\n")


def test_a_request_in_pieces_and_one_without_its_last_line() -> None:
    with running() as server:
        address = ("127.0.0.1", server.port)
        with socket.create_connection(address, WAIT) as client:
            for letter in REQUEST:
                client.sendall(bytes((letter,)))
            assert client.recv(12) == b"HTTP/1.0 200"
        with socket.create_connection(address, WAIT) as client:
            client.sendall(REQUEST.rstrip())
            client.shutdown(socket.SHUT_WR)
            assert client.recv(12) == b"HTTP/1.0 200"


@pytest.mark.parametrize("left", [b"", b"GET "], ids=["nothing", "a piece"])
def test_who_goes_away_without_a_request_is_counted(left: bytes) -> None:
    with running() as server:
        with socket.create_connection(("127.0.0.1", server.port), WAIT) as client:
            client.sendall(left)
        kind = "refused" if left else "broken"
        until(lambda: counted(server, kind) == 1)


def test_where_no_descriptor_is_left_it_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    failures = [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]

    def scarce(listener: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise OSError(failures.pop(), "none is left")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    with running() as server:
        scrape(server)
        assert not failures


def test_the_end_closes_every_connection() -> None:
    with running() as server:
        with socket.create_connection(("127.0.0.1", server.port), WAIT) as client:
            until(lambda: counted(server, "ok") >= 1)
            before = threading.active_count()
            server.stop()
            assert client.recv(1) == b""
            until(lambda: threading.active_count() <= before - 2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), WAIT)


def test_a_page_is_made_once_for_all_who_wait() -> None:
    go = threading.Event()
    made: list[float] = []

    def make() -> bytes:
        go.wait(WAIT)
        made.append(time.monotonic())
        return TEXT

    sampler = Sampler(make, WAIT, patience=WAIT)
    server = Server(resolved("127.0.0.1", 0), sampler, token=None, names=())
    stop = serve(server)
    clients = [socket.create_connection(("127.0.0.1", server.port), WAIT) for _ in range(8)]
    try:
        for client in clients:
            client.sendall(REQUEST)
        go.set()
        assert [read(client)[:12] for client in clients] == [b"HTTP/1.0 200"] * 8
        assert len(made) == 1
    finally:
        for client in clients:
            client.close()
        stop()


def read(client: socket.socket) -> bytes:
    whole = b""
    while part := client.recv(65536):
        whole += part
    return whole
