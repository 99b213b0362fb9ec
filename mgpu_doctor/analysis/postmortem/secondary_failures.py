"""Which endings are only echoes: a rank that failed because another one was already gone."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from functools import cache

from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, Error
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from mgpu_doctor.signatures.signature import Role, Signature

CLOSING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals by which launchers and people ask a process to end."""

ASKED_TO_END = frozenset({"KeyboardInterrupt", "SIGTERMException", "SignalException"})
"""Exceptions into which Python, Lightning and torch turn such a signal."""

LOST_PEER = tuple(
    text.lower()
    for text in (
        # gloo/transport/tcp: a peer's socket closed under us
        "Connection closed by peer",
        "Connection reset by peer",
        "Connection refused",
        "Broken pipe",
        "Connection was likely closed",
        # NCCL: ncclRemoteError and what torch adds to it
        "remote process exited",
        "ncclRemoteError",
        "NCCL communicator was aborted",
        # torch's TCPStore when the rank that hosted it is gone
        "failed to recv, got 0 bytes",
        "recvValue failed",
        "sendBytes failed",
        "The client socket has failed to connect",
        "Connection to the store",
        # torch.distributed.init_process_group, when not everybody came in time
        "wait timeout after",
        "waiting for clients",
        "connectFullMesh failed",
        # a data-loader worker that went down with the rank's process group
        "is killed by signal: Terminated",
        # a collective that no rank answered
        "Timed out waiting",
        "Watchdog caught collective operation timeout",
        "operation timeout",
    )
)
"""Error texts of survivors when a peer is gone: gloo, NCCL and torch 2.13's TCPStore."""


WAITED_IN_VAIN = ("wait timeout after", "waiting for clients", "connectfullmesh failed")
"""The same, where a rank gave up waiting for others to join the process group."""


WAITED = frozenset({"failed-gloo", "failed-nccl-timeout"})
"""Codes of ranks that waited for others in a collective."""
_NATIVE = frozenset({"RuntimeError", "DistBackendError"})
_DETAIL_LINES = 3
"""Exceptions of native code name what happened in the lines after the first, such as Ascend's error
codes and NCCL's last error. Later lines may be others."""
_ABORTED = re.compile(r"\b(?:Aborted|SIGABRT|exitcode: -6)\b")


def is_rendezvous_timeout(error: Error) -> bool:
    """Whether the error says that other ranks did not join the process group in time."""
    message = error.message.lower()
    return any(text in message for text in WAITED_IN_VAIN)


def find_aborts_for_others(case: Case) -> Callable[[int | None], bool]:
    """Whether a rank's own text reports only other ranks: torch's NCCL watchdog ends a process by
    SIGABRT when a collective was not answered, and so does a C++ exception of a lost peer. Text
    without a label counts for every rank."""
    causes: set[int | None] = set()
    symptoms: set[int | None] = set()
    for sign in case.signs:
        signature = _signatures().get(sign.signature)
        if signature is None or signature.severity != "critical" or reports_abort(sign, signature):
            continue
        if signature.role is Role.CAUSE:
            causes.add(sign.rank)
        elif sign.rank is not None or signature.code in WAITED:
            symptoms.add(sign.rank)

    def aborted_for_others(rank: int | None) -> bool:
        if rank is None:
            return bool(symptoms) and not causes
        return bool({rank, None} & symptoms) and not {rank, None} & causes

    return aborted_for_others


def reports_abort(sign: LogMatch, signature: Signature) -> bool:
    """Whether it only says that a process ended by SIGABRT."""
    return signature.code == "failed-signal" and bool(_ABORTED.search(sign.text))


def is_secondary_failure(error: Error) -> bool:
    """Whether the error reports another rank's end, or a request to end."""
    if error.type.rpartition(".")[2] in ASKED_TO_END:
        return True
    message = error.message.lower()
    return any(text in message for text in LOST_PEER) or _is_symptom(error)


def _is_symptom(error: Error) -> bool:
    """Whether a signature calls it a symptom: something went wrong elsewhere or before."""
    first, *rest = error.message.strip().split("\n")[:_DETAIL_LINES]
    native = error.type.rpartition(".")[2] in _NATIVE
    texts = [f"{error.type}: {first}", *(rest if native else ())]
    return any(
        needle in text and pattern.search(text) for text in texts for needle, pattern in _symptoms()
    )


@cache
def _signatures() -> dict[str, Signature]:
    return {signature.id: signature for signature in SIGNATURES}


@cache
def _symptoms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (signature.needle, re.compile(signature.pattern))
        for signature in SIGNATURES
        if signature.role is Role.SYMPTOM
    )
