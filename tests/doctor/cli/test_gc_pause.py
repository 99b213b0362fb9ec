"""Garbage collection is paused while a verb examines a job, and resumed afterwards."""

from __future__ import annotations

import gc

import pytest

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
