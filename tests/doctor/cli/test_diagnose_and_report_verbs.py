"""The verbs `diagnose` and `report`: exit codes, streams, files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from mgpu_probes.outside import jobs

from mgpu_doctor.cli import app
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from tests.support.boxes import finished
from tests.support.recordings import HEALTHY, SLOW_INPUT, WAITING, recording

run = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow") / "recording"
    return recording(folder, [WAITING, WAITING, SLOW_INPUT, WAITING])


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("healthy") / "recording", [HEALTHY] * 4)


def test_a_fault_exits_1_and_names_the_rank(slow: Path) -> None:
    done = run.invoke(app, ["diagnose", str(slow)])
    assert done.exit_code == 1
    assert "straggler-input" in done.stdout
    assert "rank 2" in done.stdout.splitlines()[0].lower()
    assert "\x1b" not in done.stdout, "no colour into a pipe"


def test_a_healthy_job_exits_0(healthy: Path) -> None:
    done = run.invoke(app, ["diagnose", str(healthy)])
    assert done.exit_code == 0
    assert "nothing wrong found" in done.stdout


def test_json_stands_alone_on_stdout(slow: Path) -> None:
    done = run.invoke(app, ["diagnose", "--json", str(slow)])
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["findings"][0]["culprits"][0]["rank"] == 2
    assert len(document["ranks"]) == 4


def test_an_id_and_latest_name_a_recording(home: Path) -> None:
    recording(home / "runs" / "some-id", [HEALTHY] * 2)
    for reference in ("some-id", "latest"):
        done = run.invoke(app, ["diagnose", "--json", reference])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["job"]["id"] == "some-id"


@pytest.fixture
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other jobs of the machine that the tests run on are none of theirs."""
    monkeypatch.setattr(jobs, "find_all", tuple)


@pytest.mark.usefixtures("nobody_else")
def test_without_a_subject_the_jobs_that_run_here(home: Path) -> None:
    recording(home / "runs" / "alive", [WAITING, SLOW_INPUT, WAITING], live=True)
    recording(home / "runs" / "over", [HEALTHY] * 2)
    done = run.invoke(app, ["diagnose", "--json"])
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["job"]["id"] == "alive"


NOTHING = [
    *(("diagnose", subject) for subject in ("absent", "latest", "empty", "999999999", "box")),
    *(("report", subject) for subject in ("absent", "latest", "empty", "999999999", "box", "-")),
]


@pytest.mark.parametrize(("verb", "subject"), NOTHING)
def test_nothing_to_examine_exits_3_and_says_why(tmp_path: Path, verb: str, subject: str) -> None:
    os.rename(finished(tmp_path), tmp_path / "box")
    (tmp_path / "empty").mkdir()
    reference = str(tmp_path / subject) if subject in {"absent", "box", "empty"} else subject
    done = run.invoke(app, [verb, reference])
    assert done.exit_code == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("mgpu-doctor: ")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_log_examines_nothing_unless_it_lies_beside_other_facts(
    tmp_path: Path, text: str
) -> None:
    log = tmp_path / "train.log"
    log.write_text(text)
    done = run.invoke(app, ["diagnose", str(log)])
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "train.log is empty" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    box = recording(tmp_path / "run", [WAITING, SLOW_INPUT, WAITING])
    assert run.invoke(app, ["diagnose", str(box), str(log)]).exit_code == 1


def test_a_log_is_examined(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.5\nstep 2 loss 2.4\n")
    assert run.invoke(app, ["diagnose", str(log)]).exit_code == 0
    known = next(signature for signature in SIGNATURES if signature.code == "oom-device")
    log.write_text(f"step 1 loss 2.5\n[rank1]: {known.example}\n")
    done = run.invoke(app, ["diagnose", str(log)])
    assert done.exit_code == 1
    assert "oom-device" in done.stdout


def test_a_job_without_a_rank_exits_3_with_its_diagnosis(tmp_path: Path) -> None:
    folder = recording(tmp_path / "recording", [])
    done = run.invoke(app, ["diagnose", str(folder)])
    assert done.exit_code == 3
    assert "no training rank was seen" in done.stdout
    document = json.loads(run.invoke(app, ["diagnose", "--json", str(folder)]).stdout)
    assert document["unexamined"], "and it says why"


@pytest.mark.usefixtures("nobody_else")
def test_no_running_job_exits_3() -> None:
    done = run.invoke(app, ["diagnose"])
    assert done.exit_code == 3
    assert "mgpu-doctor run" in done.stderr


def test_wrong_usage_exits_2(slow: Path) -> None:
    assert run.invoke(app, ["diagnose", "--surprise"]).exit_code == 2
    assert run.invoke(app, ["report"]).exit_code == 2
    done = run.invoke(app, ["report", str(slow), "-o", "report.pdf"])
    assert done.exit_code == 2
    assert ".html, .md or .json" in done.stderr


@pytest.mark.parametrize(
    ("ending", "start"), [(".html", "<!DOCTYPE html>"), (".md", "## "), (".json", "{")]
)
def test_a_report_is_private_and_replaces_the_old_one(
    slow: Path, tmp_path: Path, ending: str, start: str
) -> None:
    file = tmp_path / f"out{ending}"
    file.write_text("old")
    done = run.invoke(app, ["report", str(slow), "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert file.read_text(encoding="utf-8").startswith(start)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path / ".").count(file.name) == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_report_without_a_file_is_markdown(slow: Path) -> None:
    done = run.invoke(app, ["report", str(slow)])
    assert done.exit_code == 0
    assert done.stdout.startswith("## ! ")
    assert os.uname().nodename not in done.stdout, "redacted"


def test_the_home_of_who_reports_is_redacted(slow: Path) -> None:
    done = run.invoke(app, ["report", str(slow)], env={"HOME": str(slow.parent)})
    assert str(slow.parent) not in done.stdout
    assert f"| recording | \\~/{slow.name} |" in done.stdout.replace("\\_", "_")


def test_a_report_that_cannot_be_written_exits_2(slow: Path, tmp_path: Path) -> None:
    done = run.invoke(app, ["report", str(slow), "-o", str(tmp_path / "absent" / "x.html")])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("verb", ["diagnose", "report"])
def test_help_shows_examples(verb: str) -> None:
    done = run.invoke(app, [verb, "--help"])
    assert done.exit_code == 0
    assert f"  mgpu-doctor {verb} " in done.stdout


def test_a_reader_that_leaves_early_is_no_error(slow: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "mgpu_doctor", "diagnose", str(slow)]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode == 1, "the verdict, not the broken pipe"


def test_a_terminal_of_another_encoding_gets_ascii(slow: Path) -> None:
    command = [sys.executable, "-m", "mgpu_doctor", "diagnose", str(slow)]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 1
    assert done.stderr == b""
    assert done.stdout.isascii()
