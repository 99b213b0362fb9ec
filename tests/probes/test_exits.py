"""What a rank records when it leaves by `sys.exit`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.inprocess import layout, wrap
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.exits import ExitRecorder, _ignore
from mgpu_probes.inprocess.probe_context import ProbeContext

from mgpu_doctor.recording.box import read_box

Leave = Callable[[object], None]


@pytest.fixture
def box(tmp_path: Path) -> Writer:
    return Writer.open(tmp_path, rank=1, local_rank=1, world_size=2)


@pytest.fixture
def exits(box: Writer) -> ExitRecorder:
    context = ProbeContext()
    context.on, context.box = True, box
    return ExitRecorder(context)


@pytest.fixture
def leave(exits: ExitRecorder, monkeypatch: pytest.MonkeyPatch) -> Leave:
    """A script's call of `sys.exit`, that is caught here."""
    watched = wrap.around(sys.exit, exits._exits, _ignore, exits._context.fail)
    monkeypatch.setattr(sys, "exit", watched)

    def leave(what: object) -> None:
        with pytest.raises(SystemExit) as raised:
            sys.exit(what)  # type: ignore[arg-type]
        assert raised.value.code is what

    return leave


def last_words(exits: ExitRecorder, tmp_path: Path) -> Mapping[str, Any]:
    exits._write_exit_facts()
    (path,) = tmp_path.glob("*.box")
    return read_box(path).last_words


@pytest.mark.parametrize("what", ["no such data set: numbers", 3])
def test_what_it_was_given_is_kept_with_its_place(
    exits: ExitRecorder, leave: Leave, tmp_path: Path, what: object
) -> None:
    leave(what)
    words = last_words(exits, tmp_path)
    assert (words["type"], words["message"]) == ("SystemExit", str(what))
    assert (words["file"], words["function"]) == (__file__, "leave")


@pytest.mark.parametrize("what", [0, None])
def test_a_good_end_needs_no_word(
    exits: ExitRecorder, leave: Leave, tmp_path: Path, what: object
) -> None:
    leave(what)
    assert last_words(exits, tmp_path) == {}


def test_where_training_went_on_somebody_caught_it(
    box: Writer, exits: ExitRecorder, leave: Leave, tmp_path: Path
) -> None:
    leave("not yet")
    box.step(10, 5, 0, 0, [0.0] * 10)
    assert last_words(exits, tmp_path) == {}


def raise_in_a_wait(box: Writer, exits: ExitRecorder) -> RuntimeError:
    """The exception that ends a collective of 4 s, called at train.py:87."""
    context = exits._context
    context.owner = threading.get_ident()
    context.ledger.words = box.words
    moments = iter([10_000_000_000, 14_000_000_000])
    context.clock = lambda: next(moments, 15_000_000_000)

    def begins(*_: object) -> bool:
        context.ledger.enter(layout.WAIT, context.clock())
        box.words[layout.NOW_SITE // 8] = box.site("all_reduce train.py:87")
        return True

    def fails() -> None:
        raise RuntimeError("timed out")

    def ends(*_: object) -> None:
        context.ledger.leave(context.clock())

    with pytest.raises(RuntimeError) as raised:
        wrap.around(fails, begins, ends, context.fail, context.was_interrupted)()
    return raised.value


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_exception_that_ends_a_wait_is_kept_with_the_wait(
    box: Writer, exits: ExitRecorder, tmp_path: Path, wrapped: bool
) -> None:
    error: Exception = raise_in_a_wait(box, exits)
    if wrapped:
        outer = ValueError("training failed")
        outer.__cause__ = error
        error = outer
    exits.record(error, error.__traceback__)
    wait = last_words(exits, tmp_path)["wait"]
    assert (wait["since"], wait["until"]) == (10_000_000_000, 14_000_000_000)
    assert wait["site"] == "all_reduce train.py:87"


def test_another_exception_or_one_after_more_steps_ended_no_wait(
    box: Writer, exits: ExitRecorder, tmp_path: Path
) -> None:
    caught = raise_in_a_wait(box, exits)
    assert exits._context.find_failed_wait(ValueError("another")) is None
    exits._context.recorded += 1
    exits.record(caught, None)
    assert "wait" not in last_words(exits, tmp_path)


@pytest.mark.parametrize("by_call", [False, True])
def test_a_failed_wait_that_the_script_catches_before_it_exits_is_kept(
    box: Writer, exits: ExitRecorder, leave: Leave, tmp_path: Path, by_call: bool
) -> None:
    """`raise SystemExit` calls no hook at all, `sys.exit` says no more than the code."""
    raise_in_a_wait(box, exits)
    if by_call:
        leave(1)
    words = last_words(exits, tmp_path)
    assert (words["type"], words["message"]) == ("RuntimeError", "timed out")
    assert words["wait"]["site"] == "all_reduce train.py:87"


def test_a_failed_wait_after_which_another_collective_began_ended_nothing(
    box: Writer, exits: ExitRecorder, tmp_path: Path
) -> None:
    raise_in_a_wait(box, exits)
    exits._context.sequence = lambda: 1
    assert last_words(exits, tmp_path) == {}
