"""Garbage collection is rare while a verb is loaded, paused while it examines a job, and resumed
afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from mgpu_doctor.__main__ import GARBAGE_THRESHOLD
from mgpu_doctor.cli.terminal_output import pause_garbage_collection


def test_nobody_looks_meanwhile() -> None:
    with pause_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_changes_nothing() -> None:
    with pytest.raises(KeyboardInterrupt), pause_garbage_collection():
        raise KeyboardInterrupt
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    with pause_garbage_collection():
        with pause_garbage_collection():
            pass
        assert not gc.isenabled()


def test_it_is_rare_before_anything_is_loaded() -> None:
    script = (
        "import gc, sys\n"
        "from mgpu_doctor.__main__ import main\n"
        "print('click' in sys.modules)\n"
        "sys.argv = ['mgpu-doctor', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(gc.get_threshold()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    first, _, last = done.stdout.splitlines()
    assert (first, last) == ("False", str(GARBAGE_THRESHOLD))
