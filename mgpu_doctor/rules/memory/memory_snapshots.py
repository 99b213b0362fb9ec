"""torch memory snapshots: whether a failed request lacked memory or a contiguous piece, and whose
code holds the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.allocator_snapshots import NO_STACK, Refused, Snapshot
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_count, format_share
from mgpu_doctor.rules.advice import PLAN_MEMORY
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.rule import Limits, Rule

SMALL = 1 << 20
"""kSmallSize of CUDACachingAllocator.cpp: smaller requests come from a separate pool."""


def _find_out_of_memory(measures: Measures, _: Limits) -> Iterable[Finding]:
    for snapshot in measures.case.snapshots:
        refused = _last_refused(snapshot)
        if refused is None or is_fragmented(snapshot, refused):
            continue
        holder = snapshot.holders[0] if snapshot.holders else None
        held = (
            f"; {holder.place} holds {format_bytes(holder.size)}"
            if holder and holder.place != NO_STACK
            else ""
        )
        yield Finding(
            code="oom-device",
            severity=Severity.CRITICAL,
            confidence=0.8 if snapshot.moved else 0.95,
            title=f"A device ran out of memory: allocating {format_bytes(refused.wanted)} "
            f"failed{_place(refused)}{held}",
            cause=_cause(snapshot, refused),
            evidence=tuple(_evidence(snapshot, refused)),
            fixes=(PLAN_MEMORY,),
        )


def _cause(snapshot: Snapshot, refused: Refused) -> str:
    free = "" if refused.free is None else f" {format_bytes(refused.free)} of the device were free."
    used = f"{format_bytes(snapshot.taken)} of the {format_bytes(snapshot.reserved)} that torch had"
    if snapshot.moved:
        return (
            f"The allocation failed.{free} Memory was allocated or freed before the snapshot was "
            f"taken, in which {used} reserved are in use; whether memory was fragmented is unknown."
            " Take the snapshot where the exception is first caught, or with "
            "torch._C._cuda_attach_out_of_memory_observer."
        )
    return f"The allocation failed.{free} {used} reserved were in use."


def _find_fragmentation(measures: Measures, _: Limits) -> Iterable[Finding]:
    for snapshot in measures.case.snapshots:
        refused = _last_refused(snapshot)
        if refused is None or not is_fragmented(snapshot, refused):
            continue
        yield Finding(
            code="oom-fragmentation",
            severity=Severity.CRITICAL,
            confidence=0.9,
            title=f"Allocating {format_bytes(refused.wanted)} failed{_place(refused)}, although "
            f"{format_bytes(snapshot.free)} of torch's reserved memory were free, in "
            f"{format_count(snapshot.pieces, 'piece')}",
            cause=f"The largest free piece is {format_bytes(snapshot.largest)}. Long-lived blocks "
            "lie between short-lived ones.",
            evidence=tuple(_evidence(snapshot, refused)),
            fixes=(
                Fix(
                    "expandable-segments",
                    "Use expandable segments",
                    "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True for the job. Padding "
                    "batches to a few different lengths also helps.",
                ),
            ),
        )


def _find_holders(measures: Measures, _: Limits) -> Iterable[Finding]:
    for snapshot in measures.case.snapshots:
        if snapshot.refused:
            continue
        title = (
            f"{format_bytes(snapshot.taken)} of {format_bytes(snapshot.reserved)} reserved memory "
            "are in use"
            if snapshot.reserved
            else "torch held no GPU memory when the snapshot was taken"
        )
        if snapshot.holders:
            most = snapshot.holders[0]
            title += f"; {most.place} holds most: {format_bytes(most.size)}"
        yield Finding(
            code="memory-held",
            severity=Severity.INFO,
            confidence=1.0,
            title=title,
            cause="The snapshot contains no failed request. It shows which of the user's code "
            "holds memory.",
            evidence=tuple(_evidence(snapshot, None)),
        )


def _last_refused(snapshot: Snapshot) -> Refused | None:
    return snapshot.refused[-1] if snapshot.refused else None


def _place(refused: Refused) -> str:
    return "" if refused.place == NO_STACK else f" at {refused.place}"


def is_fragmented(snapshot: Snapshot, refused: Refused) -> bool:
    """Whether the free pieces would hold the request together but none alone, and memory has not
    changed since."""
    is_large = refused.wanted > SMALL
    return is_large and not snapshot.moved and snapshot.free >= refused.wanted > snapshot.largest


def _evidence(snapshot: Snapshot, refused: Refused | None) -> Iterator[Evidence]:
    source = f"memory snapshot {snapshot.source}"
    if refused is not None:
        yield Evidence("requested", refused.wanted, "bytes", refused.free, source, refused.place)
    yield Evidence("in use, of torch's reserved memory", snapshot.taken, "bytes", None, source)
    yield Evidence("reserved", snapshot.reserved, "bytes", None, source)
    yield Evidence("largest free piece", snapshot.largest, "bytes", snapshot.free, source)
    for holder in snapshot.holders:
        share = holder.size / snapshot.taken if snapshot.taken else 0.0
        measure = f"held, in {format_count(holder.blocks, 'block')} ({format_share(share)})"
        yield Evidence(measure, holder.size, "bytes", None, source, holder.place)


_MEASURED = (
    "From a snapshot written by `torch.cuda.memory._dump_snapshot(file)`: segments and blocks, and "
    "the last failed request if history was recorded. The file is a pickle; it is read without "
    "Python's pickle."
)
_UNVERIFIED = "a snapshot of a real GPU: those in the tests were made by hand in torch's format"
RULES: tuple[Rule, ...] = (
    Rule(
        code="oom-device",
        family="memory",
        summary="A GPU ran out of memory.",
        measured=_MEASURED,
        thresholds="The free pieces together are smaller than the request.",
        fixes="`mgpu-doctor plan` ranks settings that make it fit.",
        examine=_find_out_of_memory,
        alternatives=(log_detector("oom-device"),),
        unverified=_UNVERIFIED,
    ),
    Rule(
        code="oom-fragmentation",
        family="memory",
        summary="Enough GPU memory is free, but not in one piece.",
        measured=_MEASURED,
        thresholds="The free pieces together would hold the request and the largest would not; "
        "only if nothing was allocated or freed between the request and the snapshot.",
        fixes="`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, and batches of few lengths.",
        examine=_find_fragmentation,
        alternatives=(log_detector("oom-fragmentation"),),
        unverified=_UNVERIFIED,
    ),
    Rule(
        code="memory-held",
        family="memory",
        summary="What holds the memory of a device, by the code that allocated it.",
        measured=_MEASURED,
        thresholds="None: reported if no request failed.",
        fixes="Nothing to fix. `mgpu-doctor plan` shows settings that need less memory.",
        examine=_find_holders,
        unverified=_UNVERIFIED,
    ),
)
