"""Cross-entropy over a large vocabulary, in parts: the logits of all tokens are never there."""

from __future__ import annotations

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.edits import resized
from mgpu_doctor.analysis.memory.stream import Kind, Phase, Stream, Taken

PARTS = 8
"""Into so many parts the tokens are cut."""
AT_WORK = {Phase.FORWARD, Phase.BACKWARD}
KEPT = {Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER, Kind.BUCKETS, Kind.BATCH}
WORTH = MIB
"""Smaller logits are not worth cutting."""


def logits(stream: Stream) -> int:
    """Bytes of the log-probabilities that the loss makes; 0: no cross-entropy was seen."""
    sizes = [
        event.size
        for event in stream.events
        if isinstance(event, Taken) and event.phase is Phase.FORWARD and "log_softmax" in event.name
    ]
    largest = max(sizes, default=0)
    return largest if largest >= WORTH else 0


def in_parts(stream: Stream, *, short: bool = False) -> Stream:
    """Logits, log-probabilities and their gradients, told by their size, are there for one part
    at a time; `short`: logits in 16 bits have half that size."""
    whole = logits(stream)
    sizes = {whole, whole // 2} if short else {whole}
    if not whole:
        return stream

    def size(taken: Taken) -> int:
        cut = taken.size in sizes and taken.kind not in KEPT and taken.phase in AT_WORK
        return -(-taken.size // PARTS) if cut else taken.size

    return resized(stream, size)
