"""Messages whose end is cut off or worded differently still match by their head."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from mgpu_doctor.signatures.signature import LEAST_WORDS, Signature
from tests.support.all_signatures import ALL_SIGNATURES, codes_of
from tests.support.log_texts import healthy_texts
from tests.support.loops import over

WITH_HEADS = [signature for signature in ALL_SIGNATURES if signature.heads]
CAUGHT = {"cuda-oom"}
"""Its head is in a healthy line, which says itself that it was caught."""
every_head = over("signature", WITH_HEADS, lambda signature: signature.id)


@every_head
def test_heads_are_as_telling_as_the_whole(signature: Signature) -> None:
    lines = [line for text in healthy_texts() for line in text.text.splitlines()]
    for head in signature.heads:
        assert len(re.findall(r"[A-Za-z]{2,}", head)) >= LEAST_WORDS
        held = [one for one in ALL_SIGNATURES if head in one.example and one.code != signature.code]
        assert all(codes_of(one.example) for one in held)  # their patterns come first
        assert signature.id in CAUGHT or not [line for line in lines if head in line]


def test_most_signatures_have_heads() -> None:
    grave = [
        signature
        for signature in ALL_SIGNATURES
        if signature.severity == "critical" and signature.least == 1
    ]
    assert len(WITH_HEADS) > len(grave) / 2


INNER = "The size of tensor a (3) must match the size of tensor b (5) at non-singleton dimension 1"


def diagnosed(folder: Path, *lines: str) -> list[Finding]:
    log = folder / "train.log"
    log.write_text("\n".join([*(f"step {n} of the run" for n in range(5)), *lines]) + "\n")
    return list(diagnose(load_logs([str(log)])).findings)


CUT = [
    ("[rank5]:[E] Watchdog caught collective operation timeout: WorkNCCL(Seq", "nccl-timeout"),
    ("[E] Exception (either an error or timeout) detected by watchdog at wo", "nccl-timeout"),
    ("[E] To avoid data inconsistency, we are taking the entire process down. T", "nccl-timeout"),
    ("RuntimeError: Detected mismatch between collectives. Rank 2 is runn", "hang-coll"),
    ("Timed out waiting 45000ms for recv operation to complete", "failed-gloo"),
    ("RuntimeError: Connection closed by peer [host-is-redacted", "failed-gloo"),
    ("[/gloo/gloo/transport/tcp/unbound_buffer.cc:79] Timed out w", "failed-gloo"),
    ("RuntimeError: DataLoader worker (pid 611) is ki", "failed-dataloader-worker"),
    ("RuntimeError: Error(s) in loading sta", "failed-checkpoint"),
    ("ValueError: Error initializing torch.distributed using env:// ren", "failed-rendezvous"),
    ("what(): … Received data size doesn't match expected size.", "hang-collective-mismatch"),
    ("RuntimeError: PytorchStreamWriter failed writing file data/4: f", "failed-disk-full"),
    ("DistStoreError: Timed out after 121 seconds waiting for cl", "failed-rendezvous"),
    ("Timed out initializing process group in store ba", "failed-rendezvous"),
    ("One or more tensors were submitted to be reduced, gath", "failed-horovod-stall"),
    ("RuntimeError: Expected to have finished reduction in the prior iter", "failed-unused"),
    ("CUDA error 217 at x.cu:9: peer access is not supported between these two devices", "peer"),
    ("[TRT] CUDA runtime error in sync(): an illegal memory access was encountered", "illegal"),
    ("Check failed: error == cudaSuccess (4 vs. 0) unspecified launch failure", "illegal"),
    ("error in im2col: device-side assert triggered", "device-assert"),
    ("Check failed: e == cudaSuccess CUDA: invalid device ordinal", "visible-devices"),
    ("im2col.cu:61] Check failed: error == cudaSuccess (8 vs. 0)  invalid device function", "no-k"),
    ("failed call to cuCtx: CUDA_ERROR_ECC_UNCORRECTABLE", "gpu-ecc"),
    ("listen failed: bind: Address already in use", "failed-port-in-use"),
    ("DUE TO TIME LIM", "failed-time-limit"),
]


@pytest.mark.parametrize(("line", "code"), CUT, ids=[line[-20:] for line, _ in CUT])
def test_a_message_without_its_tail_has_the_same_code(line: str, code: str, tmp_path: Path) -> None:
    (finding, *_) = diagnosed(tmp_path, line)
    assert code in finding.code
    assert 0 < finding.confidence < 0.7
    assert not any("(not told)" in text for text in (finding.title, finding.cause))
    assert finding.culprits == () or finding.culprits[0].rank is None


@pytest.mark.parametrize("inner", ["stack expects each tensor to be equal size, but got [3", INNER])
def test_what_a_worker_raised_outranks_that_it_raised(inner: str, tmp_path: Path) -> None:
    wrapper = "RuntimeError: Caught RuntimeError in DataLoader worker process 2."
    finding, *_ = diagnosed(tmp_path, wrapper, "Original Traceback:", f"RuntimeError: {inner}")
    assert finding.code == "failed-shape-mismatch"


def test_the_whole_message_outranks_its_head(tmp_path: Path) -> None:
    head = "RuntimeError: PytorchStreamWriter failed writing file data/4: f"
    whole = "RuntimeError: The size of tensor a (3) must match the size of tensor b (5) at "
    finding, *_ = diagnosed(tmp_path, head, f"{whole}non-singleton dimension 1")
    assert finding.code == "failed-shape-mismatch"


@pytest.mark.parametrize(
    "level", ["[W socket.cpp:5] ", "W0102 03:04:05.000000 7 x.py:1] ", "x.py:9: UserWarning: "]
)
def test_a_warning_is_no_head(level: str, tmp_path: Path) -> None:
    line = f"{level}Expected to have finished reduction in the prior iteration soon"
    assert diagnosed(tmp_path, line) == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encou", "gpu-ecc"),
        ("IndexError: Dimension out of range (expected to be in ra", "failed-shape"),
        ("InvalidArgumentError: Task 2 was not defined in jo", "failed-tf-config"),
        ("MOAB_INFO:  job exceeded wallclock li", "failed-time-limit"),
    ],
)
def test_a_text_may_end_in_the_middle_of_a_message(line: str, code: str, tmp_path: Path) -> None:
    (finding, *_) = diagnosed(tmp_path, line)
    assert code in finding.code
    assert 0 < finding.confidence < 0.7
    with_more = diagnosed(tmp_path, line, "step 9 of the run")
    assert [more.code for more in with_more if code in more.code] == []
    assert [cut.code for cut in diagnosed(tmp_path, line[:-25]) if code in cut.code] == []


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"


@pytest.mark.parametrize("length", [13, 15, 18, 19, 30, 46, len(OUT_OF_MEMORY)])
@pytest.mark.parametrize("head", ["torch.OutOfMemoryError: ", "RuntimeError: "])
def test_a_log_may_end_anywhere_in_out_of_memory(head: str, length: int, tmp_path: Path) -> None:
    traceback = ("Traceback (most recent call last):", '  File "t.py", line 3, in <module>')
    (finding, *_) = diagnosed(tmp_path, *traceback, "    y = x @ x", head + OUT_OF_MEMORY[:length])
    assert finding.code == "oom-device"


def test_a_log_may_end_in_the_type_out_of_memory(tmp_path: Path) -> None:
    (finding, *_) = diagnosed(tmp_path, "step 1", "[rank1]: torch.OutOfMemoryErr")
    assert finding.code == "oom-device"
