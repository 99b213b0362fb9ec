"""When a rank's memory is full, or up to which batch it lasts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from mgpu_doctor.analysis.capacity.long_batches import coming
from mgpu_doctor.analysis.steps.window import recent
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.case.peaks import rungs
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text
from mgpu_doctor.rules.memory.leaks import GROWN
from mgpu_doctor.tui.panels.parts import DIM

CODES = ("oom-risk", "leak-device", "leak-host")


def forecast(diagnosis: Diagnosis, known: Rank | None) -> Iterator[Text]:
    """What is foretold of all ranks alike (what a rank is blamed for is shown elsewhere), and the
    largest batch that will fit where peaks follow batches."""
    for one in diagnosis.findings:
        if one.code in CODES and not one.culprits:
            yield Text(f"       {text.line(one.title)}", style="yellow")
    if known is None or diagnosis.case.job.outcome is not Outcome.RUNNING:
        return
    for where in ("device", "host"):
        if not rungs(known, where):
            continue
        for batch in coming(recent(diagnosis.case), where, GROWN.default):
            if batch.rank.rank == known.rank:
                yield Text(
                    f"       {text.size(batch.line.peak(batch.largest))} of the {where} by the "
                    f"largest batch so far ({batch.largest:,.0f} {batch.unit}); up to "
                    f"{batch.fits:,.0f} fit",
                    style=DIM,
                )
