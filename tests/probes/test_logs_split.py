"""A line's rank, time and text, behind the prefixes of launchers, containers and loggers."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.logs import log_files, log_lines
from mgpu_probes.outside.logs.log_lines import numbered_style, split_line

TEXT = "RuntimeError: CUDA error: device-side assert triggered"


@pytest.mark.parametrize(
    ("prefix", "rank", "local_rank"),
    [
        ("", None, None),
        ("[rank2]: ", 2, None),
        ("[rank2]:", 2, None),
        ("rank2: ", 2, None),
        ("Rank 2: ", 2, None),
        ("[rank: 2] ", 2, None),
        ("[default2]:", None, 2),
        ("[trainer12]:", None, 12),
        ("[default2]:[rank10]: ", 10, 2),
        ("[1,2]<stderr>:", 2, None),
        ("[1,2]<stdout>: ", 2, None),
        ("[prterun-node7-1234@1,5]<stderr>: ", 5, None),
        ("[2]<stdout>:", 2, None),
        ("Fri Nov 21 10:00:00 2025[1,3]<stderr>:", 3, None),
        ("[pod/llm-worker-1/pytorch] ", None, None),
        ("[pod/llm-worker-1/pytorch] [rank9]: ", 9, None),
        ("trainer-1  | [rank1]: ", 1, None),
        ("2026-01-02T03:04:05.678901234Z stderr F [rank1]: ", 1, None),
        ("(RayTrainWorker pid=711, ip=10.0.0.2) [rank3]: ", 3, None),
        ("Jan  2 03:04:05 node7 train.sh[4711]: [rank3]: ", 3, None),
        ("2026-01-02T03:04:05+0100 node7 kernel: ", None, None),
        ("[2026-01-02 03:04:05,678] ", None, None),
    ],
)
def test_prefixes(prefix: str, rank: int | None, local_rank: int | None) -> None:
    line = split_line(prefix + TEXT)
    assert (line.rank, line.local_rank, line.text) == (rank, local_rank, TEXT)


@pytest.mark.parametrize(
    "line",
    [
        "[2025-11-21 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 3] step=10",
        "[E1120 10:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught",
        "[E ProcessGroupNCCL.cpp:475] [PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog caught",
    ],
)
def test_ranks_inside_the_text_of_loggers(line: str) -> None:
    assert split_line(line).rank == 3


@pytest.mark.parametrize(
    "line", ["[1] done", "2: two", "[1, 2, 3]", "[0,1]", "[x]: y", "a[2]: b", "[GPU0] idle"]
)
def test_other_brackets_are_no_ranks(line: str) -> None:
    found = split_line(line)
    assert (found.rank, found.local_rank, found.text) == (None, None, line)


def test_numbers_before_lines_count_if_nearly_all_lines_have_them() -> None:
    srun = [f"{n % 4}: step {n}" for n in range(20)]
    hydra = [f"[{n % 4}] step {n}" for n in range(20)]
    assert numbered_style(srun) == "srun"
    assert numbered_style(hydra) == "hydra"
    assert split_line(" 3: text", "srun").rank == 3
    assert split_line("[3] text", "hydra").rank == 3
    assert numbered_style([*srun, *["no number"] * 8]) is None
    assert numbered_style([f"{n}: a list" for n in range(20)]) is None
    assert numbered_style(["1: x", "1: y"]) is None


UTC = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc).timestamp()
LOCAL = datetime(2026, 1, 2, 3, 4, 5).timestamp()


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("2026-01-02T03:04:05Z text", UTC),
        ("2026-01-02T03:04:05.500000000Z stdout F text", UTC + 0.5),
        ("2026-01-02T04:04:05+01:00 text", UTC),
        ("2026-01-01T22:04:05-0500 text", UTC),
        ("2026-01-02 03:04:05,678 text", LOCAL + 0.678),
        ("[2026-01-02 03:04:05,678] text", LOCAL + 0.678),
        ("[2026-01-02T03:04:05.678] text", LOCAL + 0.678),
        ("2026/01/02 03:04:05 text", LOCAL),
        ("2026-01-02 03:04:05.678901: text", LOCAL + 0.678901),
        ("[Fri Jan  2 03:04:05 2026] text", LOCAL),
        ("I0102 03:04:05.678901 text", None),
        ("Jan  2 03:04:05 text", None),
    ],
)
def test_stamps(line: str, at: float | None) -> None:
    found = split_line(line)
    assert found.text == "text"
    assert found.at == pytest.approx(at, abs=1e-4) if at else found.at is None


def test_a_stamp_without_a_year_needs_one() -> None:
    assert split_line("I0102 03:04:05.5 text", year=2026).at == pytest.approx(LOCAL + 0.5)
    assert split_line("[rank1]:[E0102 03:04:05.5 x.cpp:1] text", year=2026).at == pytest.approx(
        LOCAL + 0.5
    )
    assert split_line("Jan  2 03:04:05 text", year=2026).at == pytest.approx(LOCAL)


@pytest.mark.parametrize(
    "line", ["2026-13-45 99:99:99 text", "2026-02-31 10:00:00 text", "0001-01-01 00:00:00 text"]
)
def test_impossible_dates_are_no_time(line: str) -> None:
    assert split_line(line).at is None


@given(st.text(max_size=300))
def test_no_text_breaks_it(text: str) -> None:
    line = split_line(text, "srun", 2026)
    assert line.text in text
    log_lines.take_stamp(text, 2026)


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        (["logs/rank_2.log"], [2]),
        (["a/rank-0.out", "a/rank-1.out", "a/launcher.log"], [0, 1, None]),
        (["run/attempt_0/0/stderr.log", "run/attempt_0/10/stderr.log"], [0, 10]),
        (["out/rank.0/stderr", "out/rank.1/stderr"], [0, 1]),
        (["slurm-123_0.out", "slurm-123_1.out"], [0, 1]),
        (["slurm-123_2.out"], [None]),
        (["run/attempt_0/2/stderr.log"], [None]),
        (["train.log", "train2.log"], [None, None]),
        (["frank2.log"], [None]),
    ],
)
def test_file_names(files: list[str], ranks: list[int | None]) -> None:
    assert log_files.ranks_from_names(files) == ranks
