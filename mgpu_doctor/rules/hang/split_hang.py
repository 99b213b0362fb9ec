"""All ranks wait, but in different collectives, by their stacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.hang_analysis import Hang, Kind
from mgpu_doctor.analysis.stacks.thread_states import ThreadState
from mgpu_doctor.analysis.stacks.wait_classifier import BETWEEN_TWO, REMOTE_CALLS, Doing
from mgpu_doctor.case.job_snapshots import Frame
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.advice import EVEN_BATCHES
from mgpu_doctor.rules.hang.stack_evidence import (
    MOST_ROWS,
    STACKS,
    describe_operations,
    duration_row,
    find_culprit,
    hang_of_kind,
    is_long,
    name_ranks,
    rank_numbers,
)
from mgpu_doctor.rules.rule import Limits

MOST_SIDES = 3
"""Groups of ranks that a title names."""
SAME_COLLECTIVES = Fix(
    "same-collectives",
    "Call the same collectives in the same order on all ranks",
    "Compare the two places: whatever decides between them must have the same outcome on all ranks "
    "(all_reduce the decision first). `TORCH_DISTRIBUTED_DEBUG=DETAIL` turns the first mismatch "
    "into an error that names both calls.",
)


def find_split_hang(measures: Measures, _: Limits) -> Iterable[Finding]:
    """`hang-collective-mismatch` by stacks. Silent if the flight recorder shows the mismatch."""
    hang = hang_of_kind(measures, Kind.APART)
    if hang is None or measures.divergence is not None:
        return
    everyone = [state for side in hang.sides for state in side]
    operations = {state.operation for state in everyone}
    if operations & REMOTE_CALLS:
        return  # another thread of a process may answer, which is not among the main threads
    point_to_point = operations & BETWEEN_TWO
    if point_to_point and (
        point_to_point != operations or len({_direction(name) for name in operations}) > 1
    ):
        return  # a pipeline, whose stages may wait in different places
    in_collectives = all(state.doing is Doing.COLLECTIVE for state in everyone)
    is_sure = hang.complete and in_collectives
    is_mismatch = len(operations) > 1 or bool(point_to_point)
    confidence = (0.8 if is_sure else 0.55) if is_mismatch else 0.45
    sides = list(zip(hang.sides, _distinct_places(hang.sides), strict=True))
    if hang.culprits:
        wrong = [culprit.state for culprit in hang.culprits]
        others = [state for state in everyone if state not in wrong]
        title = f"{name_ranks(wrong).capitalize()} {'waits' if len(wrong) == 1 else 'wait'} in "
        title += f"{describe_operations(wrong)}, "
        title += f"{'all others' if len(others) > 1 else name_ranks(others)} in "
        title += describe_operations(others)
    elif point_to_point:
        title = f"All ranks wait to {_direction(everyone[0].operation)} and none answers: "
        title += describe_operations(everyone)
    else:
        places = [f"{name_ranks(side)} in {_describe(side[0], at)}" for side, at in sides]
        title = f"The ranks wait in different places: {'; '.join(places[:MOST_SIDES])}"
    critical = is_mismatch and (is_sure or is_long(hang, measures.case))
    yield Finding(
        code="hang-collective-mismatch",
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        confidence=min(confidence, 0.6) if hang.culprits else confidence,
        title=title,
        cause=_explain(hang),
        culprits=tuple(find_culprit(measures, progress.state) for progress in hang.culprits),
        victims=rank_numbers(hang.waiting),
        evidence=(
            *(
                Evidence(
                    name_ranks(side),
                    f"in {side[0].operation or 'a wait'}",
                    "text",
                    None,
                    STACKS,
                    None if at is None else f"{at.file}:{at.line}",
                )
                for side, at in sides[:MOST_ROWS]
            ),
            duration_row(hang, measures.case),
        ),
        fixes=(SAME_COLLECTIVES,) if hang.left_loop is None else (EVEN_BATCHES, SAME_COLLECTIVES),
    )


def _explain(hang: Hang) -> str:
    blocked = "Every rank is blocked in a collective that the others do not call, so they wait for "
    blocked += "each other."
    loop = hang.left_loop
    if loop is None:
        return (
            f"{blocked} Usually a branch that depends on the rank, its data or its loss makes some "
            "ranks skip a collective or call a different one."
        )
    file = frames.short_path(loop.file)
    left = name_ranks([culprit.state for culprit in hang.culprits])
    return (
        f"{blocked} {left.capitalize()} has left the loop in lines {loop.first} to {loop.last} of "
        f"{file}, in which the others still are: it got fewer batches, or a condition ended its "
        "loop."
    )


def _direction(operation: str | None) -> str:
    return "receive" if (operation or "").startswith("recv") else "send"


def _describe(state: ThreadState, at: Frame | None) -> str:
    place = f" at {frames.format_location(at)}" if at is not None else ""
    return f"{state.operation or 'a wait'}{place}"


def _distinct_places(sides: Sequence[Sequence[ThreadState]]) -> list[Frame | None]:
    """The line in which each side waits; if it is the same line, the line that led there."""
    places = [side[0].place for side in sides]
    if len(set(places)) == len(places):
        return places
    trails = [side[0].trail for side in sides]
    for frames_there in zip(*trails, strict=False):
        if len(set(frames_there)) > 1:
            return list(frames_there)
    return places
