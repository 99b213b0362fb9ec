"""Ranks that ended normally while the others still trained, who then lost their connection."""

from __future__ import annotations

from mgpu_doctor.case.model import Case, Outcome, Rank, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.rules import words
from mgpu_doctor.rules.falls import Kind, falls, last_step

EVEN_BATCHES = Fix(
    "even-batches",
    "Give every rank the same number of steps",
    "Use `DistributedSampler(dataset, drop_last=True)`, or wrap the loop in `with "
    "torch.distributed.algorithms.join.Join([model]):`. Where ranks decide by themselves when to "
    "stop (a time limit, early stopping), let rank 0 decide and broadcast it.",
)
_SYMPTOMS = ("failed-gloo", "failed-nccl-timeout")


def left_early(case: Case) -> tuple[Rank, ...]:
    """Empty, too, where a rank is not known: it may have been the one that ended first."""
    echoes = falls(case)
    if case.job.outcome is not Outcome.FAILED or not echoes:
        return ()
    if any(fall.kind is not Kind.ECHO for fall in echoes):
        return ()
    times = [one.error.at for one in echoes if one.error is not None and one.error.at is not None]
    # By black boxes: processes take seconds to end, in no order. Who lost its connection, too, and
    # caught that, left its wait at that moment and not before.
    gone = [
        rank
        for rank in case.ranks
        if rank.state is State.EXITED
        and rank.exit_code == 0
        and rank.now is not None
        and rank.now.phase != "wait"
        and rank.now.since < min(times, default=0.0)
    ]
    known = len(gone) + len(echoes) == (case.job.world_size or len(case.ranks)) == len(case.ranks)
    return tuple(gone) if known else ()


def finding(gone: tuple[Rank, ...], case: Case) -> Finding:
    """`gone`: as `left_early` tells them."""
    left = [rank.rank for rank in gone if rank.rank is not None]
    others = tuple(rank.rank for rank in case.ranks if rank not in gone and rank.rank is not None)
    who = words.ranks(left)
    step = last_step(gone[0])
    steps = "" if step is None else f" after step {step}"
    return Finding(
        code="failed-exception",
        severity=Severity.CRITICAL,
        confidence=0.8,
        title=f"{who.capitalize()} ended normally while {words.ranks(others)} still waited for it",
        cause=f"{who.capitalize()} ended with exit code 0{steps}, before any other rank failed; "
        "what the others raised is the connection that they lost by it. Ranks had unequal numbers "
        "of batches, or one left the loop early.",
        culprits=tuple(Culprit(one.rank, one.host, one.device, one.pid) for one in gone),
        victims=others,
        evidence=tuple(
            Evidence(f"exit code of rank {one.rank}", 0, "", source="exit status") for one in gone
        )
        + tuple(
            Evidence(
                f"rank {fall.rank} then raised",
                fall.error.message,
                "text",
                source=fall.source,
            )
            for fall in falls(case)[:2]
            if fall.error is not None
        ),
        since_step=step,
        replaces=_SYMPTOMS,
        fixes=(EVEN_BATCHES,),
    )
