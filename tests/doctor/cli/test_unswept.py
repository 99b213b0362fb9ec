"""Cycles are not looked for while a verb examines, and are again when it is over."""

from __future__ import annotations

import gc

import pytest

from mgpu_doctor.cli.terminal_output import unswept


def test_nobody_looks_meanwhile() -> None:
    with unswept():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_changes_nothing() -> None:
    with pytest.raises(KeyboardInterrupt), unswept():
        raise KeyboardInterrupt
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    with unswept():
        with unswept():
            pass
        assert not gc.isenabled()
