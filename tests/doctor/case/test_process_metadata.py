"""Hostile process metadata: whatever it holds, readers get typed facts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mgpu_doctor.case.process_metadata import (
    UNKNOWN,
    Batch,
    Ddp,
    Loader,
    ProcessMetadata,
    process_metadata,
)
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.report import markdown
from tests.support.recordings import HEALTHY, SLOW_INPUT, recording

TABLE = Path(__file__).parents[3] / "docs" / "black-box.md"
WILD = [[], {}, [["x"]], [{}], {"a": [1]}, True, -1, 1e308, float("nan"), "\x1b[2J", "y" * 5000]


def documented() -> list[str]:
    """The keys of the table of process metadata."""
    table = TABLE.read_text().partition("| `framework`")
    rows = (table[1] + table[2]).split("\n\n")[0].splitlines()
    return [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize("value", WILD, ids=lambda value: repr(value)[:20])
def test_no_value_of_the_metadata_breaks_a_diagnosis(value: Any, tmp_path: Path) -> None:
    keys = documented()
    assert {"framework", "strategy", "argv", "worker_socket", "groups", "probe"} <= set(keys)
    told = dict.fromkeys(keys, value)
    job = recording(tmp_path / "job", [SLOW_INPUT, HEALTHY], birth=told)
    diagnosis = diagnose(load_recording(job))
    assert len(diagnosis.case.ranks) == 2
    assert all(line.isprintable() for line in markdown.render(diagnosis).split("\n"))


def test_a_wrong_value_makes_its_own_field_unknown() -> None:
    for field in msgspec.structs.fields(ProcessMetadata):
        for value in WILD:
            known = process_metadata({"framework": "torch", "threads": 3, field.name: value})
            assert known.framework == "torch" or field.name == "framework"
            assert known.threads == 3 or field.name == "threads"
    wrong = {"tf32": 1, "threads": -3, "clock": "sundial", "strategy": "", "argv": "train.py"}
    assert process_metadata(wrong) == UNKNOWN


def test_nested_facts_keep_what_is_right() -> None:
    known = process_metadata(
        {
            "ddp": {"buckets": [1, -2, "x", 4], "static_graph": "yes", "forwards": 7},
            "loaders": [{"workers": 2, "pin_memory": 1}, "no loader"],
            "batches": [[0, 0, 1, "digest"], [0, 0, 1], [0, 0, 1, ""]],
            "calls": [{"name": "barrier", "count": 1, "seconds": 0.5}],
            "closures": [
                {"worker": 1, "count": 3, "newest": 2, "quartiles": [1, 2, 3.0]},
                {"worker": 0, "count": 3, "newest": 2, "quartiles": [3, 2, 1]},
            ],
            "memory_peaks": {"host": [[2, 1, 1, 8], [1, 1, 1, 9]], "device": [[1, 1, 1, 8]]},
        }
    )
    assert known.ddp == Ddp(buckets=(1, 4), forwards=7)
    assert known.loaders == (Loader(workers=2),)
    assert known.batches == (Batch(0, 0, 1, "digest"),)
    assert known.calls == (), "without its site"
    assert [(pace.index, pace.middle) for pace in known.worker_paces] == [(1, 2.0)]
    assert known.memory_peaks.history("host") == (), "peaks that fall"
    assert [peak.peak for peak in known.memory_peaks.history("device")] == [8]


def test_long_lists_and_texts_are_cut() -> None:
    known = process_metadata({"optimizers": [{"class": "x" * 999}] * 999, "sends_to": [1] * 70_000})
    assert len(known.optimizers) == 64
    assert known.optimizers[0].kind == "x" * 200
    assert len(known.sends_to) == 65_536
