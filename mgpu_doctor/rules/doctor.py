"""How much of the step time the phases explain."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.phase_shares import LongSteps
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.rule import Limits, Rule

LEAST = 0.9


def _low(measures: Measures, _: Limits) -> Iterable[Finding]:
    if measures.coverage is None or measures.coverage >= LEAST:
        return
    long = measures.long_steps
    yield Finding(
        code="coverage-low",
        severity=Severity.INFO,
        confidence=1.0,
        title=f"The phases explain {format_share(measures.coverage)} of the step time",
        cause="The rest is `other`: Python between the phases, a model that is called without "
        "gradients and without a wrapper (rollouts, sampling, an average of the weights), or work "
        "that the probe does not know. Statements about speed apply to the explained part only."
        f"{_describe_long(long)}",
        evidence=(
            Evidence(
                "share of wall time explained by phases",
                measures.coverage,
                "fraction",
                LEAST,
                "step records after warm-up",
            ),
            *(() if long is None else _long_rows(long)),
        ),
        fixes=(
            Fix(
                "find-other",
                "Find out what runs outside the phases",
                "`py-spy record --pid PID --duration 30`, with the pid of any rank, shows which "
                'lines of the training loop take the time. `with mgpu_doctor.phase("evaluation"):` '
                "around rollouts gives them a phase.",
            ),
        ),
    )


def _describe_long(long: LongSteps | None) -> str:
    """A sentence about a few steps that take much of the time; begins with a space."""
    if long is None:
        return ""
    when = "" if long.period is None else f", every {long.period:.0f} steps"
    return (
        f" {format_share(long.steps)} of the steps take {format_share(long.time)} of the time: "
        f"{format_seconds(long.seconds)} each{when}. Work that is not done in every step, such as "
        "an evaluation, is usually the reason."
    )


def _long_rows(long: LongSteps) -> Iterable[Evidence]:
    source = "step records after warm-up"
    yield Evidence("share of the time in long steps", long.time, "fraction", None, source)
    yield Evidence("long steps among all", long.steps, "fraction", None, source)


RULES = (
    Rule(
        code="coverage-low",
        family="doctor",
        summary="The phases explain less than 90 % of the ranks' wall time.",
        measured="Seconds of all phases except `other`, and of the garbage collector outside "
        "them, divided by the wall time of the steps "
        "after warm-up and of gaps between them. A few long steps that take much of the time are "
        "described.",
        thresholds="90 %: the built-in trainers reach 95 % and more.",
        fixes="Look at what runs between the phases; report a loop that the probe does not see.",
        examine=_low,
        needs=("coverage",),
    ),
)
