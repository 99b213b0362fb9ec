"""`train --sweep`: what is planned, what is refused, and what is left at the end. Nothing trains:
each run leaves a made-up recording."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mgpu_doctor.cli import app, sweep
from mgpu_doctor.launch.observe import JobSequence
from tests.support.recordings import HEALTHY, WAITING, recording

Started = list[list[str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The words after `train` of each run."""
    calls: Started = []

    def pretend(_sequence: JobSequence, command: Sequence[str]) -> int:
        words = list(command)[4:]
        calls.append(words)
        ranks = int(words[words.index("--ranks") + 1]) if "--ranks" in words else 1
        recording(Path(words[-1]), [HEALTHY if ranks == 1 else WAITING] * ranks)
        return 0

    monkeypatch.setattr(JobSequence, "run", pretend)
    return calls


def swept(name: str | None, *sweeps: str, **more: object) -> int:
    """Its exit code."""
    chosen: dict[str, object] = {"ranks": None, "options": {}, "directory": None, **more}
    with pytest.raises(click.exceptions.Exit) as left:
        sweep.run_sweep(name, sweeps, **chosen)  # type: ignore[arg-type]
    return left.value.exit_code


def test_each_count_is_run_and_the_table_follows(
    started: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"steps": ["30"], "fault": ["hang:rank=0", "leak:rank=0,mb=1"]}
    assert swept("torch-ddp", "ranks=1,2", directory=tmp_path / "out", options=options) == 0
    assert [words[:3] for words in started] == [["torch-ddp", "--ranks", n] for n in "12"]
    assert all("--fault=leak:rank=0,mb=1" in words for words in started)
    out, err = capsys.readouterr()
    assert "speed-up" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "01-torch-ddp-1-rank",
        "02-torch-ddp-2-ranks",
    ]
    assert "run 1 of 2: torch-ddp, 1 rank\n" in err
    assert "left)" in err.splitlines()[1]
    assert err.splitlines()[-1] == f"mgpu-doctor: recordings: {tmp_path / 'out'}"


def test_the_verb_passes_it_on(started: Started) -> None:
    words = ["torch-ddp", "--sweep", "batch=8,16", "--ranks", "2", "--steps=7", "--lr", "0.1"]
    done = CliRunner().invoke(app, ["train", *words])
    assert done.exit_code == 0, done.output
    assert "speed-up" in done.stdout
    assert [set(words[3:6]) for words in started] == [
        {"--steps=7", "--lr=0.1", f"--batch={size}"} for size in (8, 16)
    ]


def test_a_sweep_over_strategies_needs_no_name_before_its_options(started: Started) -> None:
    words = ["--sweep", "strategy=torch-ddp,torch-fsdp", "--steps", "7", "--lr=0.1"]
    done = CliRunner().invoke(app, ["train", *words])
    assert done.exit_code == 0, done.output
    assert [words[0] for words in started] == ["torch-ddp", "torch-fsdp"]
    assert all({"--steps=7", "--lr=0.1"} <= set(words) for words in started)


def test_all_combinations_are_run_and_one_process_only_once(started: Started) -> None:
    assert swept("torch-single", "strategy=torch-ddp,torch-fsdp", "ranks=1,2") == 0
    assert [words[0] for words in started] == [
        "torch-single",
        *["torch-ddp"] * 2,
        *["torch-fsdp"] * 2,
    ]
    assert "--ranks" not in started[0]


def test_any_option_can_be_swept(started: Started) -> None:
    assert swept("torch-ddp", "batch=8,16", ranks=2) == 0
    assert ["--batch=8" in words for words in started] == [True, False]
    assert all(words[:3] == ["torch-ddp", "--ranks", "2"] for words in started)


@pytest.mark.parametrize(
    ("name", "sweeps", "expected"),
    [
        ("torch-ddp", ("ranks",), "ranks=1,2,4"),
        ("torch-ddp", ("ranks=",), "ranks=1,2,4"),
        ("torch-ddp", ("ranks=1,,2",), "ranks=1,2,4"),
        ("torch-ddp", ("ranks=1,2", "ranks=4"), "given twice"),
        ("torch-ddp", ("ranks=2",), "two different runs"),
        ("torch-ddp", ("ranks=2,2",), "two different runs"),
        ("torch-ddp", ("ranks=1,x",), "whole number"),
        ("torch-ddp", ("ranks=0,1",), "1 or more"),
        ("torch-ddp", ("absent=1,2",), "no option --absent"),
        ("torch-ddp", ("precision=fp32,fp8",), "fp8"),
        ("nobody", ("ranks=1,2",), "no trainer 'nobody'"),
        (None, ("ranks=1,2",), "which trainer"),
        ("torch-ddp", ("ranks=1,2,3,4,5", "batch=1,2,3,4"), "16 at most"),
    ],
)
def test_nonsense_is_refused_before_anything_starts(
    started: Started,
    capsys: pytest.CaptureFixture[str],
    name: str | None,
    sweeps: tuple[str, ...],
    expected: str,
) -> None:
    assert swept(name, *sweeps) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert not started


def test_without_a_folder_they_are_kept_with_the_others(
    started: Started, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept("torch-ddp", "ranks=1,2") == 0
    kept = sorted(path.name for path in (home / "runs").iterdir())
    assert len(kept) == len(started) == 2
    assert set(capsys.readouterr().err.split()) >= {*kept}


def test_an_occupied_folder_is_refused(started: Started, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert swept("torch-ddp", "ranks=1,2", directory=tmp_path) == 2
    assert not started


def failing(monkeypatch: pytest.MonkeyPatch, act: Callable[[JobSequence, int], int]) -> None:
    """Every run leaves a recording; `act` says how the n-th one ends."""
    count = 0

    def pretend(sequence: JobSequence, command: Sequence[str]) -> int:
        nonlocal count
        count += 1
        recording(Path(command[-1]), [HEALTHY])
        return act(sequence, count)

    monkeypatch.setattr(JobSequence, "run", pretend)


def test_a_run_that_fails_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, lambda _, count: 7 if count == 1 else 0)
    assert swept("torch-ddp", "ranks=1,2,3") == 7
    out, err = capsys.readouterr()
    assert "torch-ddp, 1 rank ended with exit code 7: `mgpu-doctor diagnose " in err
    assert "-torch_ddp_3_ranks-" in out


def test_ctrl_c_ends_the_sweep_and_shows_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(sequence: JobSequence, count: int) -> int:
        if count == 2:
            signal.raise_signal(signal.SIGINT)
            assert sequence.asked is signal.SIGINT
            return 1
        return 0

    failing(monkeypatch, interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert swept("torch-ddp", "ranks=1,2,3") == 128 + signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
    out, err = capsys.readouterr()
    assert "-torch_ddp_1_rank-" in out
    assert "-torch_ddp_3_ranks-" not in out
    assert "stopped by SIGINT" in err


def test_the_comparison_is_written_too(started: Started, tmp_path: Path) -> None:
    assert swept("torch-ddp", "ranks=1,2", json_out=tmp_path / "x.json") == 0
    assert json.loads((tmp_path / "x.json").read_text())["schema"] == "mgpu-doctor/compare/1"
    assert len(started) == 2
