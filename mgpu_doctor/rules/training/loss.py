"""A loss that became NaN or infinite: the first step and, if known, the first rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.case.device_times import has_losses, with_device_losses
from mgpu_doctor.case.model import Case, Outcome, Rank
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.culprits import culprit_of
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.rule import Limit, Limits, Rule

WHEN_OVER = 2
"""Bad losses in a row at the end of a finished job; a single one may be the last, odd batch."""
_NUMBER = r"(?<![a-z])(?<!check_)(?:nans?|inf|infinit[ey]|non-?finite|not finite)(?![a-z])"
_RECORDS = "step records"
_THING = r"(?<![a-z])(?:loss|losses|grads?|gradients?|norm)(?![a-z])"
_SAYS = re.compile(
    rf"{_THING}[^\n]{{0,80}}{_NUMBER}|{_NUMBER}[^\n]{{0,80}}{_THING}|returned nan values",
    re.IGNORECASE,
)
"""As in `Loss is nan, stopping training`, `FloatingPointError: gradients are Nan/Inf`, and torch's
own `Function 'MulBackward0' returned nan values in its 0th output`; not as in torch's advice
`set_detect_anomaly(True, check_nan=False)`."""

_STOPS = re.compile(r"stop|abort|exit|quit|terminat|halt|giv(?:e|ing) up", re.IGNORECASE)

CHECK_THE_START = Fix(
    "check-the-start",
    "Check the weights, then the first batch, before training",
    "assert all(p.isfinite().all() for p in model.parameters()) after initialisation or loading; "
    "the same for the batch. If both are finite, torch.autograd.set_detect_anomaly(True) shows the "
    "operation (a logarithm or division of zero, float16 without a GradScaler).",
)


@dataclass(frozen=True, slots=True)
class _Lost:
    """The step from which on a rank's loss is NaN or infinite."""

    step: int
    key: int
    """Collectives so far, or the step; comparable between ranks."""
    steps: int
    """Steps since then, all with a bad loss."""
    last: float | None
    """The last finite loss before it."""
    good_until: int
    """The last step whose loss is known to be a number; -1: none."""
    updates: bool
    """Whether the rank may have updated its weights before."""

    @property
    def earliest(self) -> int:
        """The earliest step at which it may have begun: devices report only some losses."""
        return min(self.step, self.good_until + 1) if self.last is not None else self.step


def _lost(rank: Rank, *, by_sequence: bool) -> _Lost | None:
    steps = with_device_losses(rank)
    known = steps[~np.isnan(steps["loss"])]
    finite = np.flatnonzero(np.isfinite(known["loss"]))
    first = int(finite[-1]) + 1 if len(finite) else 0
    if first >= len(known):
        return None
    row = known[first]
    last = float(known["loss"][first - 1]) if first else None
    key = int(row["group_seq" if by_sequence else "step"])
    good_until = int(known["step"][first - 1]) if first else -1
    return _Lost(
        int(row["step"]),
        key,
        steps=len(known) - first,
        last=last,
        good_until=good_until,
        updates=bool(first or row["step"] > steps["step"][0] or rank.lost_records),
    )


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    case = measures.case
    ranks = {rank.rank: rank for rank in case.ranks if rank.rank is not None}
    reporting = {number: rank for number, rank in ranks.items() if has_losses(rank)}
    by_sequence = bool(reporting) and all(
        (rank.steps["group_seq"] > 0).all() for rank in ranks.values()
    )
    losses_by_rank = {
        number: _lost(rank, by_sequence=by_sequence) for number, rank in reporting.items()
    }
    over = case.job.outcome not in (Outcome.RUNNING, Outcome.UNKNOWN)
    least = WHEN_OVER if over else limits["steps"]
    lost = {n: loss for n, loss in losses_by_rank.items() if loss is not None}
    failed = _explained(measures)
    if not failed and max((loss.steps for loss in lost.values()), default=0) < least:
        return
    first = _first(lost, ranks, by_sequence=by_sequence)
    begin = min(lost.values(), key=lambda lost: lost.key, default=None)
    accused: tuple[Culprit, ...] = ()
    if failed:
        accused = failure_text.culprits_of(failed)
    elif first is not None:
        accused = (culprit_of(measures, first),)
    guilty = {culprit.rank for culprit in accused}
    yield Finding(
        code="loss-nan",
        severity=Severity.CRITICAL if failed else Severity.WARNING,
        confidence=0.99 if lost else 0.9,
        title=_title(case, lost, failed),
        cause=_cause(begin, first, lost, alone=len(reporting) == 1),
        culprits=accused,
        victims=tuple(sorted(number for number in ranks if number not in guilty)),
        evidence=(
            *_evidence(lost, begin),
            *(_end_of(failed[0], case) if failed else ()),
        ),
        since_step=begin.step if begin else failed[0].last_step,
        fixes=_fixes(begin),
    )


def _explained(measures: Measures) -> tuple[RankFailure, ...]:
    """The first failures, if their messages say that the loss or a gradient is NaN or infinite."""
    case = measures.case
    if case.job.outcome in (Outcome.KILLED, Outcome.COMPLETED):
        return ()
    failures = measures.postmortem.first
    if not failures or failures[0].kind not in (FailureKind.EXCEPTION, FailureKind.EXIT):
        return ()
    error = failures[0].error
    message = f"{error.type} {error.message}" if error is not None else ""
    if failures[0].kind is FailureKind.EXIT:
        message = f"{message}\n{_printed(case)}"
    return failures if _SAYS.search(message) else ()


