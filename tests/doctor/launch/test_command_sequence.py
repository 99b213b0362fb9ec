"""Commands run one after the other: their exit codes, and signals to end."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from mgpu_doctor.launch.observe import JobSequence
from tests.support.launching import eventually, python

WAITS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
pathlib.Path({ready!r}).touch()
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("program", "code"), [("pass", 0), ("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_code_is_the_command_s(program: str, code: int) -> None:
    with JobSequence() as sequence:
        assert sequence.run(python(program)) == code


def test_what_asks_us_to_end_is_passed_on(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def ask() -> None:
        eventually("the command", ready.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    with JobSequence() as sequence:
        asking = threading.Thread(target=ask)
        asking.start()
        assert sequence.run(python(WAITS.format(ready=str(ready)))) == 9
        asking.join()
        assert sequence.asked is signal.SIGTERM
        assert sequence.run(python(WAITS.format(ready=str(ready)))) in (9, 128 + signal.SIGTERM)


def test_it_prints_nothing_here(capfd: pytest.CaptureFixture[str]) -> None:
    with JobSequence() as sequence:
        sequence.run(
            python("import sys; print(1); print(2, file=sys.stderr); sys.exit(bool(input))")
        )
    assert capfd.readouterr() == ("", "")
