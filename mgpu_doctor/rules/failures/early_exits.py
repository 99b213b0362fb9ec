"""Ranks that ended normally while the others still trained, who then lost their connection."""

from __future__ import annotations

import math
import signal

from mgpu_doctor.analysis.postmortem.rank_failures import (
    FailureKind,
    find_rank_failures,
    last_finished_step,
)
from mgpu_doctor.case.model import Case, Outcome, Rank, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks

EVEN_BATCHES = Fix(
    "even-batches",
    "Give every rank the same number of steps",
    "Use `DistributedSampler(dataset, drop_last=True)`, or, of DistributedDataParallel only, wrap "
    "the loop in `with torch.distributed.algorithms.join.Join([model]):`. Where ranks decide by "
    "themselves when to stop (a time limit, early stopping), let rank 0 decide and broadcast it.",
)
_OVERTAKEN = "had left its process group when the launcher ended what was left of the job"
_UNSEEN = "left its process group and said goodbye; nobody saw its exit code"
_SYMPTOMS = ("failed-gloo", "failed-nccl-timeout")


def find_early_exits(case: Case) -> tuple[Rank, ...]:
    """Empty, too, where a rank is not known: it may have been the one that ended first."""
    failed = find_rank_failures(case)
    if case.job.outcome is not Outcome.FAILED or any(
        one.kind is not FailureKind.SECONDARY for one in failed
    ):
        return ()
    times = [one.error.at for one in failed if one.error is not None and one.error.at is not None]
    first = min(times, default=0.0)
    stood = [rank for rank in case.ranks if not _in_order(rank)]
    # Who was in the collective that broke has left because of that, not before.
    broken = min(map(_broken, stood), default=math.inf)
    gone = [
        rank
        for rank in case.ranks
        if rank not in stood and _left(rank) < first and _entered(rank) < broken
    ]
    known = len(gone) + len(stood) == (case.job.world_size or len(case.ranks)) == len(case.ranks)
    return tuple(gone) if known and stood else ()


def _in_order(rank: Rank) -> bool:
    """A launcher may have ended it on its way out: processes take seconds to end, in no order. Who
    left its group and said goodbye did so in order, too, where nobody saw its exit code."""
    orderly = rank.state is State.EXITED and rank.exit_code == 0
    unseen = rank.state is State.EXITED and rank.exit_code is None
    overtaken = (rank.signal == signal.SIGTERM or unseen) and rank.error is None
    return (
        bool(orderly or (overtaken and _when_left(rank)))
        and rank.now is not None
        and rank.now.phase != "wait"
    )


def _left(rank: Rank) -> float:
    """When it left its process group, or its last wait. Who lost its connection, too, and caught
    that, did so at that moment and not before."""
    return _when_left(rank) or (rank.now.since if rank.now is not None else math.inf)


def _when_left(rank: Rank) -> float | None:
    return max((event.at for event in rank.events if event.kind == "left"), default=None)


def _entered(rank: Rank) -> int:
    """The last collective that it entered; 0: not known."""
    return (rank.now.group_seq or 0) if rank.now is not None else 0


def _broken(rank: Rank) -> float:
    """The earliest collective that may have broken under it. What its finished steps hold was over:
    then it is one that was not seen to begin, as those of DDP's backward. Infinite: not known."""
    over = int(rank.steps["group_seq"][-1]) if len(rank.steps) else 0
    entered = _entered(rank)
    return max(entered, over + 1) if entered or over else math.inf


def finding(gone: tuple[Rank, ...], case: Case) -> Finding:
    """`gone`: as `find_early_exits` tells them."""
    left = [rank.rank for rank in gone if rank.rank is not None]
    others = tuple(rank.rank for rank in case.ranks if rank not in gone and rank.rank is not None)
    who = format_ranks(left)
    step = last_finished_step(gone[0])
    steps = "" if step is None else f" after step {step}"
    return Finding(
        code="failed-exception",
        severity=Severity.CRITICAL,
        confidence=0.8,
        title=f"{who.capitalize()} ended normally while {format_ranks(others)} still waited for it",
        cause=f"{who.capitalize()} left in good order{steps}, before any other rank failed; "
        "what the others raised is the connection that they lost by it. Ranks had unequal numbers "
        "of batches, or one left out a step or left the loop early.",
        culprits=tuple(Culprit(one.rank, one.host, one.device, one.pid) for one in gone),
        victims=others,
        evidence=tuple(
            Evidence(f"exit code of rank {one.rank}", 0, "", source="exit status")
            if one.exit_code == 0
            else Evidence(
                f"rank {one.rank}",
                _UNSEEN if one.state is State.EXITED else _OVERTAKEN,
                "text",
                source="black box",
            )
            for one in gone
        )
        + tuple(
            Evidence(
                f"rank {failure.rank} then raised",
                failure.error.message,
                "text",
                source=failure.source,
            )
            for failure in find_rank_failures(case)[:2]
            if failure.error is not None
        ),
        since_step=step,
        replaces=_SYMPTOMS,
        fixes=(EVEN_BATCHES,),
    )
