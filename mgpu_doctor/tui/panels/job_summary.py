"""The job in three lines: what runs, how fast it is, and what is wrong. Pure.

Parts that do not fit are dropped, highest `rank` first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from mgpu_doctor.case.model import Gap, Outcome
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.formatting import (
    UNKNOWN,
    format_count,
    format_number,
    format_seconds,
    format_share,
)
from mgpu_doctor.live.frame import Progress
from mgpu_doctor.report import text
from mgpu_doctor.report.command_names import shorten_commands
from mgpu_doctor.report.verdict import MARKS, STYLES, count_ranks, outcome, verdict
from mgpu_doctor.tui.filter.matching import kept, kept_by
from mgpu_doctor.tui.panels.table_cells import DIM, Column, ends, fitting

BAD = "bold yellow"
THOUSANDS = 1000
LONGEST_WORDS = 40


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a line. `rank` 0 is never dropped; of the others the highest goes first."""

    shown: Text
    rank: int = 0


@kept_by(lambda going, diagnosis, width: (*going, diagnosis, width))
def job_lines(going: Progress, diagnosis: Diagnosis, width: int) -> Sequence[Text]:
    """Returns the job's lines; the second only if a step was measured."""
    when = _when(diagnosis)
    named = [*_command(diagnosis, width // 3), *_what(diagnosis), *_step(going, diagnosis)]
    what = [ends(_fitted(named, width - when.cell_len - 2), when, width)]
    runs = diagnosis.case.job.outcome is Outcome.RUNNING
    parts = [*_how(going, runs=runs), *_together(diagnosis), *_probe(going, diagnosis)]
    how = _fitted(parts, width - 1)
    return what if going.step_seconds is None else [*what, ends(how, Text(), width)]


def _fitted(parts: Sequence[Part], width: int) -> Text:
    """Returns the parts that fit, separated by two cells."""
    columns = [
        Column(str(at), part.shown.cell_len + 1, rank=part.rank) for at, part in enumerate(parts)
    ]
    return Text("  ").join(parts[int(column.title)].shown for column in fitting(columns, width + 2))


@kept
def _what(diagnosis: Diagnosis) -> Sequence[Part]:
    """Returns what runs. Computed once per diagnosis, because it goes through all ranks."""
    return [*_words(diagnosis)]


def _words(diagnosis: Diagnosis) -> Iterator[Part]:
    job, seen = diagnosis.case.job, len(diagnosis.ranks)
    if job.pid is not None:
        yield Part(Text(f"pid {job.pid}", style=DIM), 4)
    if named := describe_strategy(diagnosis):
        yield Part(Text(named, style="bold"), 3)
    if seen:
        yield Part(Text(count_ranks(diagnosis)))
    if len(job.hosts) > 1:
        yield Part(Text(f"{len(job.hosts)} hosts", style=DIM), 6)
    elif job.hosts:
        yield Part(Text(f"on {_short(job.hosts[0])}", style=DIM), 6)
    software = [_short(word) for word in (_framework(diagnosis), job.launcher) if word]
    if software:
        yield Part(Text(" under ".join(software), style=DIM), 5)


def _step(going: Progress, diagnosis: Diagnosis) -> Iterator[Part]:
    """Returns the furthest step, which is newer than the diagnosis where it was read later."""
    step = diagnosis.furthest_step if going.step is None else going.step
    if step is not None:
        yield Part(Text(f"step {step}"), 2)


def _command(diagnosis: Diagnosis, width: int) -> Iterator[Part]:
    """Returns the script and its arguments in at most `width` cells, if it is known."""
    if command := shorten_commands([diagnosis.case.job.command], width)[0]:
        yield Part(Text(command, style="bold"), 1)


def _when(diagnosis: Diagnosis) -> Text:
    """Returns how long the job has been running, or how it ended."""
    shown = outcome(diagnosis).removeprefix("is still ").replace("running, after", "running for")
    return Text(shown.removeprefix("was "))


def _framework(diagnosis: Diagnosis) -> str | None:
    """Returns the framework, with its version if a rank reports it."""
    versions = (rank.metadata.framework_version for rank in diagnosis.case.ranks)
    version = next((version for version in versions if isinstance(version, str)), "")
    name = diagnosis.case.job.framework
    return f"{name} {version}".strip() if name else None


def _short(words: str) -> str:
    return text.cut(text.line(words), LONGEST_WORDS)


def _how(going: Progress, *, runs: bool) -> Iterator[Part]:
    """Returns how fast the job is, and when its epoch ends if it still `runs`."""
    if going.idle is not None:
        yield Part(Text(f"no step for {format_seconds(round(going.idle))}", style=BAD))
    elif going.rate is not None:
        yield Part(Text(f"{format_number(going.rate)} steps/s", style="bold"))
    yield Part(Text(f"{format_seconds(going.step_seconds)} per step"), 6)
    if runs and going.epoch_left is not None:
        left = format_seconds(round(going.epoch_left))
        yield Part(Text(f"epoch {going.epoch} ends in {left}"), 2)
    if going.idle is None:
        rates = [(going.tokens, "tokens"), (going.samples, "samples")]
        known = [(value, unit) for value, unit in rates if value is not None]
        for rank, (value, unit) in enumerate(known, start=3):
            yield Part(Text(f"{_many(value)} {unit}/s"), rank)
        if not known:
            yield Part(Text(f"{UNKNOWN} samples/s"), 7)
    broken = going.loss is not None and not math.isfinite(going.loss)
    loss = "is not a number" if broken else _loss(going.loss)
    yield Part(_labelled("loss", loss, BAD if broken else ""), 0 if broken else 2)


def _together(diagnosis: Diagnosis) -> Iterator[Part]:
    """Returns how well the ranks work together; empty for a single rank."""
    if len(diagnosis.ranks) < 2 and diagnosis.parallel_efficiency is None:
        return
    yield Part(_labelled("efficiency", format_share(diagnosis.parallel_efficiency)), 1)
    if diagnosis.load_balance is not None:
        balance = format_share(diagnosis.load_balance)
        moved = format_share(diagnosis.communication_efficiency)
        yield Part(Text(f"(load balance {balance}, communication {moved})", style=DIM), 5)
    elif diagnosis.efficiency_reason:
        yield Part(Text(f"({text.line(diagnosis.efficiency_reason)})", style=DIM), 8)


def _probe(going: Progress, diagnosis: Diagnosis) -> Iterator[Part]:
    """Returns what the probe costs, and its errors."""
    if going.probe is not None:
        yield Part(_labelled("probe", format_share(going.probe)), 7)
    missing = diagnosis.unexamined
    off = next((unexamined for unexamined in missing if unexamined.gap is Gap.PROCESS_PROBE), None)
    if off is not None:
        yield Part(Text("probe off", style=BAD), 1)
        yield Part(Text(f"({text.cut(text.line(off.reason), 2 * LONGEST_WORDS)})", style=DIM), 9)


def _labelled(label: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{label} ", style or DIM), (value, style))


def _loss(value: float | None) -> str:
    return UNKNOWN if value is None else format_number(value)


def _many(value: float) -> str:
    """Returns a large number with its thousands separated."""
    return format_number(value) if value < THOUSANDS else f"{value:,.0f}"


NAMES = {
    "ddp": "DDP",
    "fsdp": "FSDP",
    "dp": "DataParallel",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "deepspeed": "DeepSpeed",
    "localsgd": "local SGD",
    "mp": "model parallel",
    "tensor": "tensor parallel",
    "ps": "parameter server",
    "manual": "own collectives",
    "single": "one process",
}
"""Names by the strategy in the process metadata; others are shown unchanged."""
OF_PIPELINES = ("pipeline", "manual")
"""Words that add nothing if the stages are known."""
LONGEST_STRATEGY = 40


def describe_strategy(diagnosis: Diagnosis) -> str:
    """Returns `DDP`, `FSDP × tensor parallel`, `pipeline 4 × DDP 2`; empty if unknown."""
    parts = (diagnosis.case.job.strategy or "").split("+")
    stages = diagnosis.stages
    words = [word for word in parts if word and not (stages and word in OF_PIPELINES)]
    names = [text.cut(text.line(NAMES.get(word, word)), LONGEST_STRATEGY) for word in words]
    if stages:
        pipelines = len(stages[0])
        names = [f"pipeline {len(stages)}", *([] if pipelines == 1 else names or ["data"])]
        return " × ".join(names) + (f" {pipelines}" if pipelines > 1 else "")
    first = next(iter(diagnosis.case.ranks), None)
    devices = first.metadata.data_parallel_devices if first is not None else None
    over = f" over {format_count(devices, 'device')}" if devices else ""
    return " × ".join(names) + over


@kept
def verdict_line(diagnosis: Diagnosis, width: int) -> Text:
    judged = verdict(diagnosis)
    mark, style = MARKS[judged.tone], STYLES[judged.tone]
    return ends(Text.assemble((f"{mark} ", style), (judged.sentence, "bold")), Text(""), width)
