"""Explains jobs that failed although no rank shows a cause of its own: ranks that exited early or
never joined the process group, or another process of the job that was killed. Pure. `postmortem`
calls it; it must name no rank if a rank's end is unknown."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Sequence

from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.analysis.postmortem.secondary_failures import is_rendezvous_timeout
from mgpu_doctor.case.model import AskedHost, Case, Outcome, ProcessEnd, Rank, State

SOON_AFTER = 60.0
"""Seconds after the end of a helper process within which the ranks fail because of it."""
DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL)
"""Signals that do not occur in the normal end of a helper process, as SIGPIPE does in a shell's
pipe."""


def find_absent_ranks(first: Sequence[RankFailure], case: Case) -> tuple[Rank, ...]:
    """Ranks that never joined, in a failed job in which others timed out waiting for them and no
    rank failed by itself; none if whole hosts are missing. `first`: the first failures."""
    if not _timed_out(first, case) or find_unjoined_hosts(first, case):
        return ()
    return tuple(rank for rank in case.ranks if rank.state is State.MISSING)


def find_unjoined_hosts(first: Sequence[RankFailure], case: Case) -> tuple[AskedHost, ...]:
    """Hosts that the user named and that have no rank, in a failed job in which ranks are missing
    and the others timed out waiting for them. `first`: the first failures."""
    if not _timed_out(first, case) or case.job.world_size is None:
        return ()
    return tuple(list_hosts_without_ranks(case))


def find_silent_hosts(
    failures: Sequence[RankFailure], first: Sequence[RankFailure], case: Case
) -> tuple[AskedHost, ...]:
    """Hosts of a failed job of which nothing is recorded and on which nothing answers, if that is
    why the job failed: every rank that is seen failed only because of others. `failures`, `first`:
    of ranks.

    Empty if ranks of yet other hosts are not seen, because these may have failed first, and if
    fewer hosts are seen than not: then those that are seen may have been cut off."""
    lost_others = any(failure.error is not None for failure in failures)
    if (
        case.job.outcome is not Outcome.FAILED
        or first
        or not lost_others
        or _timed_out(first, case)
    ):
        return ()
    present = [rank for rank in case.ranks if rank.state is not State.MISSING]
    absent = list_hosts_without_ranks(case)
    seen = {rank.host for rank in present}
    most = max((rank.metadata.local_world_size or 1 for rank in present), default=1)
    unseen = (case.job.world_size or math.inf) - len(present)
    if not all(host.silent for host in absent) or unseen > most * len(absent):
        return ()
    return tuple(absent) if len(absent) <= len(seen) else ()


def _timed_out(first: Sequence[RankFailure], case: Case) -> bool:
    return case.job.outcome is Outcome.FAILED and not first and bool(find_rendezvous_timeouts(case))


def list_hosts_without_ranks(case: Case) -> list[AskedHost]:
    """The hosts that the user named and that have no rank of the job, as far as can be seen. None
    if no more ranks are missing than hosts with ranks lack: a host that the user named may have
    nothing to do with the job."""
    present = [rank for rank in case.ranks if rank.state is not State.MISSING]
    local = {rank.host: rank.metadata.local_world_size or 0 for rank in present}
    counts = Counter(rank.host for rank in present)
    expected = sum(max(count, local[host]) for host, count in counts.items())
    if case.job.world_size is not None and expected >= case.job.world_size:
        return []
    return [host for host in case.asked_hosts if host.node is None or host.node not in counts]


def find_rendezvous_timeouts(case: Case) -> list[Rank]:
    """Ranks whose exception says that others did not join the process group in time."""
    return [
        rank for rank in case.ranks if rank.error is not None and is_rendezvous_timeout(rank.error)
    ]


def find_early_exits(failed: Sequence[RankFailure], case: Case) -> tuple[Rank, ...]:
    """Ranks that exited normally while others still trained, if that is why the job failed.

    Also empty if the end of any rank is unknown, because that one may have exited first."""
    if case.job.outcome is not Outcome.FAILED or any(
        failure.kind is not FailureKind.SECONDARY for failure in failed
    ):
        return ()
    times = [
        failure.error.at
        for failure in failed
        if failure.error is not None and failure.error.at is not None
    ]
    first = min(times, default=0.0)
    unclean = [rank for rank in case.ranks if not _in_order(rank)]
    # A rank that was in the broken collective left because of it, not before.
    broken = min(map(_broken, unclean), default=math.inf)
    gone = [
        rank
        for rank in case.ranks
        if rank not in unclean and _left(rank) < first and _entered(rank) < broken
    ]
    known = len(gone) + len(unclean) == (case.job.world_size or len(case.ranks)) == len(case.ranks)
    return tuple(gone) if known and unclean else ()


def find_killed_helper(
    failed: Sequence[RankFailure], first: Sequence[RankFailure], case: Case
) -> ProcessEnd | None:
    """Returns the job's first process that was killed or crashed in the minute before any rank of a
    failed job failed. None if there is none, if a rank failed by itself, if it is unknown when the
    ranks failed, or if the job outlived such an end earlier, as a job does that ends its helpers by
    SIGKILL. Data-loader workers do not count: their rank fails by itself."""
    times = [failure.at for failure in failed if failure.at is not None]
    if case.job.outcome is not Outcome.FAILED or first or not times or len(times) < len(failed):
        return None
    ranks = {rank.pid for rank in (*case.ranks, *case.earlier)}
    ends = [
        end
        for end in case.ends
        if end.pid not in ranks and end.signal in DEADLY and end.at < min(times)
    ]
    helper = min(ends, key=lambda end: end.at, default=None)
    if helper is None or min(times) - helper.at > SOON_AFTER:
        return None
    return helper


def _in_order(rank: Rank) -> bool:
    """Whether the rank ended normally: by exit code 0, or it left its process group and shut down
    without an error but its exit code is unknown, or its launcher sent it SIGTERM while it was
    exiting (processes take seconds to exit, in any order)."""
    orderly = rank.state is State.EXITED and rank.exit_code == 0
    unseen = rank.state is State.EXITED and rank.exit_code is None
    overtaken = (rank.signal == signal.SIGTERM or unseen) and rank.error is None
    return (
        bool(orderly or (overtaken and _when_left(rank)))
        and rank.now is not None
        and rank.now.phase != "wait"
    )


def _left(rank: Rank) -> float:
    """When the rank left its process group, or its last wait: a rank that lost its connection and
    caught the error did so at that moment, not earlier."""
    return _when_left(rank) or (rank.now.since if rank.now is not None else math.inf)


def _when_left(rank: Rank) -> float | None:
    return max((event.at for event in rank.events if event.kind == "left"), default=None)


def _entered(rank: Rank) -> int:
    """The sequence number of the last collective that the rank entered; 0: unknown."""
    return (rank.now.group_seq or 0) if rank.now is not None else 0


def _broken(rank: Rank) -> float:
    """The earliest collective that may have failed on the rank; infinite: unknown. Collectives of
    its finished steps had ended, so it is a later one, perhaps one whose begin was not seen, as in
    DDP's backward pass."""
    is_newest = len(rank.steps) and rank.last_step == rank.steps["step"][-1]
    over = int(rank.steps["group_seq"][-1]) if is_newest else 0
    entered = _entered(rank)
    return max(entered, over + 1) if entered or over else math.inf
