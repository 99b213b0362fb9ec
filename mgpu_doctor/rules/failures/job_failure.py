"""What ended the job: the first rank that failed by itself, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mgpu_doctor.analysis.collectives.divergence import Kind as Parted
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.failure_order import list_victims
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.analysis.stacks.hang_analysis import Kind as Stands
from mgpu_doctor.case.model import Case, Outcome
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.failures import early_exits, failure_fixes, failure_text, killed_helper
from mgpu_doctor.rules.hang.stack_evidence import hang_of_kind, have_timed_out
from mgpu_doctor.rules.rule import Limits, Rule

CODES = {
    FailureKind.EXCEPTION: "failed-exception",
    FailureKind.EXIT: "failed-exception",
    FailureKind.KILLED: "failed-killed",
    FailureKind.VANISHED: "failed-killed",
    FailureKind.SECONDARY: "failed-killed",  # a lone SIGTERM before all others
    FailureKind.SIGNAL: "failed-signal",
}


def _examine(code: str) -> Callable[[Measures, Limits], Iterable[Finding]]:
    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        case = measures.case
        if culprits := measures.postmortem.culprits:
            if CODES[culprits[0].kind] == code:
                yield _finding(code, culprits, case)
        elif (
            case.job.outcome is Outcome.FAILED
            and not measures.postmortem.first
            and not measures.postmortem.absent
        ):
            echoes = measures.postmortem.failures
            end = killed_helper.before(echoes, case)
            if end is not None and code == "failed-killed":
                yield killed_helper.finding(end, echoes, case)
            elif end is None and code == "failed-exception":
                yield from _untold(measures)

    return examine


def _finding(code: str, culprits: tuple[RankFailure, ...], case: Case) -> Finding:
    first = culprits[0]
    return Finding(
        code=code,
        severity=Severity.CRITICAL,
        confidence=first.confidence,
        title=f"{failure_text.who(culprits, case)} {failure_text.death(first)}",
        cause=failure_text.cause_of(first, case),
        culprits=failure_text.culprits_of(culprits),
        victims=() if first.everyone else list_victims(case, culprits),
        evidence=failure_text.evidence_of(first, case),
        since_step=first.last_step,
        fixes=failure_fixes.fixes_of(first, case.job),
    )


def _untold(measures: Measures) -> Iterable[Finding]:
    """The job failed and no rank shows a cause of its own, or nobody knows whose was first."""
    case = measures.case
    if several := measures.postmortem.unordered:
        yield _several(several, case)
        return
    if measures.postmortem.early_exits:
        yield early_exits.finding(measures.postmortem, case)
        return
    echoes = measures.postmortem.failures
    code = case.job.exit_code
    hang = hang_of_kind(measures, Stands.BEHIND)
    if hang is not None and have_timed_out(hang, case):
        return  # whom they waited for was seen
    parted = measures.divergence
    if echoes and parted is not None and parted.is_blocked and parted.kind is not Parted.BEHIND:
        return  # they waited in different collectives
    if echoes:
        yield _unseen(echoes, case)
    elif code and not case.ranks:
        tail = failure_text.printed_before(case)
        last_line = tail.rpartition("\n")[2].strip()
        yield Finding(
            code="failed-exception",
            severity=Severity.CRITICAL,
            confidence=0.5,
            title=f"The command ended with exit code {code} before any rank existed",
            cause="No process joined a process group or took a training step, and no exception was "
            "printed: the launcher or the script ended by itself."
            + (f" The last line that it printed: {last_line}" if last_line else ""),
            evidence=(
                Evidence("exit code", code, "code", 0, "exit status of the command"),
                *([Evidence("last lines printed", tail, "text", source="console")] if tail else []),
            ),
            fixes=(
                Fix(
                    "run-it-bare",
                    "Run the command alone and read what it prints",
                    f"`{failure_text.command_of(case.job)}; echo $?`",
                ),
            ),
        )


def _unseen(echoes: Sequence[RankFailure], case: Case) -> Finding:
    return Finding(
        code="failed-exception",
        severity=Severity.CRITICAL,
        confidence=0.4,
        title="The ranks lost their connection to each other, and none shows why",
        cause="Every rank that failed tells of a lost connection or was asked to end: a "
        "network failure, or a rank on a host that was not recorded ended first.",
        victims=tuple(sorted(failure.rank for failure in echoes if failure.rank is not None)),
        evidence=tuple(
            e for failure in echoes[:2] for e in failure_text.evidence_of(failure, case)[:2]
        ),
        fixes=(
            Fix(
                "record-all-hosts",
                "Look at the hosts that are not in this recording",
                "Run every node's launcher under `mgpu-doctor run` and examine the "
                "recordings together: the first failure is on a rank that is not here.",
            ),
        ),
    )


def _several(own: Sequence[RankFailure], case: Case) -> Finding:
    ranks = [failure.rank for failure in own if failure.rank is not None]
    who = format_ranks(ranks).capitalize() if ranks else "Several processes"
    return Finding(
        code="failed-exception",
        severity=Severity.CRITICAL,
        confidence=0.5,
        title=f"{who} failed in different ways, and nothing tells which was first",
        cause="The logs bear no time stamps, so any of these may have come first and the others "
        "after it: "
        + "; ".join(f"{failure_text.who((f,), case)} {failure_text.death(f)}" for f in own[:3]),
        evidence=tuple(
            e for failure in own[:3] for e in failure_text.evidence_of(failure, case)[:1]
        ),
        fixes=(
            Fix(
                "stamp-the-logs",
                "Let every line bear its time next time",
                "`torchrun --tee 3 --log-dir logs …` keeps all ranks in one console in order; "
                "`logging.basicConfig(format='%(asctime)s %(message)s')`, `kubectl logs "
                "--timestamps` and `docker logs -t` write stamps.",
            ),
        ),
    )


_FIRST = (
    "Endings are merged from exit statuses seen from outside, the ranks' own black boxes and the "
    "console (torchrun's summary, mp.spawn, tracebacks). A rank that lost its connection or got "
    "the launcher's SIGTERM only echoes another's end. Of the others the earliest is named, also "
    "where the launcher calls another one the root. Where all who failed lost their connection and "
    "one had ended with exit code 0 before, that one left too early. A job that was asked to end "
    "has no culprit."
)
_CONFIDENCE = (
    "Confidence by source: the rank's own record 0.99, its exit status 0.97, the console alone "
    "0.8, a process that vanished without any of them 0.6. "
)

RULES: tuple[Rule, ...] = (
    Rule(
        code="failed-exception",
        family="failed",
        summary="A rank raised an exception that nobody caught, or ended itself with an exit code "
        "other than 0, and with it the job.",
        measured=_FIRST,
        thresholds=_CONFIDENCE,
        fixes="Mend the line it names; the ranks that lost their connection need no change.",
        examine=_examine("failed-exception"),
    ),
    Rule(
        code="failed-killed",
        family="failed",
        summary="A rank was killed from outside, and with it the job.",
        measured=_FIRST + " A rank that vanished without exit code and exception counts as killed. "
        "Where ranks failed only because of others, a process of the job that is no rank and was "
        f"killed or crashed in the {failure_text.BEFORE_DEATH:.0f} s before is told.",
        thresholds=_CONFIDENCE + f"Host memory at or above {failure_text.FULL_MEMORY:.0%} in the "
        f"{failure_text.BEFORE_DEATH:.0f} s before points to the OOM killer (earlyoom and "
        "systemd-oomd act at 90 to 95 %).",
        fixes="Find out who sent the signal (`dmesg -T`, the scheduler's log); use less memory.",
        examine=_examine("failed-killed"),
    ),
    Rule(
        code="failed-signal",
        family="failed",
        summary="A rank crashed (SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL), and with it the job.",
        measured=_FIRST,
        thresholds=_CONFIDENCE,
        fixes="See where: `PYTHONFAULTHANDLER=1`, a core dump; check versions and /dev/shm.",
        examine=_examine("failed-signal"),
    ),
)
