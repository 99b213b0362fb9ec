"""Signatures of memory, hardware, TensorFlow, launchers, schedulers and the host."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest
from mgpu_probes.outside.logs.scan import Engine

from mgpu_doctor import signatures
from mgpu_doctor.signatures import (
    accelerate,
    crashes,
    deepspeed,
    hardware,
    horovod,
    host,
    kubernetes,
    lightning,
    memory,
    mpi,
    schedulers,
    slurm,
    tensorflow,
    tensorflow_cluster,
    tensorflow_gpu,
    xid,
)
from mgpu_doctor.signatures.signature import Role, Signature

OWN = tuple(
    signature
    for family in (
        accelerate,
        crashes,
        deepspeed,
        hardware,
        horovod,
        host,
        kubernetes,
        lightning,
        memory,
        mpi,
        schedulers,
        slurm,
        tensorflow,
        tensorflow_cluster,
        tensorflow_gpu,
        xid,
    )
    for signature in family.SIGNATURES
)
CONSOLE = Path(__file__).parents[1] / "recorded" / "console"
HEALTHY = CONSOLE / "healthy"

CODES = frozenset(
    [
        "failed-checkpoint",
        "failed-deepspeed",
        "failed-disk-full",
        "failed-driver-too-old",
        "failed-exception",
        "failed-fsdp",
        "failed-hangup",
        "failed-horovod-stall",
        "failed-illegal-access",
        "failed-interrupted",
        "failed-killed",
        "failed-open-files",
        "failed-permission",
        "failed-port-in-use",
        "failed-preempted",
        "failed-rendezvous",
        "failed-shape-mismatch",
        "failed-signal",
        "failed-tf-batch-indivisible",
        "failed-tf-collective",
        "failed-tf-config",
        "failed-tf-cudnn",
        "failed-tf-invalid-argument",
        "failed-tf-resource-exhausted",
        "failed-tf-worker-missing",
        "failed-time-limit",
        "failed-unused-parameters",
        "failed-world-size",
        "gpu-ecc",
        "gpu-lost",
        "gpu-missing",
        "gpu-xid",
        "hang-collective-mismatch",
        "loss-nan",
        "memory-preallocated",
        "nvlink-down",
        "oom-device",
        "oom-host",
        "pcie-degraded",
        "recompiling",
        "shm-exhausted",
    ]
)
"""Of the catalogue of findings: those that a text of these families can be evidence for."""

every_signature = pytest.mark.parametrize("signature", OWN, ids=[one.id for one in OWN])


def all_families() -> tuple[Signature, ...]:
    """The signatures of every module of the package, catalogued or not."""
    modules = (
        importlib.import_module(f"{signatures.__name__}.{module.name}")
        for module in pkgutil.iter_modules(signatures.__path__)
        if module.name != "catalogue"
    )
    return tuple(one for module in modules for one in getattr(module, "SIGNATURES", ()))


EVERY = all_families()


def found(line: str) -> list[str]:
    """The ids of those that recognise a line, by needle and pattern as the reader of logs does."""
    return [one.id for one in EVERY if one.needle in line and re.search(one.pattern, line)]


def test_there_are_enough_and_every_id_is_unique() -> None:
    assert len(OWN) >= 150
    assert [name for name, count in Counter(one.id for one in EVERY).items() if count > 1] == []


@every_signature
def test_its_example_is_recognised_by_itself_alone(signature: Signature) -> None:
    assert found(signature.example) == [signature.id]


@every_signature
def test_it_is_declared_as_the_house_does(signature: Signature) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", signature.id)
    assert signature.code in CODES
    assert len(signature.needle) >= 8 or (signature.weight <= 0.6 and "^" in signature.pattern)
    assert signature.severity in ("critical", "warning", "info")
    assert 0 < signature.weight < 1
    assert signature.role is Role.CAUSE or signature.weight <= 0.9
    assert re.match(r"(?:made|source): \S", signature.origin)
    assert "\n" not in signature.example


@every_signature
def test_its_words_can_be_told_with_its_values(signature: Signature) -> None:
    match = re.search(signature.pattern, signature.example)
    assert match is not None
    for text in (signature.meaning, signature.fix):
        told = text.format(**match.groupdict())
        assert "None" not in told, "a value that is not always there"
        assert told == told.strip()
        assert len(told) <= 700


def healthy_lines() -> list[str]:
    return [
        line
        for path in sorted(HEALTHY.glob("*.log"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def test_healthy_logs_say_nothing() -> None:
    names = {path.stem.split("-")[0] for path in HEALTHY.glob("*.log")}
    assert {"tensorflow", "lightning", "accelerate", "slurm", "kernel", "horovod"} <= names
    assert {line: hits for line in healthy_lines() if (hits := found(line))} == {}


def hostile(signature: Signature) -> list[str]:
    """Long lines on which a careless pattern would try its parts in every way they fit."""
    words = re.findall(r"[A-Za-z]{3,}|\d+|[^\w\s]", signature.example)
    stem = signature.example[:-1]
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
    "label",
    ["", "[rank3]: ", "[default3]: ", "[1,3]<stderr>:", "3: ", "2026-01-02 03:04:05,678 "],
    ids=["bare", "torch", "torchrun", "mpirun", "srun", "stamped"],
)
def test_the_reader_of_logs_finds_them_behind_labels(label: str) -> None:
    lines = [f"step {step} loss 0.5" for step in range(50)] + [one.example for one in OWN]
    block = "".join(f"{label}{line}\n" for line in lines).encode()
    hits = {hit.signature for hit in Engine(EVERY).scan("train.log", [block]).hits}
    assert hits == {one.id for one in OWN}


def test_an_xid_is_told_by_its_number() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1234, name=python, Ch 00000010"
    codes = {
        number: [one.code for one in EVERY if re.search(one.pattern, line.format(number))]
        for number in (13, 48, 74, 79, 95, 119, 140)
    }
    assert codes == {
        13: ["gpu-xid"],
        48: ["gpu-ecc"],
        74: ["nvlink-down"],
        79: ["gpu-lost"],
        95: ["gpu-ecc"],
        119: ["gpu-xid"],
        140: ["gpu-xid"],
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[2026-09-14T17:14:38.784] error: Detected 2 oom_kill events in StepId=22035606.1. "
            "Some of the step tasks have been OOM Killed.",
            "slurm-oom-kill",
        ),
        (
            "slurmstepd: error: Detected 9 oom-kill event(s) in step 6493531.batch cgroup. Some of "
            "your processes may have been killed by the cgroup out-of-memory handler.",
            "slurm-oom-kill",
        ),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***",
            "slurm-cancelled",
        ),
        ("NVRM: GPU at PCI:0000:18:00.0 has fallen off the bus.", "nvrm-off-the-bus"),
        (
            "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error",
            "nvml-device-handle",
        ),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). "
            "RST: No, D-RST: No",
            "xid-94-contained",
        ),
        (
            "ResourceExhaustedError:  OOM when allocating tensor with shape[256,1024,28,28] and "
            "type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc "
            "[Op:Conv2D]",
            "tf-out-of-memory",
        ),
        (
            "Mismatched MPI operations: One rank did an ALLREDUCE, but another rank did an "
            "ALLGATHER.",
            "horovod-operations",
        ),
        ("Killed", "shell-killed"),
        ("Segmentation fault (core dumped)", "shell-segmentation-fault"),
        ("run.sh: line 12: 4711 Killed   TF_CONFIG=x python train.py > log", "shell-killed"),
        (
            "numpy.core._exceptions.MemoryError: Unable to allocate 6.40 GiB for an array with "
            "shape (858993459,) and data type float64",
            "numpy-memory-error",
        ),
        ("=>> PBS: job killed: mem job total 1 kb exceeded limit 10 kb", "pbs-memory-limit"),
    ],
)
def test_other_versions_say_it_otherwise(line: str, expected: str) -> None:
    assert found(line) == [expected]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("accelerate-exit", {"accelerate-script-failed"}),
        ("lightning-elastic", {"lightning-world-size"}),
        ("lightning-gpu", {"lightning-no-accelerator"}),
        ("lightning-nan", {"lightning-metric-non-finite"}),
        ("lightning-term", {"lightning-sigterm"}),
        ("lightning-unused", {"lightning-unused-parameters"}),
        ("tensorflow-batchmap", {"tf-samples-of-unequal-size"}),
        ("tensorflow-config-index", {"tf-config-index"}),
        ("tensorflow-config-json", {"tf-config-no-json"}),
        ("tensorflow-input", {"keras-layer-input"}),
        ("tensorflow-labels", {"tf-label-out-of-range"}),
        ("tensorflow-leader-lost", {"tf-collective-aborted"}),
        ("tensorflow-mirrored", {"tf-replicas-of-unequal-size"}),
        ("tensorflow-nan", {"keras-loss-nan"}),
        ("tensorflow-nangrad", {"tf-check-numerics"}),
        ("tensorflow-oom", {"tf-allocator-full", "tf-out-of-memory"}),
        ("tensorflow-per-replica", {"keras-per-replica"}),
        ("tensorflow-port", {"tf-port-in-use", "tf-server-not-started"}),
        ("tensorflow-shape", {"tf-matrix-sizes"}),
        ("tensorflow-weights", {"keras-weights-mismatch"}),
        ("tensorflow-worker-lost", {"tf-heartbeats-stopped"}),
    ],
)
def test_a_job_that_really_failed_is_recognised_by_its_log(log: str, expected: set[str]) -> None:
    block = (CONSOLE / "failed" / f"{log}.log").read_bytes()
    assert {hit.signature for hit in Engine(EVERY).scan(log, [block]).hits} == expected
