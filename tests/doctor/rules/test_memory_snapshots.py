"""A memory snapshot alone: what ran out, and which code holds the memory."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.case.profiler_case import case_of_snapshots
from mgpu_doctor.cli import app
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine.subjects import MemorySnapshot, recognize
from mgpu_doctor.findings import Finding, Severity
from tests.support.memory_snapshots import APART, FULL, MIB, block, frames, oom, segment, written


def only(path: Path) -> Finding:
    (finding,) = diagnose(case_of_snapshots([path])).findings
    return finding


def ran(*words: str) -> Result:
    return CliRunner().invoke(app, ["diagnose", *words])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_want_of_memory_and_who_holds_it(tmp_path: Path, protocol: int) -> None:
    path = written(
        tmp_path / "s.pickle", *FULL, events=[oom(512 * MIB, 8 * MIB)], protocol=protocol
    )
    assert recognize(str(path)) == MemorySnapshot(path)
    finding = only(path)
    assert (finding.code, finding.severity) == ("oom-device", Severity.CRITICAL)
    assert "512 MiB failed at forward model.py:41" in finding.title
    assert "forward model.py:41 holds 900 MiB" in finding.title
    assert [item.where for item in finding.evidence if item.measure.startswith("held")] == [
        "forward model.py:41",
        "main train.py:90",
    ]


def test_want_of_one_piece(tmp_path: Path) -> None:
    finding = only(written(tmp_path / "s.pickle", *APART, events=[oom(200 * MIB, MIB)]))
    assert finding.code == "oom-fragmentation"
    assert all(text in finding.title for text in ("700 MiB", "10 pieces"))


def test_the_last_request_that_failed_decides(tmp_path: Path) -> None:
    events = [oom(200 * MIB, MIB), oom(800 * MIB, MIB)]
    assert only(written(tmp_path / "s.pickle", *APART, events=events)).code == "oom-device"


def test_without_a_failed_request_it_says_who_holds_what(tmp_path: Path) -> None:
    path = written(tmp_path / "s.pickle", *FULL)
    finding = only(path)
    assert (finding.code, finding.severity) == ("memory-held", Severity.INFO)
    done = ran(str(path))
    assert done.exit_code == 0
    assert "1,000 MiB" in done.stdout or "1000 MiB" in done.stdout
    assert ran(str(written(tmp_path / "o.pickle", *FULL, events=[oom(MIB, 0)]))).exit_code == 1


def test_a_snapshot_of_nothing_is_reported(tmp_path: Path) -> None:
    finding = only(written(tmp_path / "s.pickle"))
    assert (finding.code, finding.evidence[1].value) == ("memory-held", 0)


def test_no_stacks_are_no_place(tmp_path: Path) -> None:
    finding = only(
        written(tmp_path / "s.pickle", segment(block(MIB, asked=[])), events=[oom(9, 0)])
    )
    assert "not recorded" not in finding.title


def test_hostile_snapshots_are_one_sentence_or_numbers(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/owned",)

    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": [Evil()], "device_traces": []}))
    done = ran(str(path))
    assert done.exit_code == 3
    assert "wants to load or call code" in done.stderr
    assert not (tmp_path / "owned").exists()
    whole = written(tmp_path / "cut.pickle", *FULL).read_bytes()
    (tmp_path / "cut.pickle").write_bytes(whole[:-9])
    assert ran(str(tmp_path / "cut.pickle")).exit_code == 3
    odd = segment(block(MIB, asked=frames(("\x1b[31m<b>", "/a/\u202e[red].py", 1))))
    odd["blocks"] += [7, {"size": -5}, {"size": "x", "frames": "y"}, {"size": 1 << 80}]
    text = ran(str(written(tmp_path / "odd.pickle", odd))).stdout
    assert "1 MiB" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_a_snapshot_beside_a_log_is_one_case(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\nTraceback (most recent call last):\nValueError: no\n")
    path = written(tmp_path / "s.pickle", *FULL, events=[oom(512 * MIB, 8 * MIB)])
    assert "oom-device" in ran(str(log), str(path)).stdout


def test_what_was_given_back_since_leaves_pieces_unjudged(tmp_path: Path) -> None:
    freed = {"action": "free_completed", "size": MIB, "addr": 3, "frames": []}
    events = [oom(200 * MIB, MIB), freed]
    finding = only(written(tmp_path / "s.pickle", *APART, events=events))
    assert finding.code == "oom-device"
    assert finding.confidence == 0.8


def test_pieces_of_other_pools_and_devices_do_not_count(tmp_path: Path) -> None:
    for change in ({"segment_type": "small"}, {"segment_pool_id": (0, 3)}, {"device": 1}):
        other = [{**one, **change} for one in APART]
        path = written(tmp_path / "s.pickle", *FULL, *other, events=[oom(200 * MIB, MIB)])
        assert diagnose(case_of_snapshots([path])).findings[0].code == "oom-device"
    found = case_of_snapshots([path]).snapshots
    assert [one.source for one in found] == ["s.pickle, device 0", "s.pickle, device 1"]
    assert [one.taken // MIB for one in found] == [1000, 300]
