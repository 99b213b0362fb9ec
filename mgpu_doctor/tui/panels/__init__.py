"""What a frame looks like, as lines of text: pure functions, the same for the screen and `--once`.

Foreign text (names, messages, paths) goes through `report.text.line` into `Text` objects, never
through markup. The functions below import what a job needs only when there is a job, because
imports delay the first frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.view import View


def draw_ranks(frame: Frame, width: int, view: View) -> Sequence[Text]:
    if frame.diagnosis is None:
        return ()
    from mgpu_doctor.tui.panels import rank_table

    return rank_table.rank_lines(frame, width, view)


def draw_map(frame: Frame, width: int, view: View) -> Sequence[Text]:
    if frame.map is None:
        return ()
    from mgpu_doctor.tui.panels import host_map

    return host_map.map_lines(frame, width, view)


def draw_heatmap(frame: Frame, width: int, view: View) -> Sequence[Text]:
    if frame.heat is None:
        return ()
    from mgpu_doctor.tui.panels import heatmap

    return heatmap.heatmap_lines(frame, width, view)


def draw_findings(frame: Frame, width: int, view: View) -> Sequence[Text]:
    if frame.diagnosis is None:
        return ()
    from mgpu_doctor.tui.panels import finding_list

    return finding_list.finding_lines(frame, width, view)


def draw_selected_finding(frame: Frame, width: int, view: View) -> Sequence[Text]:
    """Returns the lines of the selected finding."""
    if frame.diagnosis is None or not frame.diagnosis.findings:
        return ()
    from mgpu_doctor.tui.panels import finding_list

    return finding_list.selected_finding_lines(frame.diagnosis, width, view)