def _printed(case: Case) -> str:
    """The last console line that says that the script stops because of its loss; empty if none."""
    lines = [line for line in case.console.tail if _SAYS.search(line) and _STOPS.search(line)]
    return lines[-1] if lines else ""


def _end_of(failure: RankFailure, case: Case) -> tuple[Evidence, ...]:
    known, printed = failure_text.evidence_of(failure, case), _printed(case)
    if failure.kind is not FailureKind.EXIT or not printed:
        return known
    return (*known, Evidence("the job printed", printed, "text", source="console"))


def _first(
    lost: Mapping[int, _Lost], ranks: Mapping[int, Rank], *, by_sequence: bool
) -> int | None:
    """The rank whose loss was bad while all other ranks' losses were finite in the same step."""
    key = min((loss.key for loss in lost.values()), default=0)
    early = [number for number, loss in lost.items() if loss.key == key]
    if len(early) != 1 or len(ranks) == 1:
        return None
    name = "group_seq" if by_sequence else "step"
    for number, rank in ranks.items():
        then = with_device_losses(rank)["loss"][rank.steps[name] == key]
        if number != early[0] and not (len(then) and np.isfinite(then).all()):
            return None
    return early[0]


def _title(case: Case, lost: Mapping[int, _Lost], failed: tuple[RankFailure, ...]) -> str:
    if failed:
        what = failure_text.death(failed[0])
        return f"{failure_text.who(failed, case)} stopped because the loss is not a number: {what}"
    begin = min(lost.values(), key=lambda lost: lost.step)
    since = f"from step {begin.step}{' or earlier' if begin.earliest < begin.step else ''}"
    where = "" if len(case.ranks) == 1 else f" on {format_ranks(lost)}"
    if len(lost) == len(case.ranks) > 1:
        where = " on every rank"
    return f"The loss is NaN or infinite{where}, {since} to the end"


def _cause(
    begin: _Lost | None, first: int | None, lost: Mapping[int, _Lost], *, alone: bool
) -> str:
    if begin is None:
        return "The script itself found a NaN or infinite value, before any step record shows one."
    if first is not None:
        spread = "; the all-reduce spread it to the others" if len(lost) > 1 else ""
        return (
            f"Rank {first}'s loss was the first, in step {begin.step}, while all others' were "
            f"finite: its batch or its own computation caused it{spread}."
        )
    if not begin.updates:
        return (
            f"It already was in step {begin.step}, the first one recorded and before any update: "
            "the initial or loaded weights, the batch or the loss function itself cause it."
        )
    if alone:
        return "NaN weights give NaN outputs: the model learns nothing after this step."
    return (
        "It began on several ranks in one step, after an update: a gradient that was too large or "
        "NaN, on any rank, went into all ranks' weights. The losses do not show which rank it was. "
        "The model learns nothing after this step."
    )


def _evidence(lost: Mapping[int, _Lost], begin: _Lost | None) -> tuple[Evidence, ...]:
    if begin is None:
        return ()
    return (
        Evidence("first step with a NaN or infinite loss", begin.step, "steps", None, _RECORDS),
        Evidence("steps since", max(loss.steps for loss in lost.values()), "steps", 0),
        Evidence("last loss before it", begin.last, "", None, _RECORDS),
        Evidence("ranks with a NaN or infinite loss", len(lost), "ranks", 0),
    )


def _fixes(begin: _Lost | None) -> tuple[Fix, ...]:
    if begin is not None and not begin.updates:
        return (CHECK_THE_START,)
    before = "" if begin is None else f" written before step {begin.earliest}"
    return (
        Fix(
            "find-the-operation",
            "Find the operation that produces it",
            "with torch.autograd.set_detect_anomaly(True): around forward and backward of the "
            f"steps before. Resume from a checkpoint{before}, as the weights are lost.",
        ),
        Fix(
            "bound-the-update",
            "Limit the effect of a single batch",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True) "
            "before optimizer.step(); a lower learning rate or a longer warm-up; bfloat16 or a "
            "GradScaler instead of bare float16.",
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="loss-nan",
        family="training",
        summary="The loss is NaN or infinite and stays so: the model no longer learns.",
        measured="The value on which each backward pass is called, if it is in host memory. A loss "
        "on a device is copied without waiting, in the steps that the device times. Also the "
        "exception or last message of a script that stopped because of it.",
        thresholds="NaN weights do not recover, so only a loss that stays NaN or infinite to the "
        "end counts. A rank is named if it alone was first, in a step in which every other rank's "
        "loss was finite, or if it raised the exception.",
        fixes="Anomaly detection for the steps before; clipping, a lower learning rate, a check of "
        "the batch; an earlier checkpoint.",
        examine=_examine,
        alternatives=(log_detector("loss-nan"),),
        replaces=("failed-exception",),
        limits=(
            Limit(
                "steps",
                5,
                "steps",
                f"NaN or infinite losses in a row at the end of a running job; {WHEN_OVER} if it "
                "is over. A gradient scaler may skip a few in a row while it looks for its scale "
                "(torch.amp halves it at each).",
            ),
        ),
    ),
)
