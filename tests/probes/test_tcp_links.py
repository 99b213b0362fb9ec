"""The probe of connections: on real sockets of this machine, and on pretend ones of other hosts."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.outside import tcp_links
from mgpu_probes.outside.tcp_links import LEAST_BYTES, TcpLinks, list_established

SENT = 1_000_000


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
)
def test_what_the_kernel_says_of_a_connection(family: int, address: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(family))
        server.bind((address, 0))
        server.listen()
        client = stack.enter_context(socket.socket(family))
        client.connect(server.getsockname()[:2])
        other, _ = server.accept()
        stack.enter_context(other)
        sent = 0
        while sent < SENT:
            client.sendall(bytes(10_000))
            sent += 10_000
            received = 0
            while received < 10_000:
                received += len(other.recv(10_000))
        diag = stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4))
        inode = os.fstat(client.fileno()).st_ino
        (mine,) = (one for one in list_established(diag, family) if one.inode == inode)
        client.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                client.send(bytes(100_000))
        time.sleep(0.2)
        (full,) = (one for one in list_established(diag, family) if one.inode == inode)
    assert (mine.source, mine.peer) == ("127.0.0.1", "127.0.0.1")
    assert mine.sent - mine.resent == SENT
    assert mine.round_trip is not None
    assert 0 < mine.round_trip <= mine.smoothed < 1_000_000
    assert full.busy - mine.busy >= 100_000
    assert full.held - mine.held >= 100_000


def pretend(monkeypatch: pytest.MonkeyPatch, *sockets: tcp_links._Socket) -> None:
    monkeypatch.setattr(
        tcp_links,
        "list_established",
        lambda _, family: list(sockets) if family == socket.AF_INET else [],
    )


def one(peer: str, inode: int, **changes: Any) -> tcp_links._Socket:
    facts: dict[str, Any] = {"round_trip": 100, "rate": 10**9, "busy": 2_000_000, "held": 500_000}
    facts |= {"smoothed": 300}
    facts |= {"source": "10.0.0.1", "peer": peer, "inode": inode, "sent": 10**6, "resent": 1000}
    return tcp_links._Socket(**{**facts, **changes})


def opens(root: Path, pid: int, *inodes: int) -> None:
    folder = root / str(pid) / "fd"
    folder.mkdir(parents=True, exist_ok=True)
    for number, inode in enumerate(inodes):
        (folder / str(number)).symlink_to(f"socket:[{inode}]")


def test_sockets_of_the_processes_to_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens(tmp_path, 7, 1, 2, 3, 5, 6)
    opens(tmp_path, 8, 4)
    pretend(
        monkeypatch,
        one("10.0.0.2", 1),
        one("10.0.0.2", 2, round_trip=90, smoothed=250, rate=None, sent=3 * 10**6),
        one(
            "10.0.0.2", 3, round_trip=10, smoothed=20, sent=LEAST_BYTES
        ),  # carries too little to be asked
        one("10.0.0.2", 4, sent=10**9),  # of another process
        one("10.0.0.1", 5),  # within this host
        one("10.0.0.3", 6, sent=LEAST_BYTES - 1),
    )
    links = TcpLinks(tmp_path)
    assert links.sample([7]) == {
        "addresses": ["10.0.0.1"],
        "links": {
            "10.0.0.2": {
                "sent": 4 * 10**6 + LEAST_BYTES,
                "resent": 3000,
                "busy": 6.0,
                "held": 1.5,
                "round_trip": pytest.approx(90e-6),
                "smoothed": pytest.approx(250e-6),
                "rate": 10**9,
            }
        },
    }
    assert links.sample([7, 8])["links"]["10.0.0.2"]["sent"] > 10**9  # found with its process
    assert TcpLinks(tmp_path).sample([9]) == {}


def test_a_kernel_that_measures_less_says_nothing() -> None:
    message = struct.pack("=4x4x16s16s28xI", bytes(16), bytes(16), 1)
    attribute = struct.pack("=HH192x", 196, 2)
    assert tcp_links._read_socket(socket.AF_INET, message + attribute) is None
    assert tcp_links._read_socket(socket.AF_INET, message) is None
    assert tcp_links._read_socket(socket.AF_INET, message[:-1]) is None


def test_no_netlink_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("mgpu_probes.outside.tcp_links.socket.socket", refuse)
    assert TcpLinks(tmp_path).sample([1]) == {}
