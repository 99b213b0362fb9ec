"""A host of the job that stopped at once: what it recorded ends without an end of any process, or
is not here at all, and nothing answers there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind
from mgpu_doctor.case.model import AskedHost, Case, LostHost, Outcome, Rank, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.hang.rendezvous_hang import name_hosts
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.signatures.signature import Role

SOURCE = "recording of the host"
_CONFIDENCE = 0.8
_UNRECORDED = 0.7
"""If nothing of what the host recorded is here. A choice."""


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    yield from _find_lost_hosts(measures)
    fatal = measures.postmortem.fatal_log_cause
    silent = measures.postmortem.silent_hosts
    if silent and (fatal is None or fatal.role is Role.SYMPTOM):
        yield _describe_silent(silent, measures)


def _find_lost_hosts(measures: Measures) -> Iterable[Finding]:
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
        fixes=(_look_at(host.name),),
    )


def _describe_silent(hosts: Sequence[AskedHost], measures: Measures) -> Finding:
    """Hosts of which nothing is recorded here."""
    case, names = measures.case, [host.name for host in hosts]
    ranks = [rank for rank in case.ranks if rank.state is not State.MISSING]
    unseen = (case.job.world_size or 0) - len(ranks)  # it is known, else no host would be silent
    were, they = ("was", "it") if len(names) == 1 else ("were", "they")
    failure = next(one for one in measures.postmortem.failures if one.error is not None)
    return Finding(
        code="host-lost",
        severity=Severity.CRITICAL,
        confidence=_UNRECORDED,
        title=f"{name_hosts(hosts)} {were} lost",
        cause=f"Nothing answers there any more, nothing that {they} recorded is here, and the "
        f"ranks of all other hosts failed only because they lost their connection: {they} crashed, "
        f"{were} switched off or restarted, or {were} cut off from the network"
        f"{', or the others were' if len(names) == len({rank.host for rank in ranks}) else ''}.",
        culprits=tuple(Culprit(None, name) for name in names),
        victims=tuple(rank.rank for rank in ranks if rank.rank is not None),
        evidence=(
            Evidence("ranks of which nothing is recorded", unseen, "", source="black boxes"),
            *(
                Evidence(f"host {host.name}, asked at the end", host.trouble, "text", source="run")
                for host in hosts
                if host.trouble is not None
            ),
            *failure_text.evidence_of(failure, case)[:2],
        ),
        fixes=tuple(map(_look_at, names)),
    )


def _look_at(name: str) -> Fix:
    return Fix(
        "look-at-the-host",
        f"Find out what happened to {name}",
        f"`scontrol show node {name}` and `sacct -j JOBID` (Slurm), `kubectl describe "
        "node` (Kubernetes); on the host `last -x reboot`, `journalctl -k -b -1 -e` and "
        "`ipmitool sel list`. Leave it out until that is known: `sbatch --exclude="
        f"{name}`.",
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
        "Copies of black boxes that lie elsewhere are at most 30 s old. If nothing of the host is "
        "in the recording: nothing answered there when the job had failed (ssh or srun found no "
        "route, or timed out), all ranks of the other hosts failed only because of others, and no "
        "further host is missing.",
        thresholds="Its part counts as abandoned after 5 s and twice the interval of its samples "
        "(1 to 15 s), as the first node sees it when its own processes have ended; later after "
        "120 s. The clocks of the hosts do not matter. Hosts of which nothing is recorded are not "
        "named if they are more than the others, which may then have been cut off themselves; "
        f"confidence {_UNRECORDED}, else {_CONFIDENCE}.",
        fixes="Look at the scheduler's record of the node, at the kernel's log of its last boot, "
        "and at its management controller; leave the host out until the cause is known.",
        examine=_examine,
        replaces=("failed-killed", "failed-exception", "hang-rank-dead"),
        unverified="Tested with hosts that were namespaces of one machine, all of whose processes "
        "were killed at once; not with a machine that failed.",
    ),
)
