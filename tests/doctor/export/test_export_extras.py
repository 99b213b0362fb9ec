"""Steps as Parquet and as TensorBoard's scalars, read back by other libraries."""

from __future__ import annotations

import csv
import io
import os
import resource
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mgpu_doctor.case.model import State
from mgpu_doctor.case.placeholders import blank_rank
from mgpu_doctor.cli import app
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.export import step_table
from mgpu_doctor.export.step_table import columns
from tests.support import diagnoses
from tests.support.recordings import SLOW_INPUT, WAITING, recording
from tests.support.synthetic import Fault, Synthetic, make_case, synthetic_case

JOB = Synthetic(ranks=3, steps=40)


def read_table(file: Path) -> Any:
    import pyarrow.parquet as pq  # slow to load, so only where it is used

    return pq.read_table(file)


def test_parquet_holds_what_the_csv_file_holds(
    tmp_path: Path, optional_formats: ModuleType
) -> None:
    case = synthetic_case(JOB)
    file = tmp_path / "steps.parquet"
    size = optional_formats.write_parquet(file, case)
    assert size == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["steps.parquet"]
    found = read_table(file).to_pylist()
    lines = list(csv.DictReader(io.StringIO("".join(step_table.lines(case)))))
    assert len(found) == len(lines) == 3 * 40
    for row, line in zip(found, lines, strict=True):
        assert set(row) == set(line)
        for name, cell in line.items():
            if name in ("host", "clock"):
                assert row[name] == cell
            elif cell == "":
                assert row[name] is None, name
            else:
                assert float(row[name]) == pytest.approx(float(cell), rel=1e-6), name


def test_foreign_names_are_harmless_in_parquet(
    tmp_path: Path, optional_formats: ModuleType
) -> None:
    case = synthetic_case(JOB)
    first = replace(case.ranks[0], host=f"node {diagnoses.HOSTILE}\x00\n\x9b2J")
    file = tmp_path / "steps.parquet"
    optional_formats.write_parquet(file, replace(case, ranks=(first,)))
    (host,) = set(read_table(file)["host"].to_pylist())
    assert host.startswith("node [bold red]x")
    assert host.isprintable()


def test_a_job_without_a_step_is_a_table_without_rows(
    tmp_path: Path, optional_formats: ModuleType
) -> None:
    nobody = blank_rank(rank=0, world_size=1, host="node", attempt=0, state=State.MISSING)
    file = tmp_path / "steps.parquet"
    optional_formats.write_parquet(file, make_case([nobody]))
    empty = read_table(file)
    assert empty.num_rows == 0
    assert {*step_table.COLUMNS} == {*empty.column_names}


