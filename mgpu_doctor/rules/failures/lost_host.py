"""A host of the job that stopped at once: what it recorded ends without an end of any process."""

from __future__ import annotations

import time
from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind
from mgpu_doctor.case.model import Case, LostHost, Outcome, Rank
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.rule import Limits, Rule

SOURCE = "recording of the host"
_CONFIDENCE = 0.8


def _find_lost_hosts(measures: Measures, _: Limits) -> Iterable[Finding]:
    case = measures.case
    if case.job.outcome is Outcome.COMPLETED:
        return  # the job went on: only the mgpu-doctor of that host was killed
    lost = {host.name: host for host in case.lost_hosts}
    own = {
        (failure.host, failure.rank)
        for failure in measures.postmortem.first
        if failure.kind not in (FailureKind.VANISHED, FailureKind.SECONDARY)
    }
    if any(host not in lost for host, _ in own):
        return  # a rank of another host failed by itself
    for name, host in lost.items():
        ranks = [rank for rank in case.ranks if rank.host == name]
        gone = [rank for rank in ranks if _has_vanished(rank)]
        if ranks and len(gone) == len(ranks):
            yield _describe(host, gone, case)


def _has_vanished(rank: Rank) -> bool:
    """Whether nothing says how the rank ended."""
    known = (rank.exit_code, rank.signal, rank.error)
    return not rank.took_leave and not rank.is_here and all(fact is None for fact in known)


def _describe(host: LostHost, ranks: list[Rank], case: Case) -> Finding:
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    who = f"{format_ranks(numbers)} " if numbers else ""
    when = "" if host.seen is None else f" about {_format_time(host.seen)}"
    until = case.job.ended
    before = None if None in (until, host.seen) else round((until or 0.0) - (host.seen or 0.0), 1)
    steps = [rank.last_step for rank in ranks if rank.last_step is not None]
    return Finding(
        code="host-lost",
        severity=Severity.CRITICAL,
        confidence=_CONFIDENCE,
        title=f"Host {host.name} was lost{when}",
        cause=f"What it recorded stops there, without the end of {who}or of the mgpu-doctor that "
        "watched them. The host crashed, was switched off or restarted, was cut off from the "
        "network, or everything of the job on it was killed at once.",
        culprits=tuple(Culprit(rank.rank, rank.host, rank.device, rank.pid) for rank in ranks),
        victims=tuple(
            rank.rank for rank in case.ranks if rank.host != host.name and rank.rank is not None
        ),
        evidence=(
            Evidence("ranks of the host that have no end", len(ranks), "", source=SOURCE),
            *(
                [Evidence("from its last record to the job's end", before, "s", source=SOURCE)]
                if before is not None and before >= 0
                else []
            ),
        ),
        since_step=max(steps, default=None),
        fixes=(
            Fix(
                "look-at-the-host",
                f"Find out what happened to {host.name}",
                f"`scontrol show node {host.name}` and `sacct -j JOBID` (Slurm), `kubectl describe "
                "node` (Kubernetes); on the host `last -x reboot`, `journalctl -k -b -1 -e` and "
                "`ipmitool sel list`. Leave it out until that is known: `sbatch --exclude="
                f"{host.name}`.",
            ),
        ),
    )


def _format_time(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(moment)) + " UTC"


RULES: tuple[Rule, ...] = (
    Rule(
        code="host-lost",
        family="failed",
        summary="A host of the job stopped at once: all of its ranks, and the mgpu-doctor on it.",
        measured="The host's part of a recording of several nodes has no end, it was not "
        "written any more while the other hosts continued, and none of its ranks left a record of "
        "how it ended. "
        "Copies of black boxes that lie elsewhere are at most 30 s old.",
        thresholds="Its part counts as abandoned after 5 s and twice the interval of its samples "
        "(1 to 15 s), as the first node sees it when its own processes have ended; later after "
        "120 s. The clocks of the hosts do not matter.",
        fixes="Look at the scheduler's record of the node, at the kernel's log of its last boot, "
        "and at its management controller; leave the host out until the cause is known.",
        examine=_find_lost_hosts,
        replaces=("failed-killed", "failed-exception", "hang-rank-dead"),
        unverified="Tested with hosts that were namespaces of one machine, all of whose processes "
        "were killed at once; not with a machine that failed.",
    ),
)
