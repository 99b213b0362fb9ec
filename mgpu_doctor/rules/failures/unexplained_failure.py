"""A job that failed although no rank shows a cause of its own: a rank that exited early, a killed
helper process, failures whose order is unknown, or nothing at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.collectives.divergence import Kind as Parted
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.postmortem import PostMortem
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.analysis.postmortem.unexplained_failures import list_hosts_without_ranks
from mgpu_doctor.analysis.stacks.hang_analysis import Kind as Stands
from mgpu_doctor.case.model import Case, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks, format_signal
from mgpu_doctor.rules.advice import EVEN_BATCHES
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.hang.stack_evidence import hang_of_kind, have_timed_out

_OVERTAKEN = "had left its process group when the launcher ended the rest of the job"
_UNSEEN = "left its process group and shut down cleanly; its exit code is unknown"
_MOST_LISTED = 4096
"""Ranks: what a recording says about the world size may be anything."""
_SYMPTOMS = ("failed-gloo", "failed-nccl-timeout")


def find_unexplained_failure(measures: Measures) -> Iterable[Finding]:
    """Findings for a failed job if no rank shows its own cause, or if the first one is unknown."""
    case = measures.case
    if several := measures.postmortem.unordered:
        yield _several(several, case)
        return
    if measures.postmortem.early_exits:
        yield _early_exits(measures.postmortem, case)
        return
    echoes = measures.postmortem.failures
    code = case.job.exit_code
    hang = hang_of_kind(measures, Stands.BEHIND)
    if hang is not None and have_timed_out(hang, case):
        return  # it is known whom they waited for
    if measures.postmortem.unmet_wait is not None or measures.postmortem.split_wait is not None:
        return
    parted = measures.divergence
    if echoes and parted is not None and parted.is_blocked and parted.kind is not Parted.BEHIND:
        return  # they waited in different collectives
    if measures.postmortem.silent_hosts:
        return  # the ranks that are not seen were on these
    if echoes:
        yield _unseen(echoes, case)
    elif code and not case.ranks:
        tail = failure_text.printed_before(case)
        message = tail.rpartition("\n")[2].strip()
        yield Finding(
            code="failed-exception",
            severity=Severity.CRITICAL,
            confidence=0.5,
            title=f"The command ended with exit code {code} before any rank existed",
            cause="No process joined a process group or took a training step, and no exception was "
            "printed: the launcher or the script ended by itself."
            + (f" The last line that it printed: {message}" if message else ""),
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


def _early_exits(postmortem: PostMortem, case: Case) -> Finding:
    """Ranks that exited normally while others still trained, who then lost their connection."""
    gone = postmortem.early_exits
    left = [rank.rank for rank in gone if rank.rank is not None]
    others = tuple(rank.rank for rank in case.ranks if rank not in gone and rank.rank is not None)
    who = format_ranks(left)
    step = gone[0].last_step
    steps = "" if step is None else f" after step {step}"
    return Finding(
        code="failed-exception",
        severity=Severity.CRITICAL,
        confidence=0.8,
        title=f"{who.capitalize()} ended normally while {format_ranks(others)} still waited for it",
        cause=f"{who.capitalize()} exited normally{steps}, before any other rank failed. The other "
        "ranks then lost their connection to it. The ranks had unequal numbers of batches, or one "
        "skipped a step or left the loop early.",
        culprits=tuple(Culprit(rank.rank, rank.host, rank.device, rank.pid) for rank in gone),
        victims=others,
        evidence=tuple(
            Evidence(f"exit code of rank {name.rank}", 0, "", source="exit status")
            if name.exit_code == 0
            else Evidence(
                f"rank {name.rank}",
                _UNSEEN if name.state is State.EXITED else _OVERTAKEN,
                "text",
                source="black box",
            )
            for name in gone
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


def find_killed_helper(measures: Measures) -> Iterable[Finding]:
    """A process that is not a rank was killed, and then the ranks failed: a TensorFlow parameter
    server, a store or a launcher's helper."""
    case, failures = measures.case, measures.postmortem.failures
    end = measures.postmortem.killed_helper
    if end is None:
        return
    name = format_signal(end.signal or 0)
    host = case.job.hosts[0] if len(case.job.hosts) == 1 else None
    first = min(failure.at for failure in failures if failure.at is not None)
    yield Finding(
        code="failed-killed",
        severity=Severity.CRITICAL,
        confidence=0.8,
        title=f"A process of the job that is not a rank was ended by {name}, and the ranks failed",
        cause=f"{name} ended process {end.pid}; then the ranks lost a connection, or the launcher "
        "ended them. Parameter servers, stores and launchers' helpers are such processes.",
        culprits=(Culprit(None, host=host, pid=end.pid),),
        victims=tuple(sorted(failure.rank for failure in failures if failure.rank is not None)),
        evidence=(
            Evidence("signal", name, "signal", source="exit status"),
            Evidence(
                "before the first rank failed", round(first - end.at, 3), "s", source="exit status"
            ),
            *_last_lines(case),
        ),
        fixes=(
            Fix(
                "who-killed",
                "Find out what that process was, and who sent the signal",
                "`dmesg -T | grep -iE 'out of memory|killed process'` (or `journalctl -k`) names "
                "the OOM killer's victims with their pids; the launcher's output may show what it "
                "was.",
            ),
        ),
    )


def _last_lines(case: Case) -> tuple[Evidence, ...]:
    lines = failure_text.printed_before(case)
    measure = "last lines that the job printed"
    return (Evidence(measure, lines, "text", source="console"),) if lines else ()


def _unseen(echoes: Sequence[RankFailure], case: Case) -> Finding:
    seen = {rank.rank for rank in case.ranks if rank.state is not State.MISSING}
    missing = [
        rank for rank in range(min(case.job.world_size or 0, _MOST_LISTED)) if rank not in seen
    ]
    hosts = [host.name for host in list_hosts_without_ranks(case)]
    where = f", such as those of {', '.join(hosts)}" if hosts else ""
    return Finding(
        code="failed-exception",
        severity=Severity.CRITICAL,
        confidence=0.4,
        title="The ranks lost their connection to each other, and none shows why",
        cause="Every rank that failed reports a lost connection or was asked to end: a network "
        "failure, or a rank on a host that was not recorded ended first."
        + (f" Not in this recording: {format_ranks(missing)}{where}." if missing else ""),
        victims=tuple(sorted(failure.rank for failure in echoes if failure.rank is not None)),
        evidence=tuple(
            e for failure in echoes[:2] for e in failure_text.evidence_of(failure, case)[:2]
        ),
        fixes=(
            Fix(
                "record-all-hosts",
                "Look at the hosts that are not in this recording",
                "Run every node's launcher under `mgpu-doctor run` and examine the recordings "
                "together: the first failure is on a rank that is not here.",
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
        title=f"{who} failed in different ways, and it is unknown which failed first",
        cause="The logs have no timestamps, so any of these may have come first and caused the "
        "others: "
        + "; ".join(f"{failure_text.who((f,), case)} {failure_text.death(f)}" for f in own[:3]),
        evidence=tuple(
            e for failure in own[:3] for e in failure_text.evidence_of(failure, case)[:1]
        ),
        fixes=(
            Fix(
                "stamp-the-logs",
                "Print timestamps in every line next time",
                "`torchrun --tee 3 --log-dir logs …` keeps all ranks in one console in order; "
                "`logging.basicConfig(format='%(asctime)s %(message)s')`, `kubectl logs "
                "--timestamps` and `docker logs -t` add timestamps.",
            ),
        ),
    )
