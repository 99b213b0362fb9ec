"""Ranks are gone and the others wait for them, by the process table and stacks. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.hang_analysis import LEAST_SECONDS, Kind
from mgpu_doctor.analysis.stacks.progress import Motion
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.falls import falls, obituary
from mgpu_doctor.rules.hang.stood import (
    EVIDENCE_RANKS,
    culprit,
    judged,
    label,
    numbers,
    seen_standing,
    suffering,
    whereabouts,
)


def _ended(one: Motion, case: Case) -> str | None:
    """How the first of them ended, as its zombie and the kernel's log tell."""
    pid, rank = one.posture.pid, one.posture.rank
    end = next((end for end in case.ends if end.pid == pid), None)
    if end is None:
        return None
    if end.signal is None:
        return f"It ended with exit code {end.exit_code}."
    kind = falls.Kind.KILLED if end.signal == signal.SIGKILL else falls.Kind.SIGNAL
    fall = falls.Fall(kind, rank, "process table", 0.97, pid=pid, signal=end.signal)
    return obituary.cause_of(fall, case)


def absent(measures: Measures) -> Iterable[Finding]:
    """`hang-rank-dead` by the process table: ranks are gone, and the others wait for them."""
    standing = judged(measures, Kind.ABSENT)
    if standing is None:
        return
    case = measures.case
    gone = sorted({*standing.missing, *numbers(one.posture for one in standing.culprits)})
    pids = {one.posture.rank: one.posture for one in standing.culprits}
    ends = {end.pid: end for end in case.ends}
    name = format_ranks(gone).capitalize() if gone else "A rank"
    verb = "is gone" if len(gone) <= 1 else "are gone"
    state = {one.posture.process.state for one in standing.culprits}
    rows = []
    for one in standing.culprits[:EVIDENCE_RANKS]:
        end = ends.get(one.posture.pid)
        how = "a zombie" if one.posture.process.state == "Z" else "gone"
        if end is not None and (end.signal is not None or end.exit_code is not None):
            how += f", signal {end.signal}" if end.signal else f", exit code {end.exit_code}"
        rows.append(Evidence(label(one.posture), how, "text", None, "process table"))
    rows += [
        Evidence(f"rank {number}", "no process", "text", None, "process table")
        for number in standing.missing[:EVIDENCE_RANKS]
    ]
    lasts = standing.seconds >= LEAST_SECONDS
    yield Finding(
        code="hang-rank-dead",
        severity=Severity.CRITICAL,
        confidence=0.9 if lasts else 0.75,
        title=f"{name} {verb}{suffering(standing, True, max(1, len(gone)))}",
        cause="Its process has ended, and nobody has ended the others: they will get no answer. "
        + (
            (_ended(standing.culprits[0], case) or "Its parent has not yet asked how it ended.")
            if "Z" in state
            else "How it ended was not seen; its console and the kernel's log (`dmesg -T`) tell."
        ),
        culprits=tuple(
            culprit(measures, pids[number]) if number in pids else Culprit(number)
            for number in gone
        ),
        victims=numbers(standing.waiting),
        evidence=(*rows, *whereabouts(standing)[len(standing.culprits[:EVIDENCE_RANKS]) :])
        + ((seen_standing(standing, case),) if lasts else ()),
        fixes=(
            Fix(
                "end-the-job",
                "End the job: waiting helps no more",
                "`kill " + " ".join(str(one.pid) for one in standing.waiting[:64]) + "`, and see "
                "in what that rank printed last why it ended.",
            ),
            Fix(
                "supervise",
                "Let a launcher end the others when one dies",
                "`torchrun` and `mpirun` do so; give `srun` `--kill-on-bad-exit=1`.",
            ),
        ),
    )
