"""The verdict on a finished recording in a few words, kept with it for lists of recordings, which
would take about a second to diagnose each: `straggler-input, rank 1, 56 %`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from mgpu_doctor import __version__
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.formatting import format_ranks, format_share
from mgpu_doctor.recording.kept_recordings import KeptVerdict
from mgpu_doctor.recording.layout import VERDICT, VERDICT_SCHEMA
from mgpu_doctor.recording.write import write_whole
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import Tone, leading, verdict

NOT_DIAGNOSED = "not diagnosed"
WITHOUT_FINDING = {
    Tone.GOOD: "nothing wrong",
    Tone.INFO: "nothing wrong",
    Tone.UNKNOWN: "inconclusive",
}
LONGEST_CODE = 24
MOST_RANKS = 2
"""Ranks, or ranges of ranks, that are named."""


def save_verdict(folder: Path, diagnosis: Diagnosis) -> None:
    """Keeps the verdict on a finished recording, for the program that made it: whoever reads a
    recording leaves it unchanged. One that cannot be written keeps none."""
    if diagnosis.case.job.outcome is not Outcome.RUNNING:
        kept = json.dumps(summarize(diagnosis), indent=1)
        with suppress(OSError):
            write_whole(folder / VERDICT, f"{kept}\n".encode())


def summarize(diagnosis: Diagnosis) -> dict[str, Any]:
    """The verdict as plain JSON types. `step_fraction`: share of step time, 0..1, that the finding
    costs; null: unknown, or no finding."""
    lead = leading(diagnosis)
    ranks = [culprit.rank for culprit in lead.culprits] if lead is not None else []
    return {
        "schema": VERDICT_SCHEMA,
        "tone": verdict(diagnosis).tone.value,
        "code": lead.code if lead is not None else None,
        "ranks": [rank for rank in ranks if rank is not None],
        "step_fraction": lead.cost.step_fraction if lead is not None else None,
        "doctor_version": __version__,
    }


def format_verdict(kept: KeptVerdict | None, *, costs: bool = True) -> str:
    """`straggler-input, rank 1, 56 %`, `nothing wrong`, `inconclusive`, or `not diagnosed`.
    `costs`: with the share of the step time."""
    if kept is None:
        return NOT_DIAGNOSED
    if kept.code is None:
        words = {tone.value: known for tone, known in WITHOUT_FINDING.items()}
        return words.get(kept.tone or "", NOT_DIAGNOSED)
    parts = [text.cut(text.line(kept.code), LONGEST_CODE)]
    if kept.ranks:
        parts.append(format_ranks(kept.ranks, limit=MOST_RANKS))
    if kept.step_fraction and costs:
        parts.append(format_share(kept.step_fraction))
    return ", ".join(parts)
