"""Joins a recording with those of the earlier runs that it continues, to one history of the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mgpu_doctor.case.model import Case, Rank, Unexamined
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.formatting import format_count
from mgpu_doctor.recording.run_series import find_earlier_runs

MOST_RUNS, MOST_RANKS = 32, 512
"""Earlier runs, and ranks of them, that are read: the newest. A rank takes about 2 MiB."""


def load_with_earlier_runs(folder: Path, others: Sequence[Path] = ()) -> Case:
    """The case of a recording, with the ranks of the runs that it continues in `earlier`. Attempts
    are numbered through all runs. `others`: recordings of the same job by other nodes. Raises what
    `load_recording` raises for this recording."""
    return join_earlier_runs(load_recording(folder, others=others), folder)


def join_earlier_runs(
    case: Case, folder: Path, load: Callable[[Path], Case] = load_recording
) -> Case:
    """The same case with the ranks of the earlier runs. Runs that are not read are listed."""
    found = find_earlier_runs(folder)
    if not found:
        return case
    runs: list[list[Rank]] = []
    for path in reversed(found[-MOST_RUNS:]):
        try:
            earlier = load(path)
        except (NotARecording, OSError):
            break
        ranks = [*earlier.earlier, *earlier.ranks]
        if sum(map(len, runs)) + len(ranks) > MOST_RANKS:
            break
        runs.insert(0, ranks)
    unread = len(found) - len(runs)
    numbered = _number_attempts([*runs, list(case.earlier) + list(case.ranks)])
    count = len(case.ranks)
    return replace(
        case,
        earlier=tuple(numbered[:-count] if count else numbered),
        ranks=tuple(numbered[-count:] if count else ()),
        unexamined=(*case.unexamined, *([_describe_unread(unread)] if unread else ())),
    )


def _number_attempts(runs: Sequence[Sequence[Rank]]) -> list[Rank]:
    """All ranks, the attempts of each run numbered after those of the runs before."""
    numbered: list[Rank] = []
    first = 0
    for ranks in runs:
        numbers = sorted({rank.attempt for rank in ranks})
        new = {number: first + place for place, number in enumerate(numbers)}
        numbered += [replace(rank, attempt=new[rank.attempt]) for rank in ranks]
        first += len(numbers)
    return numbered


def _describe_unread(count: int) -> Unexamined:
    return Unexamined(
        "earlier runs of this job",
        f"{format_count(count, 'recording')} could not be read, or would need too much memory",
        "examine them by themselves: `mgpu-doctor runs` lists them",
    )
