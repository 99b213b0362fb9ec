"""A memory snapshot: whether the last request failed for want of memory or for want of one piece,
and whose code holds what there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.memory import NO_STACK, Refused, Snapshot
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_count, format_share
from mgpu_doctor.rules.rule import Limits, Rule

SMALL = 1 << 20
"""kSmallSize of CUDACachingAllocator.cpp: smaller requests have a pool of their own."""


def _device(measures: Measures, _: Limits) -> Iterable[Finding]:
    for snapshot in measures.case.snapshots:
        last = snapshot.refused[-1] if snapshot.refused else None
        if last is None or in_pieces(snapshot, last):
            continue
        most = snapshot.holders[0] if snapshot.holders else None
        who = (
            f"; {most.place} holds {format_bytes(most.size)}"
            if most and most.place != NO_STACK
            else ""
        )
        yield Finding(
            code="oom-device",
            severity=Severity.CRITICAL,
            confidence=0.8 if snapshot.moved else 0.95,
            title=f"A device ran out of memory: {format_bytes(last.wanted)} more were asked for"
            f"{_at(last)}{who}",
            cause=_why(snapshot, last),
            evidence=tuple(_evidence(snapshot, last)),
            fixes=(
                Fix(
                    "plan-memory",
                    "See what would make it fit",
                    "`mgpu-doctor plan` with your model and this GPU ranks what helps: smaller "
                    "micro-batches with accumulation, checkpointing, bf16, sharding.",
                ),
            ),
        )


def _why(snapshot: Snapshot, last: Refused) -> str:
    left = "" if last.free is None else f" {format_bytes(last.free)} of the device were free then."
    use = (
        f"{format_bytes(snapshot.taken)} of the {format_bytes(snapshot.reserved)} that torch "
        "had taken from it"
    )
    if snapshot.moved:
        return (
            f"The request failed.{left} Memory changed hands before the snapshot was taken, in "
            f"which {use} are in use; whether it was in pieces is not known. Take it where the "
            "exception is caught first, or by torch._C._cuda_attach_out_of_memory_observer."
        )
    return f"The request failed.{left} {use} were in use."


def _fragmentation(measures: Measures, _: Limits) -> Iterable[Finding]:
    for snapshot in measures.case.snapshots:
        last = snapshot.refused[-1] if snapshot.refused else None
        if last is None or not in_pieces(snapshot, last):
            continue
        yield Finding(
            code="oom-fragmentation",
            severity=Severity.CRITICAL,
            confidence=0.9,
            title=f"{format_bytes(last.wanted)} could not be had{_at(last)}, though "
            f"{format_bytes(snapshot.free)} of what torch holds were free, in {snapshot.pieces} "
            "pieces",
            cause=f"The largest free piece is {format_bytes(snapshot.largest)}. Blocks that live "
            "long "
            "stand between those that come and go.",
            evidence=tuple(_evidence(snapshot, last)),
            fixes=(
                Fix(
                    "expandable-segments",
                    "Let segments grow instead of taking new ones",
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the job. Batches "
                    "padded to few different lengths help, too.",
                ),
            ),
        )


def _held(measures: Measures, _: Limits) -> Iterable[Finding]:
    for snapshot in measures.case.snapshots:
        if snapshot.refused:
            continue
        most = snapshot.holders[0] if snapshot.holders else None
        title = (
            f"{format_bytes(snapshot.taken)} of {format_bytes(snapshot.reserved)} reserved "
            "are in use"
        )
        if not snapshot.reserved:
            title = "torch held no memory of a GPU when the snapshot was taken"
        if most is not None:
            title += f"; most is held by {most.place}: {format_bytes(most.size)}"
        yield Finding(
            code="memory-held",
            severity=Severity.INFO,
            confidence=1.0,
            title=title,
            cause="The snapshot holds no request that failed. It says who holds memory, by the "
            "user's code that asked for it.",
            evidence=tuple(_evidence(snapshot, None)),
        )


def _at(refused: Refused) -> str:
    return "" if refused.place == NO_STACK else f" at {refused.place}"


def in_pieces(snapshot: Snapshot, refused: Refused) -> bool:
    """Whether it was not for want of memory: the free pieces would do together, and none alone, and
    they are still as they were."""
    large = refused.wanted > SMALL
    return large and not snapshot.moved and snapshot.free >= refused.wanted > snapshot.largest


def _evidence(snapshot: Snapshot, last: Refused | None) -> Iterator[Evidence]:
    source = f"memory snapshot {snapshot.source}"
    if last is not None:
        yield Evidence("asked for", last.wanted, "bytes", last.free, source, last.place)
    yield Evidence("in use, of what torch has reserved", snapshot.taken, "bytes", None, source)
    yield Evidence("reserved", snapshot.reserved, "bytes", None, source)
    yield Evidence("largest free piece", snapshot.largest, "bytes", snapshot.free, source)
    for one in snapshot.holders:
        share = one.size / snapshot.taken if snapshot.taken else 0.0
        measure = f"held, in {format_count(one.blocks, 'block')} ({format_share(share)})"
        yield Evidence(measure, one.size, "bytes", None, source, one.place)


_HOW = (
    "From a snapshot that `torch.cuda.memory._dump_snapshot(file)` wrote: segments and blocks as "
    "they were, and the last request that failed if history was recorded. The file is a pickle; it "
    "is read without Python's pickle."
)
_UNVERIFIED = "a snapshot of a real GPU: those of the tests were made by hand in torch's format"
RULES: tuple[Rule, ...] = (
    Rule(
        code="oom-device",
        family="memory",
        summary="A GPU's memory ran out.",
        measured=_HOW,
        thresholds="The free pieces together are smaller than the request.",
        fixes="`mgpu-doctor plan` ranks what makes it fit.",
        examine=_device,
        unverified=_UNVERIFIED,
    ),
    Rule(
        code="oom-fragmentation",
        family="memory",
        summary="Enough GPU memory is free, but not in one piece.",
        measured=_HOW,
        thresholds="The free pieces together would hold the request, and the largest would not; "
        "only where nothing was taken or given back between the request and the snapshot.",
        fixes="`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, and batches of few lengths.",
        examine=_fragmentation,
        unverified=_UNVERIFIED,
    ),
    Rule(
        code="memory-held",
        family="memory",
        summary="What holds a device's memory, by the code that asked for it.",
        measured=_HOW,
        thresholds="No threshold: it is only told where no request failed.",
        fixes="None: it is for looking. `mgpu-doctor plan` tells what would take less.",
        examine=_held,
        unverified=_UNVERIFIED,
    ),
)
