"""The connections of some processes to other hosts, as the kernel measures them anyway.

sock_diag(7) lists the TCP sockets of this network namespace to anybody, each with a struct tcp_info
(linux/tcp.h). Nothing is sent. What goes past TCP, such as RDMA, is not seen."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]

LEAST_BYTES = 1 << 16
"""Bytes that a socket must have sent: fewer are those of a rendezvous, not of training."""
MOST_PEERS = 32
"""Peers that are reported, those to which the most was sent."""
CARRIES = 0.1
"""Share of the bytes to a peer from which a socket's round trip counts: the time that an idle one
has kept may be an old one."""
SCANS, THEN_EACH = 3, 30
"""Samples with new sockets which look for their owners; later only every thirtieth does."""
MOST_ANSWER = 8 << 20
MOST_FILES = 4096
_SECONDS = 1.0
_SOCK_DIAG, _BY_FAMILY, _ERROR, _DONE = 4, 20, 2, 3
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ESTABLISHED = 1 << 1
_INFO = 2
_REQUEST = struct.Struct("=IHHIIBBBBI48x")
_HEADER = struct.Struct("=IHHII")
_SOCKET = struct.Struct("=4x4x16s16s28xI")
"""Source and destination, and the inode, of a struct inet_diag_msg."""
_ATTRIBUTE = struct.Struct("=HH")
_TCP_INFO = struct.Struct("=7xB60xI76xI8xQQQ16xQQ")
"""App-limited bit, smoothed and least round trip (µs), delivery rate, µs with data on its way and
with a full window of the receiver, bytes sent and sent again: at 7, 68, 148, 160, 168, 176, 200 and
208."""
_UNKNOWN = 0xFFFFFFFF
_MAPPED = "::ffff:"
_MICRO = 1e-6


class _Socket(NamedTuple):
    source: str
    peer: str
    inode: int
    round_trip: int | None
    smoothed: int
    rate: int | None
    """Bytes per second; None: the sender had no more to send."""
    busy: int
    held: int
    sent: int
    resent: int


class TcpLinks:
    """Samples connections, and caches whose they are. For one thread."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._samples = 0
        self._own: set[int] = set()
        """Inodes of sockets of the processes."""
        self._others: set[int] = set()
        self._pids: set[int] = set()
        self._usable = hasattr(socket, "AF_NETLINK")

    def sample(self, pids: Iterable[int]) -> Json:
        """`addresses` (of this host, in these connections) and `links`, {address of another host:
        {…}}; empty if there are none. A link has sums over its sockets so far: `sent`, `resent`
        (bytes, the second ones because they were lost), `busy`, `held` (seconds with data on its
        way, and those in which the receiver took no more); and `round_trip` (seconds, the least of
        the last five minutes), `smoothed` (seconds, the mean of the newest round trips), `rate`
        (bytes per second that arrived while there was more to send; null: unknown)."""
        found = self._list_sockets() if self._usable else []
        here = {one.source for one in found}
        found = [
            one
            for one in found
            if one.sent >= LEAST_BYTES and one.peer not in here and not _is_loopback(one.peer)
        ]
        own = self._owned(found, pids)
        by_peer: dict[str, list[_Socket]] = {}
        for one in own:
            by_peer.setdefault(one.peer, []).append(one)
        most = sorted(by_peer, key=lambda peer: -sum(one.sent for one in by_peer[peer]))
        if not most:
            return {}
        return {
            "addresses": sorted({one.source for one in own})[:MOST_PEERS],
            "links": {peer: _sum_up(by_peer[peer]) for peer in most[:MOST_PEERS]},
        }

    def _owned(self, found: list[_Socket], pids: Iterable[int]) -> list[_Socket]:
        """Those sockets that belong to the processes."""
        pids = set(pids)
        if pids != self._pids:
            self._others.clear()
            self._pids = pids
        inodes = {one.inode for one in found}
        self._own &= inodes
        self._others &= inodes
        unknown = inodes - self._own - self._others
        if unknown:
            if self._samples < SCANS or self._samples % THEN_EACH == 0:
                self._own |= unknown & {*self._list_inodes(pids)}
                self._others |= unknown - self._own
            self._samples += 1
        return [one for one in found if one.inode in self._own]

    def _list_inodes(self, pids: Iterable[int]) -> Iterator[int]:
        """Inodes of the sockets that processes have open."""
        for pid in pids:
            folder = f"{self._proc}/{pid}/fd"
            try:
                names = os.listdir(folder)[:MOST_FILES]
            except OSError:
                continue
            for name in names:
                try:
                    target = os.readlink(f"{folder}/{name}")
                except OSError:
                    continue
                if target.startswith("socket:["):
                    yield int(target[8:-1])

    def _list_sockets(self) -> list[_Socket]:
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as diag:
                diag.settimeout(_SECONDS)
                found = []
                for family in (socket.AF_INET, socket.AF_INET6):
                    found += list_established(diag, family)
                return found
        except OSError:
            self._usable = False
            return []


def list_established(diag: socket.socket, family: int) -> list[_Socket]:
    """The sockets of an address family with an open connection. Raises OSError."""
    kind = (family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
    diag.send(_REQUEST.pack(_REQUEST.size, _BY_FAMILY, _DUMP, 0, 0, *kind))
    found: list[_Socket] = []
    size = 0
    while size < MOST_ANSWER:
        answer = diag.recv(1 << 16)
        size += len(answer)
        at = 0
        while at + _HEADER.size <= len(answer):
            length, what, *_ = _HEADER.unpack_from(answer, at)
            if what in (_DONE, _ERROR) or length < _HEADER.size:
                return found
            one = _read_socket(family, answer[at + _HEADER.size : at + length])
            if one is not None:
                found.append(one)
            at += length + 3 & ~3
    return found


def _read_socket(family: int, message: bytes) -> _Socket | None:
    """None: the kernel is older than 4.19 and does not measure enough."""
    if len(message) < _SOCKET.size:
        return None
    source, peer, inode = _SOCKET.unpack_from(message)
    at = _SOCKET.size
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INFO and length - _ATTRIBUTE.size >= _TCP_INFO.size:
            limited, smoothed, least, rate, busy, held, sent, resent = _TCP_INFO.unpack_from(
                message, at + _ATTRIBUTE.size
            )
            return _Socket(
                _name(family, source),
                _name(family, peer),
                inode,
                None if least == _UNKNOWN else least,
                smoothed,
                None if limited & 1 or not rate else rate,
                busy,
                held,
                sent,
                resent,
            )
        at += max(length, _ATTRIBUTE.size) + 3 & ~3
    return None


def _name(family: int, address: bytes) -> str:
    size = 4 if family == socket.AF_INET else 16
    return socket.inet_ntop(family, address[:size]).removeprefix(_MAPPED)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _sum_up(sockets: list[_Socket]) -> Json:
    sent = sum(one.sent for one in sockets)
    main = [one for one in sockets if one.sent >= CARRIES * sent]
    times = [one.round_trip for one in main if one.round_trip is not None]
    rates = [one.rate for one in main if one.rate is not None]
    return {
        "sent": sent,
        "resent": sum(one.resent for one in sockets),
        "busy": round(sum(one.busy for one in sockets) * _MICRO, 3),
        "held": round(sum(one.held for one in sockets) * _MICRO, 3),
        "round_trip": min(times) * _MICRO if times else None,
        "smoothed": min(one.smoothed for one in main) * _MICRO,
        "rate": sum(rates) if rates else None,
    }
