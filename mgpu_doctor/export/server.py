"""A small HTTP server that answers `GET /metrics` and hardly anything else.

One request a connection; a bounded head in a bounded time; a bounded number at once.
"""

from __future__ import annotations

import gzip
import hmac
import io
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from mgpu_doctor.export import own
from mgpu_doctor.export.address import Address, is_ours
from mgpu_doctor.export.own import Answer, Answers
from mgpu_doctor.export.page import CONTENT_TYPE, END, lines
from mgpu_doctor.export.sampling import NoSampleError, Sampler

MOST_AT_ONCE = 16
MOST_HEAD = 16 << 10
SECONDS_TO_ASK = 5.0
SECONDS_TO_TAKE = 10.0
"""That a client may need for its request, and for the answer."""
PLAIN = "text/plain; charset=utf-8"
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
ABOUT = "mgpu-doctor tells Prometheus at /metrics what it sees of this machine's training.\n"


class Server(ThreadingHTTPServer):
    """`token`: what a request must bear; None: nothing. `names`: what it may call us. Raises
    `OSError` where it cannot listen."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: Address,
        sampler: Sampler,
        *,
        token: str | None,
        names: Sequence[str],
        seconds_to_ask: float = SECONDS_TO_ASK,
    ) -> None:
        self.address_family = address.family
        self.sampler = sampler
        self.token = token
        self.names = ("localhost", *names)
        self.seconds_to_ask = seconds_to_ask
        self.answers = Answers()
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((address.host, address.port), Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks the DNS for a name that nobody needs

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._turn_away(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._free.release()
            raise

    def _turn_away(self, request: socket.socket) -> None:
        self.answers.count(Answer.BUSY)
        request.setblocking(False)
        with suppress(OSError):
            request.send(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Clients that are too slow or go away are counted, not told of."""
        self.answers.count(Answer.BROKEN)


class Handler(BaseHTTPRequestHandler):
    """One request and its answer."""

    server: Server
    server_version = "mgpu-doctor"
    sys_version = ""
    error_content_type = PLAIN
    error_message_format = "%(message)s\n"

    def handle(self) -> None:
        head = self._head()
        self.connection.settimeout(SECONDS_TO_TAKE)
        self.rfile = io.BufferedReader(io.BytesIO(head))
        self.raw_requestline = self.rfile.readline()
        if not self.parse_request():
            self.server.answers.count(Answer.REFUSED)
        elif len(head) >= MOST_HEAD:
            too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._refuse(too_large, f"a request has at most {MOST_HEAD} bytes")
        else:
            self._answer()

    def _head(self) -> bytes:
        """What comes until the empty line. Raises `TimeoutError` where that takes too long."""
        until = time.monotonic() + self.server.seconds_to_ask
        head = b""
        while b"\r\n\r\n" not in head and len(head) < MOST_HEAD:
            self.connection.settimeout(max(0.001, until - time.monotonic()))
            part = self.connection.recv(4096)
            if not part:
                break
            head += part
        return head

    def _answer(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not is_ours(hosts[0], self.server.names):
            names = ", ".join(self.server.names)
            self._refuse(HTTPStatus.FORBIDDEN, f"call this server by its IP address or by: {names}")
        elif self.command != "GET":
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is served", ("Allow", "GET"))
        elif self.path == "/":
            self._send(HTTPStatus.OK, PLAIN, ABOUT.encode(), Answer.OK)
        elif self.path.partition("?")[0] != "/metrics":
            self._refuse(HTTPStatus.NOT_FOUND, "there is only /metrics")
        elif not self._may():
            challenge = ("WWW-Authenticate", 'Bearer realm="mgpu-doctor"')
            reason = "bear the token: Authorization: Bearer TOKEN"
            self._refuse(HTTPStatus.UNAUTHORIZED, reason, challenge, answer=Answer.UNAUTHORIZED)
        else:
            self._metrics()

    def _may(self) -> bool:
        if self.server.token is None:
            return True
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        offered = token.strip().encode("utf-8", "replace")
        same = hmac.compare_digest(offered, self.server.token.encode())
        return kind.lower() == "bearer" and same

    def _metrics(self) -> None:
        sampler, answers = self.server.sampler, self.server.answers
        try:
            sample = sampler.get()
        except NoSampleError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error), answer=Answer.FAILED)
            return
        text = sample.text + lines(own.families(sampler, sample, answers)) + END
        self._send(HTTPStatus.OK, CONTENT_TYPE, text, Answer.OK)

    def _refuse(
        self,
        status: HTTPStatus,
        sentence: str,
        *headers: tuple[str, str],
        answer: Answer = Answer.REFUSED,
    ) -> None:
        self._send(status, PLAIN, f"{sentence}\n".encode(), answer, *headers)

    def _send(
        self, status: HTTPStatus, kind: str, body: bytes, answer: Answer, *headers: tuple[str, str]
    ) -> None:
        self.send_response(status)
        if "gzip" in self.headers.get("Accept-Encoding", "") and len(body) > 1024:
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.answers.count(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what happens is counted."""


def serve(server: Server) -> Callable[[], None]:
    """Serve in a thread of its own; what is returned ends that."""
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop
