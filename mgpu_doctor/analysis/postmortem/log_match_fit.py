"""Whom a sign is about, and whether it fits those that are known to have failed first. Pure."""

from __future__ import annotations

from mgpu_doctor.analysis.machines.host_devices import on_bus
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, Error
from mgpu_doctor.signatures.known_signatures import SIGNATURES

KNOWN = {signature.id: signature for signature in SIGNATURES}

GENERIC_CODES = frozenset({"failed-exception", "failed-killed", "failed-signal"})
"""Codes that say how a rank ended, not why: any other code that fits says it better."""
KILLING = frozenset(
    {
        "failed-hangup",
        "failed-interrupted",
        "failed-killed",
        "failed-preempted",
        "failed-time-limit",
        "oom-host",
    }
)
"""What ends processes by a signal, without a word of their own."""
OUTSIDE = frozenset(
    {"oom-host", "gpu-lost", "gpu-xid", "gpu-ecc", "nvlink-down", "pcie-degraded"}
    | {"failed-preempted", "failed-time-limit"}
)
"""What the kernel, the driver or the scheduler says: it may be behind any end."""
LEAST_SAID = 8
"""Characters of a text that is looked for in an exception: shorter ones are everywhere."""
SAME_EVENT = 60
"""Lines within which a rank's signs are of one event: a traceback and what native code adds."""
BETWEEN = frozenset({"hang-collective-mismatch", "hang-rank-behind", "failed-horovod-stall"})
"""What one rank says of others: who prints it is not the culprit."""


def rank_of(sign: LogMatch, case: Case) -> int | None:
    """Whom the text is about: the rank, pid or GPU that it names, else who printed it; of what is
    wrong between ranks nobody, unless the text itself names who is missing."""
    code = KNOWN[sign.signature].code
    if code == "hang-collective-mismatch" or KNOWN[sign.signature].mutual:
        return None
    if (named := sign.values.get("rank", "")).isdecimal():
        return int(named)
    if (named := sign.values.get("pid", "")).isdecimal():
        for rank in case.ranks:
            if rank.pid == int(named):
                return rank.rank
    if len(there := on_bus(case, sign.values.get("pci", ""))) == 1:
        return there[0]
    if case.job.launcher == "srun" and (named := sign.values.get("task", "")).isdecimal():
        return int(named)  # every task is a rank: no torchrun in between
    return None if code in BETWEEN else sign.rank


def fits(sign: LogMatch, failures: tuple[RankFailure, ...], case: Case) -> bool:
    """Whether it may be why the first ranks failed."""
    if not failures or any(in_error(sign, failure) for failure in failures):
        return True
    code, rank = KNOWN[sign.signature].code, rank_of(sign, case)
    if any(beside(sign, failure, rank) for failure in failures):
        return True
    kinds = {failure.kind for failure in failures}
    if code in OUTSIDE and rank is None:
        return True
    if kinds <= {FailureKind.KILLED, FailureKind.VANISHED}:
        return code in KILLING and rank in (None, *(failure.rank for failure in failures))
    if rank is None:
        return FailureKind.EXCEPTION not in kinds
    return rank in {failure.rank for failure in failures} or all(
        failure.rank is None for failure in failures
    )


def beside(sign: LogMatch, failure: RankFailure, rank: int | None) -> bool:
    """Printed right where the failed rank's exception was, and by nobody else."""
    if failure.order is None or rank not in (None, failure.rank):
        return False
    return abs(sign.number - failure.order) <= SAME_EVENT


def in_error(sign: LogMatch, failure: RankFailure) -> bool:
    """The failed rank's own exception holds the very text."""
    return failure.error is not None and says(failure.error, sign)


def says(error: Error, sign: LogMatch) -> bool:
    text, message = sign.text.strip()[:200], error.message.strip().partition("\n")[0][:200]
    if len(message) > LEAST_SAID and message in sign.text:
        return True
    return len(text) > LEAST_SAID and text in f"{error.traceback}\n{error.message}"


def one_event(sign: LogMatch, first: LogMatch) -> bool:
    near = abs(sign.number - first.number) <= SAME_EVENT
    ranks = {sign.rank, first.rank} - {None}
    return sign.source == first.source and len(ranks) <= 1 and near
