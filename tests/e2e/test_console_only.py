"""Real jobs of which only the console output is known; for a single failing rank see
test_failure_causes.py."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import JOBS, Launcher, forked, run, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

LINES = (JOBS / "console_output.py").read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> int:
    return 1 + next(number for number, line in enumerate(LINES) if text in line)


CALLS_THE_MODEL = f"console_output.py:{line_of('loss = model(batch')}"


@dataclass(frozen=True)
class Report:
    code: int
    findings: list[dict[str, Any]]

    @property
    def grave(self) -> list[tuple[str, list[int | None]]]:
        return [
            (one["code"], [culprit["rank"] for culprit in one["culprits"]])
            for one in self.findings
            if one["severity"] != "info"
        ]


def list_survivor_evidence(kind: str, tmp_path: Path, launcher: Launcher = torchrun) -> Report:
    """Runs the job, keeps what a terminal would have shown, and asks the doctor."""
    ended = run(launcher("console_output.py", kind))
    log = tmp_path / "train.log"
    log.write_text(ended.out + ended.err, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mgpu_doctor", "diagnose", "--json", str(log)],
        capture_output=True,
        text=True,
        check=False,
    )
    diagnosis = json.loads(done.stdout)
    assert diagnosis["subject"] == {"kind": "log", "ref": str(log)}
    return Report(done.returncode, diagnosis["findings"])


def test_every_rank_with_a_wrong_shape(tmp_path: Path) -> None:
    told = list_survivor_evidence("shapes", tmp_path)
    assert told.grave == [("failed-shape-mismatch", [0, 1])]
    assert told.findings[0]["title"].startswith("Every rank: ")
    assert told.findings[0]["title"].endswith(f"at {CALLS_THE_MODEL}")


def test_a_rank_that_came_too_late_is_not_reported_from_text(tmp_path: Path) -> None:
    """Both ranks raise symptoms: nobody is named."""
    told = list_survivor_evidence("sleep", tmp_path)
    assert told.grave == [("failed-gloo", [])]
    assert "It is known only that" in told.findings[0]["cause"]


def test_a_job_that_went_well_though_it_printed_a_traceback(tmp_path: Path) -> None:
    told = list_survivor_evidence("caught", tmp_path, forked)
    assert (told.code, told.findings) == (0, [])