def events(folder: Path) -> list[Any]:
    """Of the one file there: u64 length, its CRC, the event, its CRC (TFRecord)."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.iterdir()
    raw, found, at = file.read_bytes(), [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 8], "little")
        found.append(Event.FromString(raw[at + 12 : at + 12 + length]))
        at += 16 + length
    return found


@pytest.mark.slow
def test_scalars_have_the_steps_times_and_nothing_unknown(
    tmp_path: Path, optional_formats: ModuleType
) -> None:
    case = synthetic_case(JOB)
    assert optional_formats.write_scalars(tmp_path / "runs", diagnose(case)) == (3, 3)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "rank-0",
        "rank-1",
        "rank-2",
    ]
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o700
    told = [
        (value.tag, event.step, value.simple_value, event.wall_time)
        for event in events(tmp_path / "runs/rank-1")
        for value in event.summary.value
    ]
    steps = case.ranks[1].steps
    walls = [(step, value, at) for tag, step, value, at in told if tag == "step_seconds"]
    assert [step for step, _, _ in walls] == steps["step"].tolist()
    assert [value for _, value, _ in walls] == pytest.approx((steps["wall_ns"] * 1e-9).tolist())
    assert [at for _, _, at in walls] == pytest.approx((steps["end_ns"] * 1e-9).tolist())
    tags = {tag for tag, *_ in told}
    assert "phases/backward_seconds" in tags
    assert not tags & {"loss", "tokens", "phases/communication_seconds"}, "they were not measured"


@pytest.mark.slow
def test_of_many_ranks_whom_findings_blame_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optional_formats: ModuleType
) -> None:
    monkeypatch.setattr(optional_formats, "MOST_RANKS", 1)
    slow = Synthetic(ranks=3, steps=60, faults=(Fault(2, "input", milliseconds=30),))
    assert optional_formats.write_scalars(tmp_path / "runs", diagnose(synthetic_case(slow))) == (
        1,
        3,
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["rank-2"]


@pytest.mark.slow
def test_scalars_join_no_other_run(tmp_path: Path, optional_formats: ModuleType) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(FileExistsError):
        optional_formats.write_scalars(tmp_path, diagnose(synthetic_case(JOB)))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_the_verb_writes_both(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    job = recording(tmp_path / "job", (WAITING, SLOW_INPUT), steps=40)
    to = ["--parquet", str(tmp_path / "a.parquet"), "--tensorboard", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["export", str(job), *to])
    assert done.exit_code == 0, done.output
    assert "2 of 2 ranks" in done.output
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 2


WRITTEN = ["timeline a.json", "csv a.csv"]
DEAR = ["timeline a.json.gz", "parquet a.parquet", "tensorboard runs"]
"""Some of these load a large package, in a process of its own."""


@pytest.mark.parametrize(
    "written", [*WRITTEN, *(pytest.param(each, marks=pytest.mark.slow) for each in DEAR)]
)
def test_a_disk_that_is_full_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, written: str
) -> None:
    """A limit on the size of files fails as a full disk does."""
    job = recording(tmp_path / "job", (WAITING, SLOW_INPUT), steps=300)
    option, name = written.split()
    (tmp_path / "out").mkdir()
    verb = [sys.executable, "-m", "mgpu_doctor", "export", str(job)]
    done = subprocess.run(
        [*verb, f"--{option}", str(tmp_path / "out" / name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # else Python keeps a cut file
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)),
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "cannot be written (File too large)" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("option", ["csv a.csv", "parquet a.parquet", "tensorboard runs"])
def test_a_recording_without_steps_gives_no_file(tmp_path: Path, option: str) -> None:
    job = recording(tmp_path / "job", (WAITING,), steps=0)
    kind, name = option.split()
    done = CliRunner().invoke(app, ["export", str(job), f"--{kind}", str(tmp_path / name)])
    assert done.exit_code == 3
    assert "contains no steps" in done.stderr
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("option", "package", "name"),
    [("parquet", "pyarrow", "a.parquet"), ("tensorboard", "tensorboardX", "runs")],
)
def test_a_missing_package_is_one_sentence(
    option: str, package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = recording(tmp_path / "job", (WAITING,), steps=5)
    monkeypatch.setattr("mgpu_doctor.cli.export.find_spec", lambda one: one != package or None)
    done = CliRunner().invoke(app, ["export", str(job), f"--{option}", str(tmp_path / name)])
    assert done.exit_code == 3
    assert f"mgpu-doctor[{option}]" in done.output
    assert not (tmp_path / name).exists()


def test_parquet_is_not_packed_again(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["export", "latest", "--parquet", str(tmp_path / "a.parquet.gz")]
    )
    assert done.exit_code == 2
    assert "must end in .parquet." in done.output


def test_nothing_is_left_where_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optional_formats: ModuleType
) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(optional_formats, "columns", broken)
    with pytest.raises(OSError, match="no space"):
        optional_formats.write_parquet(tmp_path / "a.parquet", synthetic_case(JOB))
    assert not list(tmp_path.iterdir())


def test_masks_are_what_was_not_measured() -> None:
    case = synthetic_case(JOB)
    found = columns(case.ranks[0])
    assert np.ma.getmaskarray(found["loss"]).all()
    assert not np.ma.getmaskarray(found["backward_seconds"]).any()
