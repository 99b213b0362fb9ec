"""What a rank says of itself when it leaves by `sys.exit`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.inprocess import wrap
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.exits import ExitRecorder, _nothing
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
    watched = wrap.around(sys.exit, exits._exits, _nothing, exits._context.fail)
    monkeypatch.setattr(sys, "exit", watched)

    def leave(what: object) -> None:
        with pytest.raises(SystemExit) as raised:
            sys.exit(what)  # type: ignore[arg-type]
        assert raised.value.code is what

    return leave


def last_words(exits: ExitRecorder, tmp_path: Path) -> Mapping[str, Any]:
    exits._tell_exit()
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
