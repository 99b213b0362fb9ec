"""All ranks wait, but not for the same, by their stacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.hang_analysis import Kind
from mgpu_doctor.analysis.stacks.thread_states import Posture
from mgpu_doctor.analysis.stacks.wait_classifier import BETWEEN_TWO, Doing
from mgpu_doctor.case.looks import Frame
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.hang.stack_evidence import (
    EVIDENCE_RANKS,
    SOURCE,
    culprit,
    is_long,
    judged,
    names,
    numbers,
    operations_of,
    seen_standing,
)


def apart(measures: Measures) -> Iterable[Finding]:
    """`hang-collective-mismatch`. The flight recorder tells it better where it is there."""
    standing = judged(measures, Kind.APART)
    if standing is None or measures.divergence is not None:
        return
    everyone = [one for side in standing.sides for one in side]
    operations = {one.operation for one in everyone}
    between_two = operations & BETWEEN_TWO
    if between_two and (between_two != operations or len({_verb(one) for one in operations}) > 1):
        return  # a pipeline: stages rightly wait in different places
    long = is_long(standing, measures.case)
    sure = standing.complete and all(one.doing is Doing.COLLECTIVE for one in everyone)
    different = len(operations) > 1 or bool(between_two)
    confidence = (0.8 if sure else 0.55) if different else 0.45
    accused = standing.culprits
    marked = list(zip(standing.sides, _parting(standing.sides), strict=True))
    if accused:
        place = operations_of([accused[0].posture])
        title = f"Rank {accused[0].posture.rank} waits in {place}, all others in "
        title += operations_of(standing.sides[0])
    elif between_two:
        title = f"All ranks wait to {_verb(everyone[0].operation)}, and nobody is there to answer: "
        title += operations_of(everyone)
    else:
        said = [f"{names(side, small=True)} in {_what(side[0], at)}" for side, at in marked[:3]]
        title = f"The ranks wait in different places: {'; '.join(said)}"
    yield Finding(
        code="hang-collective-mismatch",
        severity=Severity.CRITICAL if different and (sure or long) else Severity.WARNING,
        confidence=min(confidence, 0.6) if accused else confidence,
        title=title,
        cause="All ranks stand, each in a collective that the others do not call: they wait for "
        "each other. Usually a branch that depends on the rank, its data or its loss leads some "
        "of them past a collective, or to another one.",
        culprits=tuple(culprit(measures, one.posture) for one in accused),
        victims=numbers(standing.waiting),
        evidence=(
            *(
                Evidence(
                    names(side, small=True),
                    f"in {side[0].operation or 'a wait'}",
                    "text",
                    None,
                    SOURCE,
                    None if at is None else f"{at.file}:{at.line}",
                )
                for side, at in marked[:EVIDENCE_RANKS]
            ),
            seen_standing(standing, measures.case),
        ),
        fixes=(
            Fix(
                "same-collectives",
                "Call the same collectives in the same order on all ranks",
                "Compare the two places: whatever decides between them must come out alike on all "
                "ranks (all_reduce the decision first). `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes the "
                "first mismatch an error that names both.",
            ),
        ),
    )


def _verb(operation: str | None) -> str:
    return "receive" if (operation or "").startswith("recv") else "send"


def _what(one: Posture, at: Frame | None) -> str:
    return f"{one.operation or 'a wait'}{f' at {frames.told(at)}' if at is not None else ''}"


def _parting(sides: Sequence[Sequence[Posture]]) -> list[Frame | None]:
    """The line in which each side waits; where it is the same one, the line that led there."""
    places = [side[0].place for side in sides]
    if len(set(places)) == len(places):
        return places
    ways = [side[0].trail for side in sides]
    apart = next((at for at, row in enumerate(zip(*ways, strict=False)) if len(set(row)) > 1), None)
    return places if apart is None else [way[apart] for way in ways]
