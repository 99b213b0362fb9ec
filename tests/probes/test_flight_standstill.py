"""NCCL's counters of a hanging job as flight records. A pretend NCCL answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from mgpu_probes.outside.flight.nccl_ras import ADDRESS, address_of, find_stuck_communicators

from mgpu_doctor.analysis.collectives.first_divergence import diverged
from mgpu_doctor.case.flight_records import flight_of

PIDS = (100, 101, 102, 103)
RANKS = {pid: number for number, pid in enumerate(PIDS)}
Answer = dict[str, Any]


def account(launched: Sequence[int], *, pids: Sequence[int] = PIDS, **more: Any) -> Answer:
    """One communicator, numbered by NCCL in an order of its own."""
    listed = [
        {"rank": at, "host": "10.0.0.1", "pid": pid, "collective_counts": {"AllReduce": count}}
        for at, (pid, count) in enumerate(reversed([*zip(pids, launched, strict=True)]))
    ]
    return {"communicators": [{"hash": "0xa1", "size": len(listed), "ranks": listed, **more}]}


@contextmanager
def nccl(*answers: Answer) -> Iterator[tuple[str, int]]:
    """Answers each client in turn, as NCCL's side of the protocol does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            for answer in answers:
                peer, _ = server.accept()
                with peer, peer.makefile("rw", encoding="ascii", newline="\n") as lines:
                    lines.readline()
                    lines.write("SERVER PROTOCOL 2\n")
                    lines.flush()
                    lines.readline()
                    lines.write("OK\n")
                    lines.flush()
                    lines.readline()
                    lines.write(json.dumps(answer))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            thread.join()


def asked(*answers: Answer) -> tuple[dict[str, Any], ...]:
    """What two accounts give, without the rest between them."""
    with nccl(*answers) as address:
        forms = find_stuck_communicators(RANKS, address, sleep=lambda _: None)
    for form in forms:
        form["at"] += 6.0
    return forms


def test_who_has_not_come_to_an_operation_is_named() -> None:
    behind = account([650, 650, 649, 650])
    divergence = diverged(map(flight_of, asked(behind, behind)))
    assert divergence is not None
    assert (divergence.culprits, divergence.waiting) == ((2,), (0, 1, 3))


@pytest.mark.parametrize(
    "then",
    [
        account([651, 651, 650, 651]),
        account([650, 650, 650, 650]),
        account([650, 650, 649, 650], pids=(7, 8, 9, 10)),
        account([650, 650, 649, 650], missing_ranks=[{"rank": 4, "pid": 104}]),
        {"communicators": []},
    ],
    ids=["it moves", "it came", "another job", "a process is missing", "nothing is told"],
)
def test_nobody_is_named_of_a_job_that_may_move(then: Answer) -> None:
    forms = asked(account([650, 650, 649, 650]), then)
    assert diverged(map(flight_of, forms)) is None


def test_a_job_of_others_is_asked_once() -> None:
    assert asked(account([5, 4], pids=(7, 8))) == ()


def test_ranks_that_all_stand_at_one_operation_tell_of_nobody() -> None:
    same = account([650] * 4)
    assert diverged(map(flight_of, asked(same, same))) is None


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, ADDRESS),
        ({"NCCL_RAS_ADDR": "127.0.0.1:9000"}, ("127.0.0.1", 9000)),
        ({"NCCL_RAS_ADDR": "[::1]:9000"}, ("::1", 9000)),
        ({"NCCL_RAS_ADDR": "nonsense"}, ADDRESS),
        ({"NCCL_RAS_ENABLE": "0"}, None),
    ],
    ids=["default", "given", "IPv6", "nonsense", "switched off"],
)
def test_where_nccl_listens(environ: dict[str, str], address: tuple[str, int] | None) -> None:
    assert address_of(environ) == address
