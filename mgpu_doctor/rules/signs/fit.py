"""Whom a sign is about, and whether it fits those that are known to have fallen first. Pure."""

from __future__ import annotations

from mgpu_doctor.analysis.machines.host_devices import on_bus
from mgpu_doctor.case.model import Case, Error
from mgpu_doctor.case.signs import Sign
from mgpu_doctor.rules.falls.falls import Fall, Kind
from mgpu_doctor.signatures.catalogue import SIGNATURES

KNOWN = {signature.id: signature for signature in SIGNATURES}

GENERAL = frozenset({"failed-exception", "failed-killed", "failed-signal"})
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


def rank_of(sign: Sign, case: Case) -> int | None:
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


def fits(sign: Sign, falls: tuple[Fall, ...], case: Case) -> bool:
    """Whether it may be why the first ranks fell."""
    if not falls or any(in_error(sign, fall) for fall in falls):
        return True
    code, rank = KNOWN[sign.signature].code, rank_of(sign, case)
    if any(beside(sign, fall, rank) for fall in falls):
        return True
    kinds = {fall.kind for fall in falls}
    if code in OUTSIDE and rank is None:
        return True
    if kinds <= {Kind.KILLED, Kind.VANISHED}:
        return code in KILLING and rank in (None, *(fall.rank for fall in falls))
    if rank is None:
        return Kind.EXCEPTION not in kinds
    return rank in {fall.rank for fall in falls} or all(fall.rank is None for fall in falls)


def beside(sign: Sign, fall: Fall, rank: int | None) -> bool:
    """Printed right where the fallen rank's exception was, and by nobody else."""
    if fall.order is None or rank not in (None, fall.rank):
        return False
    return abs(sign.number - fall.order) <= SAME_EVENT


def in_error(sign: Sign, fall: Fall) -> bool:
    """The fallen rank's own exception holds the very text."""
    return fall.error is not None and says(fall.error, sign)


def says(error: Error, sign: Sign) -> bool:
    text, message = sign.text.strip()[:200], error.message.strip().partition("\n")[0][:200]
    if len(message) > LEAST_SAID and message in sign.text:
        return True
    return len(text) > LEAST_SAID and text in f"{error.traceback}\n{error.message}"


def one_event(sign: Sign, first: Sign) -> bool:
    near = abs(sign.number - first.number) <= SAME_EVENT
    ranks = {sign.rank, first.rank} - {None}
    return sign.source == first.source and len(ranks) <= 1 and near
