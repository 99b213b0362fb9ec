"""CI tries tests once more that failed, and these alone, and skips what it has no time for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

AGAIN = Path(__file__).parents[1] / ".ci" / "again"
PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout"}
TESTS = """
import pytest

pytestmark = pytest.mark.slow

def tries(name):
    with open(name, "a+") as file:
        file.write("x")
        file.seek(0)
        return len(file.read())

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("mail", ["a@b c"])
def test_first(mail):
    assert tries("first") == RIGHT_TRY

def test_second():
    assert tries("second") == 1
"""


def again(folder: Path, right_try: int, *options: str) -> tuple[int, dict[str, int]]:
    """The exit code where the first test passes in that try alone, and how often each was tried."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (folder / "test_it.py").write_text(TESTS.replace("RIGHT_TRY", str(right_try)))
    command = [str(AGAIN), sys.executable, "-m", "pytest", "-m", "slow", *options]
    environment = {**os.environ, **PLUGINS}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    tried = {name: folder / name for name in ("first", "second")}
    return ended.returncode, {
        name: len(file.read_text()) for name, file in tried.items() if file.exists()
    }


GROUPED = ("-n", "2", "--dist", "loadgroup")


@pytest.mark.parametrize(
    ("right_try", "options", "code", "first"),
    [(1, (), 0, 1), (2, GROUPED, 0, 2), (3, (), 1, 2)],
)
def test_what_failed_is_tried_once_more(
    tmp_path: Path, right_try: int, options: tuple[str, ...], code: int, first: int
) -> None:
    assert again(tmp_path, right_try, *options) == (code, {"first": first, "second": 1})


def test_a_module_that_cannot_be_imported_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name")
    assert again(tmp_path, 2) == (2, {})


@pytest.mark.parametrize(("until", "outcome"), [("0", "3 skipped"), ("1e12", "3 passed")])
def test_what_has_not_begun_in_time_is_skipped(until: str, outcome: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "--until", until, __file__]
    command += ["-k", test_what_failed_is_tried_once_more.__name__]
    ended = subprocess.run(command, cwd=AGAIN.parents[1], stdout=subprocess.PIPE, check=False)
    assert ended.returncode == 0
    assert outcome in ended.stdout.decode()
