"""Ranks that ended normally while the others still trained, who then lost their connection."""

from __future__ import annotations

from mgpu_doctor.analysis.postmortem.postmortem import PostMortem
from mgpu_doctor.analysis.postmortem.rank_failures import last_finished_step
from mgpu_doctor.case.model import Case, State
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


def finding(postmortem: PostMortem, case: Case) -> Finding:
    """The finding about ranks that left early, of which there must be some."""
    gone = postmortem.early_exits
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
            for failure in postmortem.failures[:2]
            if failure.error is not None
        ),
        since_step=step,
        replaces=_SYMPTOMS,
        fixes=(EVEN_BATCHES,),
    )
