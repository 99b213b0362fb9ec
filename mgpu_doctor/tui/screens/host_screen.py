"""The page of one host: how it is, its ranks and its GPUs."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Footer

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui import panels
from mgpu_doctor.tui.filter.fields import FIELDS, TextField
from mgpu_doctor.tui.filter.language import Filter, Says
from mgpu_doctor.tui.job_panels import RanksPanel
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels import gpu_table, header
from mgpu_doctor.tui.panels.host_map import listed_groups, row_of_spot
from mgpu_doctor.tui.row_selection import GpusPanel
from mgpu_doctor.tui.screens import host_details
from mgpu_doctor.tui.screens.base import TURNING, SubjectScreen
from mgpu_doctor.tui.view import Spot, View


class HostScreen(SubjectScreen):
    """Opens over the screen, for the host in `view.spot`. Its tables are those of the main screen,
    filtered; what is selected in them is opened by the app."""

    CSS = f"""
    {SubjectScreen.CSS}
    HostScreen #portrait {{ max-height: 50%; }}
    HostScreen #ranks {{ max-height: 40%; }}
    HostScreen #gpus {{ height: 1fr; min-height: 3; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = TURNING

    def __init__(self, frame: Frame, view: View) -> None:
        super().__init__(frame, view)
        self._of_all = view

    def compose(self) -> ComposeResult:
        yield Panel(host_details.host_page_lines, "Host", id="portrait")
        yield RanksPanel(panels.draw_ranks, "Ranks", id="ranks", entitle=header.ranks_title)
        yield GpusPanel(gpu_table.gpu_lines, "GPUs", id="gpus")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.show(self._frame)
        self.query_one("#ranks").focus()

    def show(self, frame: Frame) -> None:
        """The newest frame."""
        self._frame = frame
        field = FIELDS["host"]
        assert isinstance(field, TextField)
        name = host_details.name_of(self.view)
        self.view = self.view._replace(filter=Filter(Says(field, (name,), exact=True)))
        for panel in self.query(Panel):
            panel.show(frame, self.view)

    def on_ranks_panel_chosen(self, message: RanksPanel.Chosen) -> None:
        self.view = self.view._replace(rank=message.who)
        self.show(self._frame)

    def on_gpus_panel_chosen(self, message: GpusPanel.Chosen) -> None:
        self.view = self.view._replace(gpu=message.which)
        self.show(self._frame)

    def action_turn(self, by: int) -> None:
        rows = listed_groups(self._frame, self._of_all)
        place = row_of_spot(rows, self.view.spot)
        if rows:
            following = rows[0 if place is None else (place + by) % len(rows)]
            self.view = self.view._replace(spot=Spot(following.group.name), rank=None, gpu=None)
            self.show(self._frame)
