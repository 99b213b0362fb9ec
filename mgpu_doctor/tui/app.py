"""The live screen: a thread makes frames, a message brings the newest, panels draw it.

The thread never touches a widget, and widgets only read frozen frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import structs
from textual import work
from textual.app import ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.notifications import Notification
from textual.reactive import reactive
from textual.screen import Screen

from mgpu_doctor.live.frame import HOST, Frame
from mgpu_doctor.live.frame_source import Chooser, Player, Source
from mgpu_doctor.recording.home import latest
from mgpu_doctor.report import text
from mgpu_doctor.rules.settings import DEFAULTS, Settings
from mgpu_doctor.tui import keys, panel_groups, panel_layout, terminal_signals
from mgpu_doctor.tui.frame_thread import FrameMade, FrameMissed, Frames
from mgpu_doctor.tui.jobs import opening
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.themes import ThemedApp
from mgpu_doctor.tui.view import Order, View

if TYPE_CHECKING:  # keeps what keys open out of the first frame's imports
    from textual.actions import ActionParseResult
    from textual.dom import DOMNode
    from textual.driver import Driver
    from textual.events import Key
    from textual.notifications import Notify

    from mgpu_doctor.case.device_samples import DeviceSample
    from mgpu_doctor.findings import Diagnosis, Finding
    from mgpu_doctor.live.machine_recorder import Recorder
    from mgpu_doctor.tui.filter.prompt import Chosen
    from mgpu_doctor.tui.job_panels import FindingsPanel, RanksPanel
    from mgpu_doctor.tui.machine_panels import ProcessesPanel
    from mgpu_doctor.tui.map_panel import MapPanel
    from mgpu_doctor.tui.row_selection import GpusPanel
    from mgpu_doctor.tui.screens.base import FollowingScreen
    from mgpu_doctor.tui.screens.events_screen import EventsScreen
    from mgpu_doctor.tui.screens.graph_selection import Choice
    from mgpu_doctor.tui.view import RankKey

USUAL = "-usual"
WIDE, WIDE_FROM = "-wide", 170
"""A style-sheet class, and the screen width from which it applies. Applied shortly after a
resize."""
MOST_MISSED = 16
"""The most distinct reasons for missed frames that are shown. Each is shown once."""
MISSED_FOR = 60.0
"""Seconds that such a notice stays on the screen."""
NOTICED_FOR = 20.0
"""Seconds that a sentence from before the first frame stays on the screen."""
KEYS_AFTER = 0.5
"""Seconds after the start at which the keys are shown even without a frame. A choice."""
MOMENT = 0.01
"""Seconds after an event at which a replay that goes to it shows it."""


class TopApp(ThemedApp):
    """`mgpu-doctor top`. `interval`: seconds between frames; `readonly`: starts and stops nothing;
    `recorder`: records samples of the machine, whichever job is shown."""

    TITLE = "mgpu-doctor"
    CSS_PATH = "top.tcss"
    # Textual declares these as instance variables: no ClassVar here.
    HORIZONTAL_BREAKPOINTS = [(0, USUAL), (WIDE_FROM, WIDE)]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = keys.BINDINGS
    NOTIFICATION_TIMEOUT = keys.ANSWERED_FOR

    frame: reactive[Frame | None] = reactive(None, init=False, repaint=False)
    view: reactive[View] = reactive(View(), init=False, repaint=False)

    def __init__(
        self,
        source: Source,
        interval: float = 1.0,
        *,
        settings: Settings = DEFAULTS,
        readonly: bool = False,
        recorder: Recorder | None = None,
        notice: str | None = None,
    ) -> None:
        """`notice`: a sentence that is shown at first."""
        super().__init__()
        self._notice = notice
        self._frames = Frames(source, interval)
        self._settings = settings
        self._readonly = readonly
        self._recorder = recorder
        self._asked: list[str] = []
        self._graphs: Choice | None = None
        self._panels: tuple[Panel, ...] = ()
        """Those of the main screen; empty until it is open."""
        self._missed: set[str] = set()
        self._answer = Notification("", timeout=0.0)
        """What was answered last to a key."""

    def get_driver_class(self) -> type[Driver]:
        """Returns Textual's driver; for a terminal, one that sleeps while there are no keys."""
        usual = super().get_driver_class()
        if usual.__name__ != "LinuxDriver":  # the environment may name another one
            return usual
        from mgpu_doctor.tui.terminal_keys import PatientDriver

        return PatientDriver

    def get_default_screen(self) -> Screen[Any]:
        """Returns the main screen, which has the class of usual widths at once: a class that comes
        with the size styles the whole screen a second time before the first frame."""
        return panel_groups.MainScreen(classes=USUAL)

    def compose(self) -> ComposeResult:
        yield from panel_groups.first_panels()
        yield keys.KeyHints(waits=True)

    def on_mount(self) -> None:
        self._panels = tuple(self.query(Panel))
        if not self.is_headless:
            terminal_signals.obey_signals(self.exit)
        if self._notice is not None:
            self.notify(self._notice, timeout=NOTICED_FOR, markup=False)
        self._make_frames()
        self.set_timer(KEYS_AFTER, self._show_keys)

    def _show_keys(self) -> None:
        for main in self.screen_stack[:1]:  # none when the app ends
            main.query_one(keys.KeyHints).begin()

    def on_unmount(self) -> None:
        self._frames.end()

    @work(thread=True, name="frames")
    def _make_frames(self) -> None:
        for made in self._frames:
            self.post_message(made)
            if not self.is_headless:
                terminal_signals.end_where_gone()

    def on_frame_made(self, message: FrameMade) -> None:
        self.frame = message.frame

    def on_frame_missed(self, message: FrameMissed) -> None:
        """Keeps the last frame on screen; the header shows its age."""
        if self.frame is not None and self.frame.replay is None:
            late = max(0.0, time.time() - self.frame.at)
            self.frame = structs.replace(self.frame, late=late)
        if message.why not in self._missed and len(self._missed) < MOST_MISSED:
            self._missed.add(message.why)
            self.notify(message.notice, severity="error", timeout=MISSED_FOR, markup=False)

    def watch_frame(self, before: Frame | None, now: Frame | None) -> None:
        if not self._panels or not self._panels[0].is_attached:  # the app ends
            return
        self._show()
        if before is None:
            self.call_after_refresh(self._show_keys)
        had, has = _what_is_there(before), _what_is_there(now)
        if had != has:
            self.refresh_bindings()
        if "job" in had ^ has and before is not None and self.view.gpu is None:
            panel_groups.focus_first(self._panels)

    def watch_view(self) -> None:
        self._show()

    def _show(self) -> None:
        if self.frame is not None:
            main = self.screen_stack[0]
            if panel_groups.add_panels(main, self.frame):
                self._panels = tuple(main.query(Panel))
            for panel in self._panels:
                panel.show(self.frame, self.view)
            self._arrange()
            for page in self._pages():
                page.show(self.frame)

    def _pages(self) -> list[FollowingScreen]:
        """Returns the open pages that follow the newest frame; the first imports their module."""
        if len(self.screen_stack) == 1:
            return []
        from mgpu_doctor.tui.screens.base import FollowingScreen

        return [page for page in self.screen_stack if isinstance(page, FollowingScreen)]

    def on_resize(self) -> None:
        if self._panels:
            self.call_after_refresh(self._arrange)

    def on_driver_signal_resume(self) -> None:
        """Draws all of the screen: the terminal has kept nothing of it (ctrl+z)."""
        self.screen.refresh()

    def _arrange(self) -> None:
        size = self.screen_stack[0].size
        wide = size.width >= WIDE_FROM
        panel_layout.arrange(self._panels, size.height, side_by_side=wide, map_only=self.view.alone)
        if self.screen_stack[0].focused is None:
            panel_groups.focus_first(self._panels)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        pages = [page for page in self.screen_stack[1:] if not isinstance(page, CommandPalette)]
        follows = bool(pages) and pages[-1] in self._pages()
        on_a_page = bool(pages) and not follows
        if follows and action in keys.MAIN_ACTIONS:
            return False
        if action == "step" and self.focused is not None and self.focused.id == "map":
            return False  # the arrows move on the map
        if action in keys.REPLAY_ACTIONS and on_a_page:
            return False
        return self._why_not(action) is None and super().check_action(action, parameters)

    def _why_not(self, action: str) -> str | None:
        """Returns why an action has nothing to work on now; None: it works."""
        if action in ("stop", "try_fix") and self._readonly:
            return keys.READONLY
        if action == "stop" and isinstance(self._frames.source, Player):
            return keys.REPLAYED
        if action == "stop" and self.frame is not None and self.frame.over:
            return keys.ENDED
        return None if self._works_now(action) else keys.NOT_NOW[action]

    def _works_now(self, action: str) -> bool:
        if action in keys.REPLAY_ACTIONS:
            return isinstance(self._frames.source, Player)
        if action in ("details", "copy_fix", "try_fix"):
            return self.frame is not None and bool(self.frame.findings)
        if action in ("sort", "reverse", "map"):
            return self._diagnosis is not None and bool(self._diagnosis.ranks)
        if action == "next_job":
            others = self.frame is not None and bool(self.frame.others)
            return others and isinstance(self._frames.source, Chooser)
        return action not in ("diagnosis", "stop") or self._diagnosis is not None

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Runs an action. Its modules are imported only now, maybe days after the start. If their
        files have changed and the import fails, a notice says so and the screen stays open."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except ImportError as error:
            message = f"It cannot be opened: {text.line(str(error))}. Restart top."
            self.notify(message, severity="error", timeout=MISSED_FOR, markup=False)
            return False

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield from keys.commands(self, screen)

    def on_key(self, event: Key) -> None:
        """Answers a key that does nothing at the moment."""
        if event.key in self.screen.active_bindings:
            return
        action = keys.find_action(event.key)
        if action is not None and (why := self._why_not(action)):
            self.notify(why, markup=False)
        elif event.is_printable or event.key == "enter":
            self.notify(keys.name_unused(self, event.key), markup=False)

    def on_notify(self, event: Notify) -> None:
        """Shows the answer to a key in place of the one before: they would cover the screen."""
        if event.notification.severity == "information":
            self._answer.timeout = 0.0  # it has expired when Textual looks for those to show
            self._answer = event.notification

    def action_keys(self) -> None:
        from mgpu_doctor.tui.screens.base import help_page

        self.push_screen(help_page(self))

    @property
    def _selected_finding(self) -> Finding | None:
        """The selected finding of the job; if it has none, the worst defect of a GPU."""
        findings = self.frame.findings if self.frame is not None else ()
        return findings[min(self.view.finding, len(findings) - 1)] if findings else None

    def action_details(self) -> None:
        finding = self._selected_finding
        if finding is not None:
            from mgpu_doctor.rules.catalogue import catalogue
            from mgpu_doctor.tui.panels.finding_list import FindingDetails
            from mgpu_doctor.tui.screens.base import FindingPage

            rule = next((rule for rule in catalogue().rules if rule.code == finding.code), None)
            job = self._diagnosis
            known = (job.step_seconds, job.case.tried) if job is not None else (None, ())
            self.push_screen(FindingPage("Finding", FindingDetails(finding, *known, rule)))

    def action_copy_fix(self) -> None:
        from mgpu_doctor.tui.clipboard import copy_fix

        copy_fix(self, self._selected_finding)

    def action_try_fix(self) -> None:
        from mgpu_doctor.tui.jobs.trial_screen import offer_trials

        finding = self._selected_finding
        offer_trials(self, self._turn, self._diagnosis, finding, readonly=self._readonly)

    def action_sort(self) -> None:
        orders = list(Order)
        following = orders[(orders.index(self.view.order) + 1) % len(orders)]
        self.view = self.view._replace(order=following)

    def action_history(self) -> None:
        from mgpu_doctor.live.machine_sampler import numpy_on_one_thread

        with numpy_on_one_thread():
            from mgpu_doctor.tui.screens.graph_screen import HistoryScreen
            from mgpu_doctor.tui.screens.graph_selection import Choice

        page = HistoryScreen(self.frame, self._graphs or Choice())

        def closed(_: None) -> None:
            self._graphs = page.choice

        self.push_screen(page, closed)

    def action_events(self) -> None:
        from mgpu_doctor.tui.screens.events_screen import EventsScreen

        self.push_screen(EventsScreen(self.frame))

    def action_map(self) -> None:
        """The map of ranks in place of the other tables, or they again."""
        self.view = self.view._replace(alone=not self.view.alone)
        self.screen_stack[0].query_one("#map" if self.view.alone else "#findings").focus()

    def on_events_screen_wanted(self, message: EventsScreen.Wanted) -> None:
        position = self.frame.replay if self.frame is not None else None
        if position is not None and position.end > position.start:
            share = (message.at + MOMENT - position.start) / (position.end - position.start)
            self._steer(lambda player: player.seek(max(0.0, min(1.0, share))))
            if not position.paused:
                self.action_pause()

    def action_reverse(self) -> None:
        self.view = self.view._replace(reversed=not self.view.reversed)

    def action_filter(self) -> None:
        if len(self.screen_stack) == 1:
            from mgpu_doctor.tui.filter.prompt import FilterPrompt

            self.push_screen(FilterPrompt(self.view.filter, self._asked), self._filter_chosen)

    def _filter_chosen(self, chosen: Chosen | None) -> None:
        if chosen is not None:
            self.view = self.view._replace(filter=chosen.filter)

    def action_next_job(self) -> None:
        if isinstance(self._frames.source, Chooser):
            self._frames.source.next_job()
            self._frames.hasten()

    def _turn(self, job: opening.Job) -> None:
        self._show_from(opening.source_of(job, self._settings, self._recorder))

    def _show_from(self, source: Source) -> None:
        self._frames.turn_to(source)
        self.refresh_bindings()

    def action_launch(self) -> None:
        opening.open_launch(self, self._turn, readonly=self._readonly)

    def action_attach(self) -> None:
        def devices() -> DeviceSample | None:
            return self.frame.devices if self.frame else None

        opening.open_attach(self, self._turn, devices, readonly=self._readonly)

    def action_diagnosis(self) -> None:
        opening.open_diagnosis(self, self._diagnosis, self._settings)

    def action_stop(self) -> None:
        from mgpu_doctor.tui.jobs.stopping import offer_stop

        shown = self._diagnosis.case.subject.ref if self._diagnosis else None
        offer_stop(self, shown, readonly=self._readonly)

    def action_play_last(self) -> None:
        from mgpu_doctor.case.recording_case import NotARecording
        from mgpu_doctor.live.replay import Replay

        last = latest()
        if last is None:
            self.notify(keys.NO_RECORDING, markup=False)
            return
        try:
            self._show_from(Replay(last, self._settings))
        except NotARecording as reason:
            self.notify(str(reason), markup=False)

    @property
    def _diagnosis(self) -> Diagnosis | None:
        return self.frame.diagnosis if self.frame else None

    def action_pause(self) -> None:
        self._steer(lambda player: player.pause())

    def action_step(self, by: int) -> None:
        self._steer(lambda player: player.step(by * keys.STEP_SECONDS), keys.AT_END[by > 0])

    def action_leap(self, by: int) -> None:
        position = self.frame.replay if self.frame is not None else None
        if position is not None:
            span = position.end - position.start
            self._steer(lambda player: player.step(by * span / keys.TENTHS), keys.AT_END[by > 0])

    def action_speed(self, by: int) -> None:
        self._steer(lambda player: player.faster(by), keys.NO_SPEED[by > 0])

    def action_seek(self, share: float) -> None:
        self._steer(lambda player: player.seek(share), keys.AT_END[share > 0])

    def _steer(self, change: Callable[[Player], bool | None], why_not: str = "") -> None:
        """Changes the replay. `why_not`: the answer if nothing changed."""
        if isinstance(self._frames.source, Player):
            if change(self._frames.source) is False and why_not:
                self.notify(why_not, markup=False)
            self._frames.hasten()

    def on_ranks_panel_chosen(self, message: RanksPanel.Chosen) -> None:
        self._choose_rank(message.who, opened=message.opened)

    def _choose_rank(self, who: RankKey, *, opened: bool) -> None:
        self.view = self.view._replace(rank=who)
        if opened and self.frame is not None:
            from mgpu_doctor.tui.screens.rank_screen import RankScreen, read_stacks_from

            stacks = read_stacks_from(self._frames.source)
            page = RankScreen(self.frame, self.view, read_stacks=stacks)

            def closed(_: None) -> None:
                self.view = self.view._replace(rank=page.view.rank)

            self.push_screen(page, closed)

    def on_map_panel_arranged(self, message: MapPanel.Arranged) -> None:
        self.view = self.view._replace(by=message.by, worst_first=message.worst_first, spot=None)

    def on_map_panel_chosen(self, message: MapPanel.Chosen) -> None:
        spot = message.spot
        self.view = self.view._replace(spot=spot, rank=spot.rank or self.view.rank)
        if message.opened and spot.rank is not None:
            self._choose_rank(spot.rank, opened=True)
        elif message.opened and self.frame is not None and self.view.by == HOST:
            from mgpu_doctor.tui.screens.host_screen import HostScreen

            self.push_screen(HostScreen(self.frame, self.view))

    def on_gpus_panel_chosen(self, message: GpusPanel.Chosen) -> None:
        self.view = self.view._replace(gpu=message.which)
        if message.opened and self.frame is not None:
            from mgpu_doctor.tui.screens.gpu_screen import GpuScreen

            page = GpuScreen(self.frame, self.view)

            def closed(_: None) -> None:
                self.view = self.view._replace(gpu=page.view.gpu)

            self.push_screen(page, closed)

    def on_processes_panel_sorted(self, message: ProcessesPanel.Sorted) -> None:
        self.view = self.view._replace(
            process_order=message.order, processes_reversed=message.backwards
        )

    def on_processes_panel_chosen(self, message: ProcessesPanel.Chosen) -> None:
        self.view = self.view._replace(process=message.pid)
        if message.ended and self.frame is not None:
            from mgpu_doctor.tui.jobs.stopping import offer_end

            listed = (one for one in self.frame.processes if one.pid == message.pid)
            offer_end(self, next(listed, None), readonly=self._readonly)

    def on_findings_panel_moved(self, message: FindingsPanel.Moved) -> None:
        diagnosis = self._diagnosis
        last = len(diagnosis.findings) - 1 if diagnosis else 0
        wanted = self.view.finding + message.by if message.to is None else message.to
        self.view = self.view._replace(finding=max(0, min(last, wanted)))
        if message.opened:
            self.action_details()


def _what_is_there(frame: Frame | None) -> set[str]:
    """Returns what decides which keys work."""
    there = {"job": frame.diagnosis, "findings": frame.findings, "end": frame.over} if frame else {}
    return {name for name, thing in there.items() if thing}
