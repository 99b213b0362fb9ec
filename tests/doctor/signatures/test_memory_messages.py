"""Why a GPU ran out of memory, by the numbers in torch's message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.log_texts import findings_of, first_code

TORCH_2 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU {device} has a "
    "total capacity of 79.10 GiB of which {free} is free. {holders}Of the allocated memory "
    "{allocated} is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated."
)
TORCH_1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate {requested} (GPU 0; 23.70 GiB total "
    "capacity; {allocated} already allocated; {free} free; {reserved} reserved in total by PyTorch)"
)
OWN = "Including non-PyTorch memory, this process has {} GiB memory in use. "
OTHER = "Process {} has {} GiB memory in use. "


def message(
    requested: str, allocated: str, unused: str, holders: str, *, device: int = 0, free: str
) -> str:
    return TORCH_2.format(
        requested=requested,
        device=device,
        free=free,
        holders=holders,
        allocated=allocated,
        unused=unused,
    )


@pytest.mark.parametrize(
    ("unused", "code"),
    [
        ("2.00 GiB", "oom-fragmentation"),
        ("1.99 GiB", "oom-device"),
        ("900.00 MiB", "oom-device"),
    ],
)
def test_unused_memory_must_have_been_enough(unused: str, code: str, tmp_path: Path) -> None:
    text = message("2.00 GiB", "74.00 GiB", unused, OWN.format("78.00"), free="1.00 GiB")
    assert first_code(text, tmp_path) == code


@pytest.mark.parametrize(
    ("holders", "device", "code"),
    [
        (OTHER.format(7, "46.30") + OWN.format("31.58"), 0, "oom-foreign-process"),
        (OTHER.format(7, "1.20") + OWN.format("76.60"), 0, "oom-device"),  # too little
        (OTHER.format(7, "20.10") + OTHER.format(8, "20.30"), 1, "oom-foreign-process"),
        (OTHER.format(7, "19.10") + OTHER.format(8, "19.30") + OWN.format("39"), 0, "rank0-pileup"),
        (OTHER.format(7, "19.10") + OTHER.format(8, "19.30") + OWN.format("39"), 1, "foreign"),
        (OTHER.format(7, "9.10") + OTHER.format(8, "29.30") + OWN.format("39"), 0, "foreign"),
        (OTHER.format(1, "78.00"), 0, "oom-device"),  # in a container: it is this process
        (OWN.format("31.58"), 0, "oom-foreign-process"),  # nobody is named for 46 GiB
        (OWN.format("17179869184.00"), 0, "oom-foreign-process"),  # the driver cannot say
    ],
)
def test_who_else_holds_memory(holders: str, device: int, code: str, tmp_path: Path) -> None:
    allocated = "76.00 GiB" if "78.00" in holders or "76.60" in holders else "19.00 GiB"
    text = message("2.00 GiB", allocated, "0.20 GiB", holders, device=device, free="1.21 GiB")
    assert code in (first_code(text, tmp_path) or "")


@pytest.mark.parametrize(
    ("allocated", "reserved", "code"),
    [
        ("22.10 GiB", "22.90 GiB", "oom-device"),
        ("18.10 GiB", "22.90 GiB", "oom-fragmentation"),
        ("3.10 GiB", "3.20 GiB", "oom-foreign-process"),
    ],
)
def test_torch_1_names_nobody(allocated: str, reserved: str, code: str, tmp_path: Path) -> None:
    text = TORCH_1.format(
        requested="192.00 MiB", allocated=allocated, free="59.56 MiB", reserved=reserved
    )
    finding = findings_of(text, tmp_path)[0]
    assert finding.code == code
    assert ("4.80 GiB" in finding.cause) is (code == "oom-fragmentation")
