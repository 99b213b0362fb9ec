"""The page of one GPU: all its values, and the processes on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from mgpu_probes.outside.processes import Owner, find_owners
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.filter.matching import pids, shown
from mgpu_doctor.tui.keys import KeyHints
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels import header
from mgpu_doctor.tui.screens import gpu_details
from mgpu_doctor.tui.screens.base import TURNING, SubjectScreen
from mgpu_doctor.tui.screens.gpu_details import IN_A_CONTAINER, REPLAYED, Owners
from mgpu_doctor.tui.view import View

FindOwners = Callable[[Sequence[int]], Sequence[Owner] | None]


class GpuScreen(SubjectScreen):
    """Opens over the screen. `show` brings it the newest frame, live or replayed."""

    CSS = f"""
    {SubjectScreen.CSS}
    GpuScreen #portrait {{ max-height: 70%; }}
    GpuScreen #users {{ height: 1fr; min-height: 3; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = TURNING

    class OwnersFound(Message):
        def __init__(self, owners: Owners) -> None:
            super().__init__()
            self.owners = owners

    def __init__(self, frame: Frame, view: View, *, find: FindOwners = find_owners) -> None:
        super().__init__(frame, view)
        self._find_owners = find
        self._owners = Owners()
        self._asked: tuple[int, ...] | None = None

    def compose(self) -> ComposeResult:
        yield Panel(gpu_details.gpu_page_lines, "GPU", id="portrait", entitle=header.gpu_title)
        yield Panel(self._user_lines, "Processes", id="users")
        yield KeyHints()

    def on_mount(self) -> None:
        self.query_one("#portrait").focus()
        self.show(self._frame)

    def show(self, frame: Frame) -> None:
        """The newest frame."""
        self._frame = frame
        for panel in self.query(Panel):
            panel.show(frame, self.view)
        gpu = gpu_details.gpu_of(frame, self.view)
        listed = pids(gpu.device) if gpu is not None else ()
        if frame.replay is not None:
            self._owners = Owners(reason=REPLAYED)
        elif listed != self._asked:
            self._asked = listed
            self._ask(listed)

    def _user_lines(self, frame: Frame, width: int, view: View) -> Sequence[Text]:
        return gpu_details.process_lines(frame, width, view, self._owners)

    @work(thread=True, name="owners", exclusive=True)
    def _ask(self, listed: Sequence[int]) -> None:
        found_owners = self._find_owners(listed)
        owners = (
            Owners(reason=IN_A_CONTAINER) if found_owners is None else Owners(tuple(found_owners))
        )
        self.post_message(self.OwnersFound(owners))

    def on_gpu_screen_owners_found(self, message: OwnersFound) -> None:
        self._owners = message.owners
        self.show(self._frame)

    def action_turn(self, by: int) -> None:
        gpus = [gpu.which for gpu in shown(self._frame, self.view.filter).gpus]
        if not gpus:
            return
        place = gpus.index(self.view.gpu) + by if self.view.gpu in gpus else 0
        self.view = self.view._replace(gpu=gpus[place % len(gpus)])
        self.show(self._frame)
