"""The network between two hosts, by plain TCP: one side listens for a minute at most, the other one
connects.

The listener takes only connections that begin with the token that both got over their channels. It
echoes single bytes, and counts what is sent to it."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from typing import Any

from mgpu_probes.outside.preflight.contention_meter import ContentionMeter

Json = dict[str, Any]

LISTEN_SECONDS = 60.0
CONNECT_SECONDS = 5.0
LONGEST = 10.0
"""Seconds that one transfer may take."""
PINGS, PING_SECONDS = 200, 0.5
TRANSFERS, TRANSFER_SECONDS = 3, 0.3
BLOCK = 1 << 18
TOKEN = 32
_SIOCGIFADDR = 0x8915
_COUNT = struct.Struct("<Qd")


def find_address(interface: str | None) -> str | None:
    """The address at which other hosts of the job reach this one: that of `interface`, or the one
    to which ssh connected, or the one of the default route; None if there is none."""
    if interface is not None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
            name = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_.fileno(), _SIOCGIFADDR, name)[20:24])
        return None
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        return connection[2]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        any_.connect(("198.51.100.1", 9))  # RFC 5737; nothing is sent
        return str(any_.getsockname()[0])
    return None


def find_free_port(address: str) -> int:
    """A port of this host that is free now."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as trial:
        trial.bind((address, 0))
        return int(trial.getsockname()[1])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Listener:
    """A port of this host for one link test."""

    def __init__(self, address: str) -> None:
        self.token = secrets.token_hex(TOKEN // 2)
        self._socket = socket.socket(_family(address), socket.SOCK_STREAM)
        self._socket.bind((address, 0))
        self._socket.listen(4)
        self._socket.settimeout(LISTEN_SECONDS)
        self._meter = ContentionMeter()
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> Json:
        """Closes the port; `contention` of this host since it was opened."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # else `accept` keeps the port open
        self._socket.close()
        return {"contention": self._meter.read()}

    def _serve(self) -> None:
        end = time.monotonic() + LISTEN_SECONDS
        with contextlib.suppress(OSError), self._socket:
            while time.monotonic() < end:
                connection, _ = self._socket.accept()
                with contextlib.suppress(OSError), connection:
                    connection.settimeout(LONGEST)
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if not hmac.compare_digest(_receive(connection, TOKEN), self.token.encode()):
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind = _receive(connection, 1)
        if kind == b"e":
            while data := connection.recv(1):
                connection.sendall(data)
        elif kind == b"s":
            connection.sendall(_COUNT.pack(*_drain(connection)))
        elif kind == b"r":
            _send(connection)


def measure_link(address: str, port: int, token: str) -> Json:
    """`round_trips` (seconds, of single bytes), `there` and `back` (bytes per second, of each
    transfer), `trouble` (why the link could not be used, else null), `contention` of this host."""
    meter = ContentionMeter()
    report: Json = {"round_trips": [], "there": [], "back": [], "trouble": None}
    try:
        report["round_trips"] = _ping(address, port, token)
        for _ in range(TRANSFERS):
            with _connect(address, port, token, b"s") as connection:
                _send(connection)
                count, seconds = _COUNT.unpack(_receive(connection, _COUNT.size))
                report["there"].append(count / max(seconds, 1e-9))
            with _connect(address, port, token, b"r") as connection:
                count, seconds = _drain(connection)
                report["back"].append(count / max(seconds, 1e-9))
    except OSError as error:
        report["trouble"] = error.strerror or str(error) or type(error).__name__
    return {**report, "contention": meter.read()}


def _ping(address: str, port: int, token: str) -> list[float]:
    seconds: list[float] = []
    end = time.monotonic() + PING_SECONDS
    with _connect(address, port, token, b"e") as connection:
        while len(seconds) < PINGS and (len(seconds) < 5 or time.monotonic() < end):
            began = time.perf_counter()
            connection.sendall(b".")
            _receive(connection, 1)
            seconds.append(time.perf_counter() - began)
    return seconds


def _connect(address: str, port: int, token: str, kind: bytes) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_SECONDS)
    connection.settimeout(LONGEST)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(token.encode() + kind)
    return connection


def _send(connection: socket.socket) -> None:
    block = memoryview(bytes(BLOCK))
    end = time.monotonic() + TRANSFER_SECONDS
    while time.monotonic() < end:
        connection.sendall(block)
    connection.shutdown(socket.SHUT_WR)


def _drain(connection: socket.socket) -> tuple[int, float]:
    """Bytes that arrive until the sender is done, and the seconds from the first to the last."""
    buffer = bytearray(BLOCK)
    count = connection.recv_into(buffer)
    first, began = count, time.perf_counter()
    last = began
    while size := connection.recv_into(buffer):
        count += size
        last = time.perf_counter()
    return count - first, last - began


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other side closed the connection")
        data += part
    return data
