"""One HTTP request and the reply to it. No socket: bytes in, bytes out."""

from __future__ import annotations

import gzip
import hmac
import io
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from mgpu_doctor.export.access import is_ours
from mgpu_doctor.export.job_metrics import Answer
from mgpu_doctor.export.metrics_page import CONTENT_TYPE

MOST_HEAD = 16 << 10
WORTH_PACKING = 1024
"""Minimum bytes of a page for which gzip pays."""
PLAIN = "text/plain; charset=utf-8"
ABOUT = "mgpu-doctor exports metrics of this machine's training for Prometheus at /metrics.\n"


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules. `token`: required in each request; None: none required. `names`: allowed names
    of this server."""

    token: str | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of metrics, plain and compressed, made once for all waiting clients."""

    plain: bytes
    packed: bytes

    @classmethod
    def of(cls, text: bytes) -> Page:
        return cls(text, gzip.compress(text, 1) if len(text) > WORTH_PACKING else b"")


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply. `parts`: head and body; replies may share a body. `answer`: how it is counted once
    sent."""

    parts: tuple[bytes, ...]
    answer: Answer


class Request(BaseHTTPRequestHandler):
    """A client's request."""

    server_version = "mgpu-doctor"
    sys_version = ""
    error_content_type = PLAIN
    error_message_format = "%(message)s\n"

    def __init__(self, head: bytes) -> None:
        self._size = len(head)
        self.rfile = io.BufferedReader(io.BytesIO(head))
        self._written = self.wfile = io.BytesIO()
        self.raw_requestline = self.rfile.readline()
        self._is_request = self.parse_request()

    def judge(self, access: Access) -> Reply | None:
        """Returns the reply; None for a permitted request for the metrics."""
        return (
            self._check_form()
            or self._check_host(access.names)
            or self._check_target()
            or self._check_token(access.token)
        )

    def show(self, page: Page) -> Reply:
        """Returns the reply with the page, compressed if the client accepts that."""
        if page.packed and "gzip" in self.headers.get("Accept-Encoding", ""):
            packed = ("Content-Encoding", "gzip")
            return self._reply(HTTPStatus.OK, CONTENT_TYPE, page.packed, Answer.OK, packed)
        return self._reply(HTTPStatus.OK, CONTENT_TYPE, page.plain, Answer.OK)

    def refuse(
        self,
        status: HTTPStatus,
        sentence: str,
        *headers: tuple[str, str],
        answer: Answer = Answer.REFUSED,
    ) -> Reply:
        return self._reply(status, PLAIN, f"{sentence}\n".encode(), answer, *headers)

    def _check_form(self) -> Reply | None:
        if not self._is_request:
            return Reply((self._written.getvalue(),), Answer.REFUSED)
        if self._size >= MOST_HEAD:
            too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return self.refuse(too_large, f"a request has at most {MOST_HEAD} bytes")
        return None

    def _check_host(self, names: tuple[str, ...]) -> Reply | None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) == 1 and is_ours(hosts[0], names):
            return None
        sentence = f"call this server by its IP address or by: {', '.join(names)}"
        return self.refuse(HTTPStatus.FORBIDDEN, sentence)

    def _check_target(self) -> Reply | None:
        if self.command != "GET":
            sentence = "only GET is supported"
            return self.refuse(HTTPStatus.METHOD_NOT_ALLOWED, sentence, ("Allow", "GET"))
        if self.path == "/":
            return self._reply(HTTPStatus.OK, PLAIN, ABOUT.encode(), Answer.OK)
        if self.path.partition("?")[0] != "/metrics":
            return self.refuse(HTTPStatus.NOT_FOUND, "there is only /metrics")
        return None

    def _check_token(self, token: str | None) -> Reply | None:
        if token is None:
            return None
        kind, _, words = self.headers.get("Authorization", "").partition(" ")
        offered = words.strip().encode("utf-8", "replace")
        same = hmac.compare_digest(offered, token.encode())
        if kind.lower() == "bearer" and same:
            return None
        challenge = ("WWW-Authenticate", 'Bearer realm="mgpu-doctor"')
        sentence = "send the token: Authorization: Bearer TOKEN"
        return self.refuse(HTTPStatus.UNAUTHORIZED, sentence, challenge, answer=Answer.UNAUTHORIZED)

    def _reply(
        self, status: HTTPStatus, kind: str, body: bytes, answer: Answer, *headers: tuple[str, str]
    ) -> Reply:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        return Reply((self._written.getvalue(), body), answer)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: requests are counted instead."""
