"""Restarts of a job: the work that was lost, the time without a step, and how often to save."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.restarts import Restart, Restarts, find_restarts
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_count, format_seconds
from mgpu_doctor.rules.rule import Limit, Limits, Rule

SHARE = Limit(
    "cost",
    0.05,
    "fraction",
    "share of the job's time from which restarts are a warning. As for every finding.",
)
MOST_SHOWN = 5
"""Restarts whose costs are listed: the newest."""
SOURCE = "black boxes"


def find_restart_cost(measures: Measures, limits: Limits) -> Iterable[Finding]:
    restarts = find_restarts(measures.case)
    if restarts is None:
        return
    share = restarts.share
    yield Finding(
        code="restart-cost",
        severity=Severity.WARNING if share >= limits["cost"] else Severity.INFO,
        confidence=1.0,
        title=_describe(restarts),
        cause=_explain(restarts),
        evidence=tuple(_list_evidence(restarts)),
        cost=Cost(step_fraction=share),
        fixes=tuple(_list_fixes(restarts)),
    )


def _describe(restarts: Restarts) -> str:
    count = format_count(len(restarts.restarts), "restart")
    lost = restarts.lost
    parts = [f"{format_seconds(restarts.down)} without a step"]
    if lost:
        parts.append(f"{format_seconds(lost)} of work after the last checkpoint")
    return f"{count} cost at least {' and '.join(parts)}"


def _explain(restarts: Restarts) -> str:
    sentences = [
        "Without a step: from the first rank's failure to the first completed step of the next "
        "attempt, so it includes the launcher, imports, loading and warm-up."
    ]
    if any(restart.lost is None for restart in restarts.restarts):
        where = "" if restarts.lost is None else " in some of the attempts"
        sentences.append(f"No checkpoint was seen{where}, so it is unknown how much work was lost.")
    elif restarts.lost:
        sentences.append(
            "The steps after the last checkpoint have to be repeated, if the job resumes from it."
        )
    sentences += [
        f"Restart {restart.number} {_describe_hosts(restart)}."
        for restart in restarts.restarts[-MOST_SHOWN:]
        if restart.left or restart.joined
    ]
    errors = sorted({restart.error for restart in restarts.restarts if restart.error})
    if errors:
        sentences.append(f"The attempts ended with {', '.join(errors)}.")
    return " ".join(sentences)


def _describe_hosts(restart: Restart) -> str:
    left, joined = (_name_hosts(hosts) for hosts in (restart.left, restart.joined))
    if left and joined:
        return f"replaced {left} with {joined}"
    return f"continued without {left}" if left else f"added {joined}"


def _name_hosts(hosts: Sequence[str]) -> str:
    shown = " and ".join(hosts[:MOST_SHOWN])
    more = len(hosts) - MOST_SHOWN
    return shown + (f" and {more} more" if more > 0 else "")


def _list_evidence(restarts: Restarts) -> Iterable[Evidence]:
    yield Evidence("time that restarts cost, at least", restarts.share, "fraction", None, SOURCE)
    for restart in restarts.restarts[-MOST_SHOWN:]:
        yield from _list_costs(restart)


def _list_costs(restart: Restart) -> Iterable[Evidence]:
    name = f"restart {restart.number}"
    end = "the next step" if restart.trains else "now or the next failure, without a step"
    yield Evidence(f"{name}: failure to {end}", restart.down, "s", None, SOURCE)
    if restart.lost_steps is not None:
        steps = "steps after the last checkpoint"
        yield Evidence(f"{name}: {steps}", restart.lost_steps, "steps", restart.steps, SOURCE)
    if restart.lost:
        yield Evidence(f"{name}: work after it", restart.lost, "s", None, SOURCE)


def _list_fixes(restarts: Restarts) -> Iterable[Fix]:
    lost, save = restarts.lost, restarts.save_seconds
    if save is None:
        yield Fix(
            "save-checkpoints",
            "Save checkpoints, and resume from the newest",
            "`torch.save` or `torch.distributed.checkpoint.save` every few minutes; if you save in "
            'another way, mark it: `with mgpu_doctor.phase("checkpoint"):`.',
        )
    elif lost:
        between = (restarts.until - restarts.began) / len(restarts.restarts)
        best = format_seconds(math.sqrt(2 * save * between))
        yield Fix(
            "save-more-often",
            f"Save about every {best}",
            f"Then saving and repeating cost least together: sqrt(2 × {format_seconds(save)} per "
            f"checkpoint × {format_seconds(between)} between failures) (Young 1974). Restarts so "
            "far are few: the true time between failures may differ by a factor of two or more.",
        )
    if restarts.down > (lost or 0.0):
        yield Fix(
            "restart-faster",
            "Shorten the time until the next step",
            "Keep the environment, the data and the newest checkpoint on local disks, and the "
            "caches of compiled code between attempts (of torch.compile: TORCHINDUCTOR_CACHE_DIR).",
        )
    yield Fix(
        "fix-failures",
        "Find out why the attempts ended",
        "`mgpu-doctor diagnose` on the output of the attempts that failed.",
    )


RULES = (
    Rule(
        code="restart-cost",
        family="failed",
        summary="Restarts cost time: repeated work and time without a step.",
        measured="Black boxes carry the number of the restart. Lost work is the time from the end "
        "of the last save that the probe saw to the first failure; if no save was seen, it is "
        "unknown. The time without a step ends with the first completed step of the next attempt.",
        thresholds="Every restart is listed.",
        fixes="Find out why the job fails; save at the interval at which saving and repeating cost "
        "least together; shorten the start.",
        examine=find_restart_cost,
        limits=(SHARE,),
    ),
)
