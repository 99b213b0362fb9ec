"""The page of one rank at its usual sizes, and what its keys do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from msgspec import structs
from textual.app import App

from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.rank_output import Output, Printed, Stream
from mgpu_doctor.live.rank_stacks import RankStacks, merged
from mgpu_doctor.tui.screens.rank_details import rank_page_lines
from mgpu_doctor.tui.screens.rank_screen import RankScreen, ReadOutput
from mgpu_doctor.tui.view import RankKey, View
from tests.support import diagnoses, job_snapshots
from tests.support.frames import HOSTILE, STRAGGLER, eight_gpus
from tests.support.screens import GOLDEN_SIZE, check_sizes, screen_text, until

SEEN = job_snapshots.snapshot_series({2: job_snapshots.LOCKED}).snapshots()[0]
CULPRIT = RankKey(2, "node-a")
FRAME = structs.replace(
    STRAGGLER, devices=structs.replace(eight_gpus(), devices=eight_gpus().devices[:3])
)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def printed(_case: Case, rank: RankSummary, _replayed: bool) -> Output:
    lines = [Printed("torchrun: setting OMP_NUM_THREADS to 1", False)]
    lines += [Printed(f"[rank{rank.rank}]: step {number} loss 0.5", True) for number in range(90)]
    return Output((Stream("console", tuple(lines)),))


def looked(
    frame: Frame, rank: RankSummary, alone: bool, tell: Callable[[str], None]
) -> RankStacks | str:
    tell("1 of 4 ranks read")
    assert frame.diagnosis is not None
    if alone:
        return RankStacks(SEEN, 1000 + (rank.rank or 0))
    return merged(frame.diagnosis.case, [SEEN], frame.diagnosis.findings)


class Host(App[None]):
    """Nothing but the page. Its rank is the one that is blamed."""

    def __init__(
        self, frame: Frame = FRAME, who: RankKey = CULPRIT, read: ReadOutput = printed
    ) -> None:
        super().__init__()
        self.page = RankScreen(frame, View(rank=who), read_output=read, read_stacks=looked)

    def on_mount(self) -> None:
        self.push_screen(self.page)


@pytest.mark.parametrize("key", ["s", "S"])
async def test_screen(key: str) -> None:
    app = Host()
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await until(pilot, lambda: "step 89" in screen_text(app), "the end of what it printed")
        await pilot.press(key)
        await until(pilot, lambda: "14:13:20" in screen_text(app), "the stacks")
        await check_sizes(pilot, f"rank-{'stack' if key == 's' else 'stacks'}")


async def test_hostile_words_are_only_words() -> None:
    hostile = Output((Stream(diagnoses.HOSTILE, (Printed(diagnoses.HOSTILE, True),)),))
    app = Host(HOSTILE, RankKey(1, "node-a"), lambda *_: hostile)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "<script>" in screen_text(app), "what it printed")
        text = screen_text(app)
        assert "[bold red]x[/]" in text
        assert not {"\x1b", "\u202e"} & set(text)


async def test_next_and_previous_rank_bring_their_own_output_and_forget_the_stack() -> None:
    app = Host()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "[rank2]: step 89" in screen_text(app), "rank 2")
        await pilot.press("s")
        await until(pilot, lambda: "take  util.py:31" in screen_text(app), "its stack")
        await pilot.press("right")
        await until(pilot, lambda: "[rank3]: step 89" in screen_text(app), "rank 3")
        assert "take  util.py:31" not in screen_text(app)
        await pilot.press("n")
        await until(pilot, lambda: "[rank0]: step 89" in screen_text(app), "rank 0, in a round")
        await pilot.press("p", "left")
        await until(pilot, lambda: "[rank2]: step 89" in screen_text(app), "rank 2 again")
        assert app.page.view.rank == CULPRIT


async def test_output_grows_at_its_end_but_stays_where_one_reads() -> None:
    last = 30

    def growing(_case: Case, _rank: RankSummary, _replayed: bool) -> Output:
        lines = tuple(Printed(f"line {number} of it", True) for number in range(last))
        return Output((Stream("stdout", lines),))

    app = Host(read=growing)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "line 29 of it" in screen_text(app), "the end")
        last = 40
        app.page.show(FRAME)
        await until(pilot, lambda: "line 39 of it" in screen_text(app), "the new end")
        await pilot.press("pageup", "pageup")
        await until(pilot, lambda: "line 39 of it" not in screen_text(app), "what was before")
        last = 50
        app.page.show(FRAME)
        await until(pilot, lambda: app.page._output.streams[0].lines[-1].text[5:7] == "49", "more")
        assert "line 49 of it" not in screen_text(app)


async def test_a_rank_that_goes_is_missed_and_comes_back() -> None:
    app = Host()
    assert FRAME.diagnosis is not None
    without = replace(FRAME.diagnosis, ranks=FRAME.diagnosis.ranks[:2])
    async with app.run_test(size=(80, 24)) as pilot:
        app.page.show(structs.replace(FRAME, diagnosis=without))
        await until(pilot, lambda: "rank 2 is not there" in screen_text(app), "why there is none")
        await pilot.press("s")
        app.page.show(FRAME)
        await until(pilot, lambda: "pid 4002" in screen_text(app), "the rank")


async def test_what_was_recorded_is_not_printed_to_describe_the_threads_that_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described: list[object] = []

    def describe(what: object) -> str:
        described.append(type(what))
        return ""

    for kind in (Frame, Diagnosis):
        monkeypatch.setattr(kind, "__repr__", describe)
    app = Host()
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await until(pilot, lambda: "step 89" in screen_text(app), "what it printed")
        await pilot.press("s")
        await until(pilot, lambda: "14:13:20" in screen_text(app), "the stack")
    assert described == []


async def test_why_a_stack_cannot_be_read_is_reported_and_the_page_goes_on() -> None:
    def refused(*_: object) -> RankStacks | str:
        raise PermissionError(1, "no")

    app = Host()
    app.page._stack_reader = refused  # type: ignore[assignment]
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("S")
        await until(pilot, lambda: "The stacks cannot be read (" in screen_text(app), "why")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not app.page, "the page is closed")


def test_times_of_all_phases_stand_in_columns() -> None:
    lines = rank_page_lines(FRAME, 100, View(rank=CULPRIT))
    head = next(place for place, line in enumerate(lines) if line.plain.startswith("phase"))
    ends = {line.plain.index("s ", 17) for line in lines[head + 1 : head + 8]}
    assert len(ends) == 1, [line.plain for line in lines[head:]]
