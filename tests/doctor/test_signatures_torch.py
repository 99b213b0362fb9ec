"""Signatures of torch, NCCL and CUDA: each real text is recognised, healthy logs are not."""

from __future__ import annotations

import re
import string
from collections import Counter
from pathlib import Path

import pytest

from mgpu_doctor.signatures import (
    catalogue,
    checkpoint,
    compiling,
    cuda,
    cuda_memory,
    ddp,
    exceptions,
    fsdp,
    gloo,
    launcher,
    loader,
    nccl,
    nccl_network,
    nccl_watchdog,
    rendezvous,
    shapes,
    spawn,
)
from mgpu_doctor.signatures.signature import Role, Signature

FAMILIES = (
    checkpoint,
    compiling,
    cuda,
    cuda_memory,
    ddp,
    exceptions,
    fsdp,
    gloo,
    launcher,
    loader,
    nccl,
    nccl_network,
    nccl_watchdog,
    rendezvous,
    shapes,
    spawn,
)
SIGNATURES = tuple(signature for family in FAMILIES for signature in family.SIGNATURES)
HEALTHY = Path(__file__).parents[1] / "recorded" / "console" / "healthy"

CODES = frozenset(
    [
        "hang-rank-behind",
        "hang-collective-mismatch",
        "hang-rank-dead",
        "hang-rendezvous",
        "cpu-oversubscribed",
        "oom-device",
        "oom-fragmentation",
        "oom-foreign-process",
        "shm-exhausted",
        "gpu-ecc",
        "gpu-missing",
        "nvlink-down",
        "topology-slow",
        "loss-nan",
        "recompiling",
        "failed-exception",
        "failed-killed",
        "failed-signal",
        "failed-nccl-timeout",
        "failed-nccl-init",
        "failed-peer-to-peer",
        "failed-port-in-use",
        "failed-rendezvous",
        "failed-world-size",
        "failed-unused-parameters",
        "failed-reentrant-backward",
        "failed-shape-mismatch",
        "failed-device-mismatch",
        "failed-device-assert",
        "failed-illegal-access",
        "failed-driver-too-old",
        "failed-no-kernel-image",
        "failed-visible-devices",
        "failed-dataloader-worker",
        "failed-checkpoint",
        "failed-disk-full",
        "failed-open-files",
        "failed-permission",
        "failed-spawn-pickling",
        "failed-main-guard",
        "failed-preempted",
        "failed-hangup",
        "failed-interrupted",
        "failed-fsdp",
        "failed-gloo",
    ]
)
"""Of the catalogue of findings: those that a text of torch can be evidence for."""

every_signature = pytest.mark.parametrize(
    "signature", SIGNATURES, ids=[signature.id for signature in SIGNATURES]
)


def found(line: str) -> list[Signature]:
    """Which recognise the line, by needle and pattern as the reader of logs does it."""
    return [s for s in SIGNATURES if s.needle in line and re.search(s.pattern, line)]


def test_there_are_enough_and_ids_are_unique() -> None:
    assert len(SIGNATURES) >= 200
    assert set(SIGNATURES) <= set(catalogue.SIGNATURES)
    assert [id for id, count in Counter(s.id for s in SIGNATURES).items() if count > 1] == []


@every_signature
def test_its_example_is_recognised_by_itself_alone(signature: Signature) -> None:
    assert [other.id for other in found(signature.example)] == [signature.id]


@every_signature
def test_it_is_declared_as_the_house_does(signature: Signature) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", signature.id)
    assert signature.code in CODES
    assert len(signature.needle) >= 8
    assert signature.severity in ("critical", "warning", "info")
    assert 0 < signature.weight <= 1
    assert signature.role is Role.CAUSE or signature.weight <= 0.75
    assert re.match(r"(?:made|source): \S", signature.origin)
    assert "\n" not in signature.example


@every_signature
def test_its_words_can_be_told_with_its_values(signature: Signature) -> None:
    match = re.search(signature.pattern, signature.example)
    assert match is not None
    values = match.groupdict()
    for text in (signature.meaning, signature.fix):
        named = {name for _, name, _, _ in string.Formatter().parse(text) if name}
        assert [name for name in named if values[name] is None] == []
        assert not re.search(r"\{\{|\}\}", text)
        told = text.format(**values)
        assert told == told.strip()
        assert told.endswith((".", ")"))
        assert len(told) <= 700


@every_signature
def test_who_tells_of_a_disagreement_is_not_blamed_for_it(signature: Signature) -> None:
    groups = set(re.compile(signature.pattern).groupindex)
    names_two = {"rank", "other"} <= groups or {"first", "second", "version"} <= groups
    if signature.code == "hang-collective-mismatch" or names_two:
        assert signature.mutual


