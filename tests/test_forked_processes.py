"""Tests that run in forked processes lose no failure, no output and no test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.support.forked_processes import run_in_processes

def pytest_runtestloop(session):
    run_in_processes(session, 2)
    return True
"""
PASSES = "def test_passes(tmp_path): assert not list(tmp_path.iterdir())"
FILES = {
    "test_a.py": f"{PASSES}\ndef test_fails(): print('printed by it'); assert 1 == 2",
    "test_b.py": f"import pytest\n{PASSES}\n@pytest.fixture\ndef broken(): 1 / 0\n"
    "def test_has_no_setup(broken): pass",
    "test_c.py": f"import warnings\n{PASSES}\ndef test_warns(): warnings.warn('beware')",
}
DIES = {
    "test_d.py": f"import os\n{PASSES}\ndef test_dies(): os._exit(7)\ndef test_never_runs(): pass"
}


def outcome(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, content in files.items():
        (folder / name).write_text(content)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout


def test_all_is_reported(tmp_path: Path) -> None:
    code, output = outcome(tmp_path, FILES)
    assert code == 1
    assert "1 failed, 4 passed, 1 warning, 1 error" in output
    assert "FAILED test_a.py::test_fails - assert 1 == 2" in output
    assert "ERROR test_b.py::test_has_no_setup - ZeroDivisionError" in output
    assert output.count("printed by it") == 2  # in the source and in what was captured
    assert "beware" in output


def test_what_a_dead_process_did_not_report_has_failed(tmp_path: Path) -> None:
    code, output = outcome(tmp_path, FILES | DIES)
    assert code == 1
    for name in ("test_dies", "test_never_runs"):
        assert f"FAILED test_d.py::{name} - No report of this test." in output
    assert "3 failed, 5 passed" in output


def test_the_first_failure_can_end_all(tmp_path: Path) -> None:
    slow = "import time\ndef test_waits(): time.sleep(500)"
    code, output = outcome(tmp_path, FILES | {"test_0.py": slow}, "--exitfirst")
    assert (code, "stopping after 1 failures" in output) == (1, True)
