"""Excerpts of logs around a failure, and waits that ended well."""

from __future__ import annotations

from pathlib import Path

import pytest

from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.diagnosis import diagnose
from tests.support.log_texts import alarms, first_code

FRAME = '  File "/home/user/train.py", line 41, in step'
CODE = "    return batch['labels']"
RAISED = "KeyError: 'labels'"
HEADER = "Traceback (most recent call last):"


def progress(count: int) -> list[str]:
    return [f"step {number} loss 0.5" for number in range(count)]


def test_a_text_may_begin_inside_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"[rank3]: {line}" for line in (CODE, FRAME, CODE, RAISED)) + "\n")
    finding, *_ = diagnose(load_logs([str(log)])).findings
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [3]


def test_frames_in_the_middle_of_a_log_are_no_traceback(tmp_path: Path) -> None:
    assert alarms("\n".join([*progress(9), FRAME, CODE, RAISED, *progress(9)]), tmp_path) == []


FILES = "RuntimeError: received 0 items of ancdata"


def test_an_exception_counts_if_the_text_ends_inside_the_one_that_it_led_to(tmp_path: Path) -> None:
    chained = "During handling of the above exception, another exception occurred:"
    lines = [*progress(9), HEADER, FRAME, CODE, FILES, "", chained, "", HEADER, FRAME]
    assert first_code("\n".join(lines), tmp_path) == "failed-open-files"


def test_a_lone_traceback_without_its_outer_calls_counts(tmp_path: Path) -> None:
    lone = [HEADER, FRAME, CODE, FILES]
    assert first_code("\n".join(lone), tmp_path) == "failed-open-files"
    assert alarms("\n".join([*progress(9), *lone, *progress(9)]), tmp_path) == []


WAITS = "CreateSession still waiting for response from worker: /job:ps/replica:0/task:1"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([WAITS, WAITS], "failed-tf-worker-missing"),
        ([WAITS], None),
        ([WAITS, WAITS, "I master_session.cc:1192] Start master session 1f2e with config:"], None),
        (["Start master session 1f2e with config:", WAITS, WAITS], "failed-tf-worker-missing"),
    ],
    ids=["waits", "waited once", "began", "waits again"],
)
def test_a_wait_that_came_to_an_end_is_no_failure(
    lines: list[str], code: str | None, tmp_path: Path
) -> None:
    assert first_code("\n".join(lines), tmp_path) == code


TIMED_OUT = (
    "[E ProcessGroupNCCL.cpp:737] Watchdog caught collective operation timeout: WorkNCCL(OpType="
    "ALLREDUCE, Timeout(ms)=90000) ran for 90021 milliseconds before timing out."
)
ABORTED = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 "


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([TIMED_OUT], "failed-nccl-timeout"),
        (["terminate called after throwing an instance of 'std::bad_alloc'"], "oom-host"),
        ([], "failed-signal"),
    ],
    ids=["timed out", "own cause", "nothing"],
)
def test_an_abort_is_explained_by_lines_without_a_rank(
    lines: list[str], code: str, tmp_path: Path
) -> None:
    text = [*lines, f"{ABORTED}(pid: 5431) of binary: /usr/bin/python3"]
    assert first_code("\n".join(text), tmp_path) == code
