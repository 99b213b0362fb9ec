"""The job stands, by what its processes do: who is waited for. From stacks, with nothing installed
in the job beforehand."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.hang_analysis import LEAST_SECONDS, MAJORITY, NAPS, Kind, Standing
from mgpu_doctor.analysis.stacks.progress import Motion
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.findings import Finding, Fix, Severity
from mgpu_doctor.rules.hang import blocked_rank
from mgpu_doctor.rules.hang.split_hang import apart
from mgpu_doctor.rules.hang.stack_evidence import (
    UNRECORDED,
    culprit,
    is_long,
    judged,
    names,
    numbers,
    seen_standing,
    stood,
    suffering,
    whereabouts,
)
from mgpu_doctor.rules.hang.stall import LEAST_SECONDS as LONG
from mgpu_doctor.rules.hang.stall import LEAST_STEPS
from mgpu_doctor.rules.rule import Limits, Rule

LONG_CONFIDENCE = 0.93


def _behind(measures: Measures, _: Limits) -> Iterable[Finding]:
    standing = judged(measures, Kind.BEHIND)
    if standing is not None:
        yield from late(standing, measures, "hang-rank-behind")
    yield from apart(measures)


def late(standing: Standing, measures: Measures, code: str) -> Iterable[Finding]:
    """Ranks that stand, and others wait for them."""
    case = measures.case
    long = is_long(standing, case)
    grades = [_grade(one, standing, long) for one in standing.culprits]
    known = [one for one in grades if one is not None]
    if not known or len(known) < len(grades):
        return
    lasting = all(one.lasting for one in known)
    if not standing.waiting and not all(map(_alone, standing.culprits)):
        return
    if not lasting and not long and _may_all_work(standing):
        return
    many = len(standing.culprits)
    first = max(standing.culprits, key=lambda one: blocked_rank.gravity(one.posture.point.doing))
    name = names(one.posture for one in standing.culprits)
    victims = numbers(standing.waiting)
    act = blocked_rank.does(first)
    alike = len({blocked_rank.does(one) for one in standing.culprits}) == 1
    verb = act if many == 1 else f"stand: {'each' if alike else 'the first'} {act}"
    certain = lasting or long
    yield Finding(
        code=code,
        severity=Severity.CRITICAL if certain else Severity.WARNING,
        confidence=min(one.confidence for one in known),
        title=f"{name} {verb}{suffering(standing, certain, many)}",
        cause=_cause(standing, first, certain=certain, seconds=stood(standing, case)),
        culprits=tuple(culprit(measures, one.posture) for one in standing.culprits),
        victims=victims,
        evidence=(*whereabouts(standing), seen_standing(standing, case)),
        fixes=(
            *blocked_rank.fixes(first),
            *_later(lasting, first, over=case.job.ended is not None),
        ),
    )


def _alone(one: Motion) -> bool:
    """Wrong by itself, though nobody is seen to wait: any other wait may be for work to do."""
    doing = one.posture.point.doing
    deadlock = one.posture.worker is not None and doing is Doing.LOCK
    return deadlock or doing in (Doing.STOPPED, Doing.NATIVE)


def _may_all_work(standing: Standing) -> bool:
    """A wait for a GPU is no sign yet that others are waited for: the step may be a long one, and
    who sleeps meanwhile may have no part in it."""
    return bool(standing.waiting) and all(
        one.doing in (Doing.DEVICE, Doing.OWN) for one in standing.waiting
    )


def _grade(one: Motion, standing: Standing, long: bool) -> blocked_rank.Grade | None:
    found = blocked_rank.grade(one, standing.looks, {other.pid for other in standing.waiting})
    if not long or (found is not None and found.lasting):
        return found
    return blocked_rank.Grade(False, LONG_CONFIDENCE if found is not None else 0.7)


def _cause(standing: Standing, first: Motion, *, certain: bool, seconds: float) -> str:
    one = first.posture.point
    who = f"rank {first.posture.rank}" if first.posture.rank is not None else "it"
    said = []
    if one.doing is Doing.STOPPED:
        said.append(f"The process of {who} is in state T and gets no processor time.")
    elif one.trail:
        calls = " → ".join(f"{frames.name(f)} {frames.told(f)}" for f in one.trail[-4:])
        said.append(f"It came there by {calls}.")
    if standing.waiting:
        verb = "does not come to" if certain else "has not yet come to"
        said.append(f"It {verb} what the others wait in.")
    if not certain:
        said.append(
            f"That was seen for {seconds:.1f} s, so it may still end by itself: look again."
        )
    return " ".join(said)


def _later(lasting: bool, first: Motion, *, over: bool) -> tuple[Fix, ...]:
    if lasting or first.posture.point.doing is Doing.STOPPED:
        return ()
    if over:
        place = (blocked_rank.site(first.posture) or "that place").rpartition("/")[2]
        return (
            Fix(
                "look-there",
                f"Read why it does not go on at {place}",
                "Bound what it waits for or repeats there, and raise an error at the bound: that "
                "ends the job at once, with a traceback. If it stands again, `mgpu-doctor "
                "diagnose` meanwhile tells whether it has moved.",
            ),
        )
    return (
        Fix(
            "look-again",
            "See whether it ends by itself",
            "Run `mgpu-doctor diagnose` on the job again: what still stands in the same line then "
            "will hardly end.",
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="hang-rank-behind",
        family="hang",
        summary="Ranks never come to a collective that the others wait in.",
        measured="The stacks of all ranks and of their data-loader workers are read from outside, "
        "several times. What stands in the same line and uses no processor time stands; what "
        "waits in a collective, a receive or the backward pass waits for others, and whoever "
        "stands elsewhere is the one they wait for, however many they are. What it does there is "
        "told by its innermost frames, its system call and Python's lock (GIL). A stopped rank is "
        "told at the first look. Where all wait in the same place, nobody is blamed.",
        thresholds=f"All of the job must stand for {LEAST_SECONDS:g} s; one that sleeps again and "
        f"again in one line may use {NAPS:.0%} of a core, if those who wait for it use none. A "
        "rank that cannot go on by itself (stopped, deadlocked, holding the GIL while it waits) is "
        "critical at once; one that sleeps, reads or runs on is a warning until it has stood for "
        f"{LONG:.0f} s and {LEAST_STEPS:.0f} median steps, or for {UNRECORDED:.0f} s where steps "
        "were not recorded; for how long a thread has not run, the scheduler tells "
        "(/proc/PID/sched). Saving, compiling and importing are told only then. All in "
        "collectives, but "
        f"different ones: blamed is one alone against at least {MAJORITY} that "
        "agree, where the job has no smaller groups; else both places are told.",
        fixes="By what it does: release the lock, bound the wait, mend the data set, `kill -CONT`.",
        examine=_behind,
        needs=("standing",),
    ),
)
