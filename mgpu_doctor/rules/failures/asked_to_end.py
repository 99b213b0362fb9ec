"""The job was asked to end: its terminal closed, or it was interrupted with Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.failure_order import list_victims
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.xid_evidence import XIDS_OF_ENDS
from mgpu_doctor.rules.rule import Limits, Rule

_HANGUP = "SIGHUP ends what was started in a terminal when the terminal or its SSH session closes."


def _hangup(measures: Measures, _: Limits) -> Iterable[Finding]:
    case = measures.case
    if _asked_by(case, signal.SIGHUP):
        yield Finding(
            code="failed-hangup",
            severity=Severity.CRITICAL,
            confidence=0.97,
            title="The job received SIGHUP: its terminal or connection closed",
            cause=f"{_HANGUP} No rank caused this.",
            evidence=(_signal(signal.SIGHUP),),
            fixes=_keep_it_running(case),
        )
        return
    culprits = measures.postmortem.culprits
    if culprits and culprits[0].signal == signal.SIGHUP:
        yield Finding(
            code="failed-hangup",
            severity=Severity.CRITICAL,
            confidence=culprits[0].confidence,
            title=f"{failure_text.who(culprits, case)} {failure_text.death(culprits[0])}",
            cause=_HANGUP,
            culprits=failure_text.culprits_of(culprits),
            victims=list_victims(case, culprits),
            evidence=failure_text.evidence_of(culprits[0], case),
            since_step=culprits[0].last_step,
            fixes=_keep_it_running(case),
        )


def _interrupted(measures: Measures, _: Limits) -> Iterable[Finding]:
    case = measures.case
    if _asked_by(case, signal.SIGINT):
        yield Finding(
            code="failed-interrupted",
            severity=Severity.INFO,
            confidence=0.97,
            title="The job was interrupted",
            cause="A user pressed Ctrl-C, or a process sent SIGINT. No rank caused this.",
            evidence=(_signal(signal.SIGINT),),
            fixes=(
                Fix(
                    "resume",
                    "Start it again where it stopped",
                    "Load the newest complete checkpoint. An interrupted save is incomplete: write "
                    "checkpoints to a temporary name and rename them.",
                ),
            ),
        )


def _asked_by(case: Case, number: signal.Signals) -> bool:
    """Whether this signal ended the job as a whole."""
    job = case.job
    if job.outcome is not Outcome.KILLED:
        return False
    return job.asked == number.name if job.asked is not None else job.signal == number


def _signal(number: signal.Signals) -> Evidence:
    return Evidence("signal that asked the job to end", number.name, "signal", source="run")


def _keep_it_running(case: Case) -> tuple[Fix, ...]:
    torchrun = (
        " torchrun handles SIGHUP again even under `nohup`: start it with `setsid`, which detaches "
        "it from the terminal, or with `--signals-to-handle SIGTERM,SIGINT` if it has that option."
    )
    return (
        Fix(
            "keep-running",
            "Start it so that it outlives the terminal",
            f"In `tmux` or `screen`, or as `nohup {failure_text.command_of(case.job)} > train.log "
            f"2>&1 &`.{torchrun if case.job.launcher == 'torchrun' else ''}",
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="failed-hangup",
        family="failed",
        summary="The terminal or connection from which the job was started closed, and ended it.",
        measured="`run` or the launcher reported SIGHUP for the whole job, or SIGHUP ended the "
        "rank that failed first.",
        thresholds="No threshold: the system's own report decides.",
        fixes="Start it in tmux or with `setsid nohup`, or submit it to a scheduler.",
        examine=_hangup,
        alternatives=(log_detector("failed-hangup"), XIDS_OF_ENDS),
        replaces=("failed-killed", "failed-exception", "failed-signal"),
    ),
    Rule(
        code="failed-interrupted",
        family="failed",
        summary="The job was interrupted (Ctrl-C). For information only: nothing is wrong.",
        measured="`run` or the launcher reported SIGINT for the whole job.",
        thresholds="No threshold: the system's own report decides.",
        fixes="Resume from the newest complete checkpoint.",
        examine=_interrupted,
        alternatives=(log_detector("failed-interrupted"), XIDS_OF_ENDS),
    ),
)
