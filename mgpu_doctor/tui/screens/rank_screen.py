"""The page of one rank: who it is, its phases, its stacks, and what it prints.

`TopApp` opens it for the selected rank. Threads read its output and stacks: the screen never waits
for a process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.frame_source import Source, StackTaker
from mgpu_doctor.live.rank_output import Output, output_of
from mgpu_doctor.live.rank_stacks import RankStacks, newest_stacks, read_rank_stacks
from mgpu_doctor.tui.keys import KeyHints
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels import header
from mgpu_doctor.tui.panels.rank_table import listed_ranks, row_of_rank
from mgpu_doctor.tui.screens import rank_console, rank_details
from mgpu_doctor.tui.screens.base import TURNING, SubjectScreen
from mgpu_doctor.tui.screens.rank_console import Tail
from mgpu_doctor.tui.view import RankKey, View

READING = Output(reason="reading…")
A_READER = "reader"
"""Describes a worker to Textual, which else prints its arguments: all steps of all ranks."""

ReadOutput = Callable[[Case, RankSummary, bool], Output]
Page = RankStacks | str


class ReadStacks(Protocol):
    def __call__(
        self, frame: Frame, rank: RankSummary, alone: bool, tell: Callable[[str], None]
    ) -> Page: ...


def _read_rank_output(case: Case, rank: RankSummary, replayed: bool) -> Output:
    return output_of(case, rank, replayed=replayed)


def _read_stacks(frame: Frame, rank: RankSummary, alone: bool, tell: Callable[[str], None]) -> Page:
    diagnosis = frame.diagnosis
    assert diagnosis is not None  # it has the rank
    return read_rank_stacks(
        diagnosis.case,
        (rank,) if alone else (rank, *diagnosis.ranks),
        diagnosis.findings,
        alone=alone,
        replayed=frame.replay is not None,
        tell=tell,
    )


def read_stacks_from(source: Source) -> ReadStacks:
    """How a page reads stacks: through the source if the ranks run on other hosts."""
    if not isinstance(source, StackTaker):
        return _read_stacks

    def read(frame: Frame, rank: RankSummary, alone: bool, tell: Callable[[str], None]) -> Page:
        del tell  # one answer has all of them
        assert frame.diagnosis is not None  # it has the rank
        return newest_stacks(source.take_stacks(), rank, frame.diagnosis.findings, alone=alone)

    return read


class RankScreen(SubjectScreen):
    """Opens over the screen. `show` brings it the newest frame, live or replayed."""

    CSS = f"""
    {SubjectScreen.CSS}
    RankScreen #portrait {{ max-height: 50%; }}
    RankScreen #stacks {{ max-height: 50%; }}
    RankScreen #output {{ height: 1fr; min-height: 3; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "stacks(True)", "stack", tooltip="What it does now: its stack."),
        Binding("S", "stacks(False)", "all stacks", tooltip="The stacks of all ranks, as a tree."),
        *TURNING,
    ]

    class Printed(Message):
        def __init__(self, who: RankKey, output: Output) -> None:
            super().__init__()
            self.who, self.output = who, output

    class StacksRead(Message):
        """Stacks or a progress message. `who`: the rank; None: all ranks. `done`: whether these are
        the stacks."""

        def __init__(self, who: RankKey | None, page: Page, done: bool) -> None:
            super().__init__()
            self.who, self.page, self.done = who, page, done

    def __init__(
        self,
        frame: Frame,
        view: View,
        *,
        read_output: ReadOutput = _read_rank_output,
        read_stacks: ReadStacks = _read_stacks,
    ) -> None:
        super().__init__(frame, view)
        self._output_reader, self._stack_reader = read_output, read_stacks
        self._output = READING
        self._page: Page | None = None
        self._reading = self._sampling = False

    def compose(self) -> ComposeResult:
        yield Panel(rank_details.rank_page_lines, "Rank", id="portrait", entitle=header.rank_title)
        yield Panel(self._stack_lines, "Stacks", id="stacks")
        yield Tail(self._output_lines, "Output", id="output")
        yield KeyHints()

    def on_mount(self) -> None:
        self.query_one("#output").focus()
        self.show(self._frame)

    def show(self, frame: Frame) -> None:
        """The newest frame."""
        self._frame = frame
        self._draw()
        rank = self._rank
        if rank is not None and not self._reading and frame.diagnosis is not None:
            self._reading = True
            self._read_output(frame.diagnosis, rank, frame.replay is not None)

    @property
    def _rank(self) -> RankSummary | None:
        return rank_details.rank_of(self._frame, self.view)

    def _draw(self) -> None:
        for panel in self.query(Panel):
            panel.show(self._frame, self.view)

    def _stack_lines(self, _frame: Frame, width: int, _view: View) -> Sequence[Text]:
        return [] if self._page is None else rank_console.stack_lines(self._page, width)

    def _output_lines(self, _frame: Frame, width: int, _view: View) -> Sequence[Text]:
        return rank_console.output_lines(self._output, width, follow=self.query_one(Tail).follows)

    @work(thread=True, name="output", description=A_READER, exit_on_error=False)
    def _read_output(self, diagnosis: Diagnosis, rank: RankSummary, replayed: bool) -> None:
        try:
            output = self._output_reader(diagnosis.case, rank, replayed)
        except Exception as error:  # shown, never fatal: the dashboard goes on
            output = Output(reason=f"It cannot be read ({type(error).__name__}: {error}).")
        self.post_message(self.Printed(RankKey.of(rank), output))

    def on_rank_screen_printed(self, message: Printed) -> None:
        self._reading = False
        if message.who != self.view.rank:
            self.show(self._frame)
        elif message.output != self._output:
            if self._output is READING:
                self.query_one(Tail).follows = True
            self._output = message.output
            self._draw()

    def action_stacks(self, alone: bool) -> None:
        rank = self._rank
        if rank is not None and not self._sampling:
            self._sampling = True
            self._sample_stacks(self._frame, rank, alone)

    @work(thread=True, name="stacks", description=A_READER, exit_on_error=False)
    def _sample_stacks(self, frame: Frame, rank: RankSummary, alone: bool) -> None:
        who = RankKey.of(rank) if alone else None
        tell = partial(self._report_progress, who)
        tell(f"reading the stack{'' if alone else 's of all ranks'}…")
        try:
            page = self._stack_reader(frame, rank, alone, tell)
        except Exception as error:  # shown, never fatal: the dashboard goes on
            page = f"The stacks cannot be read ({type(error).__name__}: {error})."
        self.post_message(self.StacksRead(who, page, done=True))

    def _report_progress(self, who: RankKey | None, sentence: str) -> None:
        self.post_message(self.StacksRead(who, sentence, done=False))

    def on_rank_screen_stacks_read(self, message: StacksRead) -> None:
        self._sampling = self._sampling and not message.done
        if message.who in (None, self.view.rank):
            self._page = message.page
            self._draw()
            if message.done:
                self.query_one("#stacks").focus()

    def action_turn(self, by: int) -> None:
        ranks = listed_ranks(self._frame, self.view)
        place = row_of_rank(self.view.rank, ranks)
        if not ranks:
            return
        following = ranks[0 if place is None else (place + by) % len(ranks)]
        self.view = self.view._replace(rank=RankKey.of(following))
        if not (isinstance(self._page, RankStacks) and self._page.pid is None):
            self._page = None
        self._output = READING
        self.show(self._frame)
