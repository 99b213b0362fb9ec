"""The server: which clients are answered, with what, and what they cannot do to it."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

from mgpu_doctor.export.access import AddressError, is_ours, resolved
from mgpu_doctor.export.http_request import MOST_HEAD
from mgpu_doctor.export.http_server import MOST_AT_ONCE, Server, serve
from mgpu_doctor.export.sampling import Sampler
from tests.support.scraping import ask

TOKEN = "correct-horse-battery-staple"
BEARER = f"Bearer {TOKEN}"
TEXT = b"# HELP a A.\n# TYPE a gauge\na 1.0\n"
WAIT = 60


@contextmanager
def running(
    make: Callable[[], bytes] = lambda: TEXT,
    *,
    token: str | None = TOKEN,
    seconds_to_ask: float = WAIT,
    patience: float = WAIT,
) -> Iterator[Server]:
    sampler = Sampler(make, WAIT, patience=patience)
    address = resolved("127.0.0.1", 0)
    server = Server(address, sampler, token=token, names=("node7",), seconds_to_ask=seconds_to_ask)
    stop = serve(server)
    try:
        yield server
    finally:
        stop()


def raw(server: Server, request: bytes) -> bytes:
    """All that is answered until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def test_a_scrape() -> None:
    with running() as server:
        reply = ask(server.port, Authorization=BEARER)
        assert reply.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0")
        assert reply.page.of("a") == [1]
        assert reply.page.of("mgpu_exporter_requests_total", answer="ok") == [0]
        again = ask(server.port, "/metrics?x=1", Authorization=f"bearer  {TOKEN}")
        assert again.page.of("mgpu_exporter_requests_total", answer="ok") == [1]
        assert len(again.page.of("mgpu_exporter_sample_age_seconds")) == 1
        assert again.page.of("mgpu_exporter_build_info") == [1]


def test_a_long_page_is_compressed_for_who_can_read_it() -> None:
    with running(lambda: TEXT + b"# HELP b " + b"long " * 1000 + b"\n# TYPE b gauge\n") as server:
        packed = ask(server.port, Authorization=BEARER, Accept_Encoding="gzip")
        assert packed.headers["Content-Encoding"] == "gzip"
        plain = ask(server.port, Authorization=BEARER, Accept_Encoding="identity")
        assert "Content-Encoding" not in plain.headers
        assert gzip.decompress(packed.body).startswith(TEXT)
        assert plain.body.startswith(TEXT)
        assert len(packed.body) < len(plain.body) / 2


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xe9\xff",
    ],
    ids=["none", "empty", "no-token", "blank", "longer", "shorter", "basic", "bare", "bytes"],
)
def test_without_the_token_nothing_is_reported(authorization: str | None) -> None:
    with running() as server:
        headers = {} if authorization is None else {"Authorization": authorization}
        reply = ask(server.port, **headers)
        assert reply.status == 401
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
        assert TOKEN.encode() not in reply.body
        right = ask(server.port, Authorization=BEARER).page
        assert right.of("mgpu_exporter_requests_total", answer="unauthorized") == [1]


def test_no_token_where_none_is_wanted() -> None:
    with running(token=None) as server:
        assert ask(server.port).page.of("a") == [1]


def test_a_page_that_names_another_host_is_refused() -> None:
    with running() as server:
        for host in ("evil.example", "evil.example:80", "node7.evil.example", "[::1", ""):
            reply = ask(server.port, Authorization=BEARER, Host=host)
            assert reply.status == 403, host
        assert raw(server, b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 403")
        for host in ("localhost", "LOCALHOST.:1", "node7", "10.0.0.7:9877", "[::1]:9877"):
            assert ask(server.port, Authorization=BEARER, Host=host).status == 200, host


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "X"])
def test_other_methods(method: str) -> None:
    with running() as server:
        reply = ask(server.port, method=method, Authorization=BEARER)
        assert reply.status == 405
        assert reply.headers["Allow"] == "GET"


def test_other_paths() -> None:
    with running() as server:
        assert b"/metrics" in ask(server.port, "/").body
        for path in ("/metrics/", "/..", "/metrics//", "/%2e%2e/etc/passwd", "/favicon.ico", "*"):
            reply = ask(server.port, path, Authorization=BEARER)
            assert reply.status == 404, path
            assert reply.body == b"there is only /metrics\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GARBAGE\r\n\r\n", b" 400 "),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b" 505 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b" 400 "),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b" 431 "),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"b" * MOST_HEAD, b" 431 "),
    ],
    ids=["garbage", "version", "tls", "many-headers", "long"],
)
def test_what_is_no_request(request_: bytes, status: bytes) -> None:
    with running() as server:
        answer = raw(server, request_)
        # What is too wrong to have a version is answered without a status line (HTTP/0.9).
        assert status in answer.partition(b"\r\n")[0] or b"HTTP/" not in answer
        assert TEXT not in answer
        page = ask(server.port, Authorization=BEARER).page
        assert page.of("mgpu_exporter_requests_total", answer="refused") == [1]


def test_a_client_that_never_finishes_its_request_is_dropped() -> None:
    with running(seconds_to_ask=0.05) as server:
        assert raw(server, b"GET /metrics HTTP/1.1\r\n") == b""


def test_a_client_that_says_nothing_holds_up_nobody() -> None:
    with (
        running() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=WAIT),
    ):
        assert ask(server.port, Authorization=BEARER).page.of("a") == [1]


def test_more_at_once_than_there_is_room_for_are_turned_away() -> None:
    go = threading.Event()

    def held() -> bytes:
        go.wait(WAIT)
        return TEXT

    with running(held) as server, ThreadPoolExecutor(MOST_AT_ONCE + 1) as clients:
        asked = [
            clients.submit(ask, server.port, Authorization=BEARER) for _ in range(MOST_AT_ONCE + 1)
        ]
        first, _ = wait(asked, WAIT, FIRST_COMPLETED)
        go.set()
        assert [one.result().status for one in first] == [503]
        assert sorted(one.result(WAIT).status for one in asked) == [200] * MOST_AT_ONCE + [503]
        page = ask(server.port, Authorization=BEARER).page
        assert page.of("mgpu_exporter_requests_total", answer="busy") == [1]


def test_no_sample_is_no_page() -> None:
    def fail() -> bytes:
        raise OSError("the driver is away")

    with running(fail) as server:
        reply = ask(server.port, Authorization=BEARER)
        assert (reply.status, reply.body) == (503, b"the sample failed\n")


def test_names_of_ours() -> None:
    names = ("localhost", "Node7")
    ours = ("localhost", "node7:1", "127.0.0.1", "10.1.2.3:80", "[::1]", "[fe80::1]:9877")
    others = (None, "", ":", "evil", "::1", "[127.0.0.1]", "node7:x", "[::1]x", "1.2.3", "node7 x")
    assert all(is_ours(host, names) for host in ours)
    assert not any(is_ours(host, names) for host in others)


def test_addresses() -> None:
    assert resolved("127.0.0.1", 1).is_loopback
    assert resolved("::1", 1).is_loopback
    assert resolved("::1", 1).url == "http://[::1]:1/metrics"
    assert not resolved("0.0.0.0", 1).is_loopback
    with pytest.raises(AddressError, match="not an address of this machine"):
        resolved("no such name", 1)
