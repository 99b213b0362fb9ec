"""Panels that only a job fills: loaded when there is one, as the first frame waits for imports."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.view import View


def ranks(frame: Frame, width: int, view: View) -> Sequence[Text]:
    if frame.diagnosis is None:
        return ()
    from mgpu_doctor.tui.panels import ranks

    return ranks.lines(frame, width, view)


def heat(frame: Frame, width: int, view: View) -> Sequence[Text]:
    if frame.heat is None:
        return ()
    from mgpu_doctor.tui.panels import heat

    return heat.lines(frame, width, view)


def findings(frame: Frame, width: int, view: View) -> Sequence[Text]:
    if frame.diagnosis is None:
        return ()
    from mgpu_doctor.tui.panels import findings

    return findings.lines(frame, width, view)


def details(frame: Frame, width: int, view: View) -> Sequence[Text]:
    """Of the selected finding."""
    if frame.diagnosis is None or not frame.diagnosis.findings:
        return ()
    from mgpu_doctor.tui.panels import findings

    return findings.in_full(frame.diagnosis, width, view)
