"""The result of a search for the best size, as text and as JSON (docs/treat-goal.schema.json)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from mgpu_doctor.analysis.trials.paired_effect import Saving
from mgpu_doctor.formatting import format_bytes, format_number, format_seconds, format_share
from mgpu_doctor.report.text import line
from mgpu_doctor.treat.size_search import Goal, Point, SizeSearch
from mgpu_doctor.treat.trial_report import format_memory
from mgpu_doctor.treat.trial_table import describe_memory

SCHEMA = "mgpu-doctor/treat-goal/1"
UNCONFIRMED = "Not confirmed by a second measurement: the budget was used up, or a run failed."
_BAR = 20
_HEAD = ("batch", "micro-batches", "ranks", "samples/s", "", "step", "memory per rank", "")


def render_sizes(search: SizeSearch, *, unicode: bool) -> str:
    """The curve, and what to write to keep the best size."""
    most = max((point.per_second or 0.0 for point in search.points), default=0.0)
    rows = [_HEAD]
    for place, point in enumerate(search.points):
        size, rate = point.size, point.per_second
        rows.append(
            (
                str(size.batch),
                str(size.micro_batches or ""),
                str(size.ranks or ""),
                "" if rate is None else format_number(rate),
                "" if rate is None else ("█" if unicode else "#") * round(_BAR * rate / most),
                "" if point.step is None else format_seconds(point.step.seconds),
                "" if point.memory_bytes is None else format_bytes(point.memory_bytes),
                "as it is" if place == 0 else line(point.reason or ""),
            )
        )
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    padded = [[word.ljust(max(map(len, column))) for word in column] for column in columns]
    lines = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    return "\n".join([*lines, "", *_conclude(search, unicode=unicode)]) + "\n"


def is_better(search: SizeSearch) -> bool:
    """Whether another size is shown to serve the goal better than the job as it is."""
    best = search.find_best()
    if search.goal is Goal.MEMORY:
        return best is not None and best is not search.points[0]
    return search.saved is not None and search.saved.is_gain


def render_json(search: SizeSearch) -> str:
    """The search as indented ASCII JSON that ends in a newline."""
    best, saved = search.find_best(), search.saved
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "goal": search.goal.value,
        "command": list(search.command),
        "private": search.private,
        "complete": search.complete,
        "steps": search.steps,
        "curve": [_point(point) for point in search.points],
        "memory": format_memory(search.memory),
        "best": None if best is None else _size(best),
        "is_better": is_better(search),
        "saved_per_sample": None
        if saved is None
        else {"fraction": saved.share, "low": saved.low, "high": saved.high},
        "best_command": None if best is None else search.write_command(best.size),
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _size(point: Point) -> dict[str, int | None]:
    size = point.size
    return {"batch": size.batch, "ranks": size.ranks, "micro_batches": size.micro_batches}


def _point(point: Point) -> dict[str, Any]:
    return {
        **_size(point),
        "samples_per_second": point.per_second,
        "samples_per_step": point.samples,
        "step_seconds": None if point.step is None else point.step.seconds,
        "standard_error": None if point.step is None else point.step.error,
        "memory_bytes": point.memory_bytes,
        "reason": point.reason,
    }


def _describe_price(search: SizeSearch, *, unicode: bool) -> Iterator[str]:
    """What the largest batch takes of memory, and what it does to the throughput."""
    if search.saved is None and search.memory is None:
        yield UNCONFIRMED
        return
    if search.memory is not None:
        yield f"Memory per rank: {describe_memory(search.memory, unicode=unicode)}."
    saved = search.saved
    if saved is None:
        return
    if saved.is_gain:
        yield f"It also saves {_describe(saved)} of the time per sample."
    elif saved.is_loss:
        lost = Saving(-saved.share, -saved.high, -saved.low, saved.pairs_agree)
        yield f"It costs {_describe(lost)} more time per sample."
    else:
        yield f"No difference in the time per sample was shown: saves {_describe(saved)}."


def _describe(saved: Saving) -> str:
    """`12 % (9 % to 15 %)`."""
    share, low, high = map(format_share, (saved.share, saved.low, saved.high))
    return f"{share} ({low} to {high})"


def _conclude(search: SizeSearch, *, unicode: bool) -> Iterator[str]:
    best, saved = search.find_best(), search.saved
    if best is None or best is search.points[0]:
        yield "The job as it is serves the goal best of these."
        return
    if search.goal is Goal.MEMORY:
        if all(point.reason is None for point in search.points):
            yield f"Batch {best.size.batch} fits. The trials ended before one did not."
        else:
            yield f"The largest batch that fits of these: {best.size.batch}."
        yield from _describe_price(search, unicode=unicode)
    elif saved is None:
        yield UNCONFIRMED
    elif not saved.is_gain:
        yield f"No difference shown: saves {_describe(saved)} of the time per sample."
        return
    else:
        yield f"Saves {_describe(saved)} of the time per sample."
    yield f"To keep it: {shlex.join(search.write_command(best.size))}"
    if search.find_growth(best.size) != 1:
        how = "scale the learning rate with it" if search.rate is None else "the learning rate grew"
        yield (
            f"A larger batch changes the training: {how}, warm up for a few hundred updates, and "
            "compare the validation loss."
        )