def healthy_lines() -> list[str]:
    return [
        line
        for path in sorted(HEALTHY.glob("*.log"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def test_healthy_logs_say_nothing() -> None:
    lines = healthy_lines()
    assert len(lines) > 200
    assert {line: [s.id for s in hits] for line in lines if (hits := found(line))} == {}


def hostile(signature: Signature) -> list[str]:
    """Long lines on which a careless pattern would try its parts in every way they fit."""
    words = re.findall(r"[A-Za-z]{3,}|\d+|[^\w\s]", signature.example)
    stem = signature.example[: max(1, len(signature.example) - 1)]
    return [
        (stem * 200)[:4096],
        (signature.needle * 500)[:4096],
        stem + "9" * 4000,
        stem + " a" * 2000,
        "".join(f"{word} " * 60 for word in words)[:4096],
    ]


@every_signature
@pytest.mark.timeout(60)  # a pattern that goes through its choices would take years
def test_no_line_can_keep_its_pattern_busy(signature: Signature) -> None:
    for line in hostile(signature):
        re.search(signature.pattern, line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 "
            "milliseconds before timing out.",
            "nccl-watchdog-timeout",
        ),
        (
            "[Rank 2] Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, "
            "TensorShape=[5056], Timeout(ms)=1800000) ran for 1800114 milliseconds before timing "
            "out.",
            "nccl-watchdog-timeout",
        ),
        (
            "[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: "
            "7753, last enqueued NCCL work: 7755, last completed NCCL work: 7752.",
            "nccl-watchdog-failure",
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 "
            "has a total capacty of 23.65 GiB of which 1.66 GiB is free. Including non-PyTorch "
            "memory, this process has 20.81 GiB memory in use. Of the allocated memory 12.09 GiB "
            "is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but unallocated.",
            "cuda-oom",
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 MiB. GPU 1 has a "
            "total capacity of 63.98 GiB of which 12.00 MiB is free. Of the allocated memory "
            "62.10 GiB is allocated by PyTorch, and 98.10 MiB is reserved by PyTorch but "
            "unallocated.",
            "cuda-oom",
        ),
        (
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 2 has a total capacity of 79.10 "
            "GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has 40.20 "
            "GiB memory in use. Process 7 has 38.70 GiB memory in use. Of the allocated memory "
            "39.00 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but "
            "unallocated.",
            "cuda-oom-shared-device",
        ),
        ("RuntimeError: CUDA error: misaligned address", "launch-failure"),
        (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Aborted. ",
            "loader-worker-crashed",
        ),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. "
            "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in "
            "use). The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address "
            "already in use).",
            "port-in-use",
        ),
        (
            "[rank2]:[E ProcessGroupNCCL.cpp:1182] [PG 0 (default_pg) Rank 2] Received a dump "
            "signal from this local rank and will start to dump the debug info. ",
            "nccl-heartbeat-signal",
        ),
        ("torch.distributed.DistNetworkError: Connection reset by peer", "store-connection-lost"),
        ("RuntimeError: expected scalar type Double but found Float", "dtypes-scalar-type"),
        (
            "ncclSystemError: System call (socket, malloc, munmap, etc) failed.",
            "nccl-system-error",
        ),
        (
            "RuntimeError: Given groups=1, weight of size 64 3 7 7, expected input[2, 1, 224, "
            "224] to have 3 channels, but got 1 channels instead",
            "convolution-channels",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed "
            "by peer [10.0.0.4]:30153",
            "gloo-closed-by-peer",
        ),
    ],
)
def test_other_versions_say_it_otherwise(line: str, expected: str) -> None:
    assert [signature.id for signature in found(line)] == [expected]


def test_a_fragmented_memory_is_told_from_a_full_one() -> None:
    text = (
        "CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 79.10 GiB of "
        "which 1.00 MiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and "
        "{left} is reserved by PyTorch but unallocated."
    )
    codes = {
        (asked, left): [s.code for s in found(text.format(asked=asked, left=left))]
        for asked in ("512.00 MiB", "6.00 GiB")
        for left in ("90.00 MiB", "7.50 GiB")
    }
    assert codes == {
        ("512.00 MiB", "90.00 MiB"): ["oom-device"],
        ("512.00 MiB", "7.50 GiB"): ["oom-fragmentation"],
        ("6.00 GiB", "90.00 MiB"): ["oom-device"],
        ("6.00 GiB", "7.50 GiB"): ["oom-device"],
    }
