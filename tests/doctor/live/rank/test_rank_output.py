"""Which rank printed which lines: of a recording's console, and of files that a rank prints
into."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Case, Subject
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.case.this_machine import this_host
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.live import rank_output
from mgpu_doctor.live.rank_output import Output, output_of
from mgpu_doctor.recording import layout
from tests.support import diagnoses
from tests.support.recordings import HEALTHY, recording

TEXT = """\
torchrun sets OMP_NUM_THREADS to 1
[rank0]: step 7
[default1]:step 8
[rank2]: Traceback (most recent call last):
[rank1]:   File "train.py", line 3
10%|█   \r20%|██
"""


def case_of(folder: Path, printed: str = TEXT, ranks: int = 3, name: str = "console") -> Case:
    recording(folder, [HEALTHY] * ranks, steps=3)
    console = folder / layout.CONSOLE
    console.mkdir()
    (console / f"{name}.log").write_text(printed, encoding="utf-8")
    return load_recording(folder)


def summaries(case: Case) -> tuple[RankSummary, ...]:
    return diagnose(case).ranks


def lines_of(found: Output) -> list[tuple[str, bool]]:
    assert found.reason is None
    return [(line.text, line.own) for stream in found.streams for line in stream.lines]


def test_labels_tell_a_ranks_lines_and_what_nobody_can_be_mentioned_is_kept(tmp_path: Path) -> None:
    case = case_of(tmp_path / "r")
    assert lines_of(output_of(case, summaries(case)[1])) == [
        ("torchrun sets OMP_NUM_THREADS to 1", False),
        ("[default1]:step 8", True),
        ('[rank1]:   File "train.py", line 3', True),
        ("20%|██", False),
    ]


def test_of_a_job_with_one_rank_all_is_its_own(tmp_path: Path) -> None:
    case = case_of(tmp_path / "r", "a\nb\n", ranks=1)
    assert lines_of(output_of(case, summaries(case)[0])) == [("a", True), ("b", True)]


def test_only_the_end_is_kept_and_what_means_harm_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_output, "MOST_LINES", 2)
    case = case_of(tmp_path / "r", "old\n\x1b[2J\x1b]0;owned\x07[rank0]: mean\n\n" + "x" * 5000)
    (first, own), (last, _) = lines_of(output_of(case, summaries(case)[0]))
    assert (first, own) == ("[rank0]: mean", True)
    assert len(last) == rank_output.MOST_WIDTH


def test_before_the_end_of_a_replay_nobody_knows_what_was_printed(tmp_path: Path) -> None:
    case = case_of(tmp_path / "r")
    rank = summaries(case)[0]
    running = replace(case, job=replace(case.job, ended=None))
    assert output_of(running, rank, replayed=True) == Output(reason=rank_output.TIMELESS)
    assert lines_of(output_of(case, rank, replayed=True))


def test_a_recording_without_a_console_says_so(tmp_path: Path) -> None:
    case = load_recording(recording(tmp_path / "r", [HEALTHY], steps=3))
    assert output_of(case, summaries(case)[0]) == Output(reason=rank_output.NOTHING)


@pytest.fixture
def printer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose standard output is a file, and whose standard error a pipe."""
    with open(tmp_path / "own.txt", "wb") as file:
        file.write(b"one\ntwo\n")
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-c", "input()"],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.PIPE,
        )
    with process:
        yield process
        process.kill()


def _from_outside(pids: list[int]) -> tuple[Case, RankSummary]:
    case = diagnoses.straggler(len(pids)).case
    both = zip(case.ranks, pids, strict=True)
    ranks = tuple(replace(one, pid=pid, is_here=True) for one, pid in both)
    summary = replace(diagnoses.rank(0), host=this_host(), pid=pids[0], state="running")
    job = replace(case.job, ended=None)
    subject = Subject("process", str(pids[0]))
    return replace(case, job=job, ranks=ranks, subject=subject), summary


def test_a_ranks_own_file_is_read_though_nobody_recorded_the_job(
    printer: subprocess.Popen[bytes],
) -> None:
    case, rank = _from_outside([printer.pid, os.getpid()])
    assert lines_of(output_of(case, rank)) == [("one", True), ("two", True)]


def test_a_file_that_ranks_share_is_distinguished_by_its_labels(tmp_path: Path) -> None:
    shared = tmp_path / "shared.txt"
    shared.write_text(TEXT)
    with open(shared, "ab") as file:
        both = [
            subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
    case, rank = _from_outside([one.pid for one in both])
    found = lines_of(output_of(case, rank))
    for one in both:
        one.communicate()
    assert ("[rank0]: step 7", True) in found
    assert ("20%|██", False) in found
    assert not any("step 8" in line for line, _ in found)


def test_a_file_for_both_streams_is_shown_once_and_not_again_from_the_recording(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared.txt"
    shared.write_text("[rank0]: step 7\n")
    with open(shared, "ab") as file:
        both = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file, stderr=file)
    case, rank = _from_outside([both.pid, os.getpid()])
    recorded = case_of(tmp_path / "r").subject
    found = output_of(replace(case, subject=recorded), rank)
    both.communicate()
    assert [stream.name for stream in found.streams] == ["stdout and stderr"]
    assert lines_of(found) == [("[rank0]: step 7", True)]


def test_the_files_of_a_process_that_a_recording_merely_names_stay_closed(
    printer: subprocess.Popen[bytes],
) -> None:
    """It may come from a stranger, and name any process of the reader's."""
    case, rank = _from_outside([printer.pid])
    strangers = replace(case, ranks=tuple(replace(rank, is_here=False) for rank in case.ranks))
    assert output_of(strangers, rank).streams == ()


def test_of_a_job_that_is_over_no_process_is_asked(printer: subprocess.Popen[bytes]) -> None:
    case, rank = _from_outside([printer.pid])
    over = replace(case, job=replace(case.job, ended=diagnoses.STARTED))
    assert output_of(over, rank).reason == f"Its output was not recorded; {rank_output.BY_RUN}."


def test_of_a_pipe_it_is_reported_that_nobody_can_read_it_again() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        case, rank = _from_outside([process.pid])
        reason = output_of(case, rank).reason
        ended = output_of(case, replace(rank, state="dead")).reason
        process.kill()
    assert reason is not None
    assert "What rank 0 prints goes into a pipe (pipe:[" in reason
    assert ended == f"Its output was not recorded; {rank_output.BY_RUN}."
