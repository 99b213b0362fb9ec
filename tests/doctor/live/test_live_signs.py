"""Known failure messages in the console of a running job become events of its screen."""

from __future__ import annotations

from pathlib import Path

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.job_watch import MOST_BYTES, MOST_SIGNS, ConsoleSigns, Watch
from mgpu_doctor.recording.layout import CONSOLE
from mgpu_doctor.report.job_events import Kind
from mgpu_doctor.tui.screens.events_screen import timeline
from tests.support.recordings import HEALTHY, recording

RAN_OUT = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 79.15 GiB of which 1.00 GiB is free.\n"
)
STEP = "step 100 loss 2.31\n"


def printing(folder: Path, text: str) -> Path:
    made = recording(folder, (HEALTHY, HEALTHY), live=True)
    (made / CONSOLE).mkdir()
    append_to_console(made, text)
    return made


def append_to_console(made: Path, text: str) -> None:
    with (made / CONSOLE / "console.log").open("a") as file:
        file.write(text)


def test_what_appears_while_it_is_watched_has_a_moment(tmp_path: Path) -> None:
    made = printing(tmp_path / "job", STEP)
    now = [100.0]
    signs = ConsoleSigns(made, lambda: now[0])
    signs.poll()
    assert not signs.known
    append_to_console(made, RAN_OUT)
    signs.poll()
    assert [(one.rank, one.at, one.count) for one in signs.known] == [(1, 100.0, 1)]
    now[0] = 130.0
    append_to_console(made, RAN_OUT)
    signs.poll()
    assert [(one.rank, one.at, one.count) for one in signs.known] == [(1, 100.0, 2)]


def test_of_what_was_there_before_nobody_knows_when(tmp_path: Path) -> None:
    signs = ConsoleSigns(printing(tmp_path / "job", RAN_OUT))
    signs.poll()
    assert [one.at for one in signs.known] == [None]


def test_what_has_left_the_end_is_remembered_and_all_is_bounded(tmp_path: Path) -> None:
    made = printing(tmp_path / "job", RAN_OUT)
    signs = ConsoleSigns(made)
    signs.poll()
    append_to_console(made, STEP * (2 * MOST_BYTES // len(STEP)))
    signs.poll()
    assert [one.rank for one in signs.known] == [1]
    append_to_console(
        made, "".join(RAN_OUT.replace("1", str(rank), 1) for rank in range(2 * MOST_SIGNS))
    )
    signs.poll()
    assert len(signs.known) == MOST_SIGNS


def test_a_recording_without_anything_to_read(tmp_path: Path) -> None:
    signs = ConsoleSigns(tmp_path)
    signs.poll()
    assert not signs.known


def test_the_screen_of_a_running_job_tells_them(tmp_path: Path) -> None:
    now = [1000.0]
    watch = Watch(printing(tmp_path / "job", RAN_OUT), clock=lambda: now[0])
    first = watch.poll().diagnosis
    assert first.case.signs == (), "the first frame does not wait for it"
    now[0] += 60
    second = watch.poll().diagnosis
    watch.close()
    events = timeline(Frame(now[0], "live", second)).events
    (told,) = (event for event in events if event.kind is Kind.ERRORS)
    assert told.who == "rank 1"
    assert "CUDA out of memory" in told.sentence
