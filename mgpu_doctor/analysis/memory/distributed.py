"""What a strategy adds to a rank's memory, and what it divides: one rank's trace in, one out.

DDP cannot be traced (its reducer reads the data), so these are formulas; each names what it was
held against. Tensor parallelism is left out: what it divides depends on how the user cuts layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.edits import (
    gradients,
    in_forward,
    is_gradient,
    resized,
    with_in_steps,
    with_set_up,
    with_short_gradients,
)
from mgpu_doctor.analysis.memory.layers import layers
from mgpu_doctor.analysis.memory.settings import Plan, Strategy
from mgpu_doctor.analysis.memory.stream import Kind, Phase, Stream, Taken

FIRST_BUCKET, BUCKET = MIB, 25 * MIB
"""DDP closes a bucket that holds as much or more (torch.distributed, `bucket_cap_mb`)."""
FLOAT = 4
STATES = {Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER}


def distributed(stream: Stream, plan: Plan) -> Stream:
    if plan.strategy is Strategy.DDP:
        return ddp(stream, bucket_view=plan.bucket_view)
    if plan.strategy is Strategy.ZERO1:
        return ddp(divided_optimizer(stream, plan.ranks), bucket_view=plan.bucket_view)
    if plan.strategy is Strategy.FSDP:
        return fsdp(stream, plan.ranks)
    if plan.strategy is Strategy.MIRRORED:
        return mirrored(stream)
    return stream


def mirrored(stream: Stream) -> Stream:
    """All gradients once more, put together to be averaged (`bytes_per_pack=0`, TensorFlow's
    default, is one pack), from the first on. Not held against a measurement."""
    packed = [("gradients put together", Kind.BUCKETS, stream.parameters * FLOAT)]
    return with_in_steps(stream, packed, begin=is_gradient, end=Phase.OPTIMIZER)


def ddp(stream: Stream, *, bucket_view: bool = False) -> Stream:
    """Buckets as large as all gradients, from the constructor on, even with one rank; gradients
    are copied to them, or live in them (measured: 442 and 354 MiB after backward for 88 MiB of
    weights, 5 and 4 times as much with Adam)."""
    sizes = buckets(gradients(stream))
    added = [("DDP bucket", Kind.BUCKETS, size) for size in sizes]
    return with_set_up(with_short_gradients(stream) if bucket_view else stream, added)


def buckets(sizes: Sequence[int]) -> tuple[int, ...]:
    """Bytes of DDP's buckets, given the gradients in the order in which they become ready."""
    found, filled, limit = [], 0, FIRST_BUCKET
    for size in sizes:
        filled += size
        if filled >= limit:
            found.append(filled)
            filled, limit = 0, BUCKET
    return (*found, filled) if filled else tuple(found)


def divided_optimizer(stream: Stream, ranks: int) -> Stream:
    """ZeRO-1: each rank keeps and updates its share. Whole weights are dealt out, so a rank may
    get somewhat more than the mean that is counted here."""
    return resized(
        stream, lambda taken: _share(taken.size, ranks) if updates(taken) else taken.size
    )


def fsdp(stream: Stream, ranks: int) -> Stream:
    """FSDP2, one group a repeated layer, resharded after forward. Beside its share a rank holds
    the weights outside the layers, two layers put together (one at work, one on its way), and from
    the first gradient on those of the weights outside the layers, and one layer's twice (as they
    are made, and as they are sent). Without repeated layers all weights are one group. Set-up is
    counted as if weights were made in shares (on the meta device). Against torch's FSDPMemTracker
    on GPT-2-small, its head not shared, at 1, 8 and 64 ranks:
    1.1, 0.5 and 0.5 % too much."""
    taken = (event for event in stream.events if isinstance(event, Taken))
    found = layers(tuple(each.size for each in taken if each.kind is Kind.WEIGHTS))

    def size(taken: Taken) -> int:
        divided = taken.kind in STATES or updates(taken)
        return _share(taken.size, ranks) if divided else taken.size

    gathered = [("weights outside the layers, put together", Kind.WEIGHTS, found.rest)]
    gathered += [("a layer's weights, put together", Kind.WEIGHTS, found.size)] * 2
    made = [("gradients outside the layers", Kind.GRADIENTS, found.rest)]
    made += [("a layer's gradients, before they are divided", Kind.BUCKETS, found.size)] * 2
    shared = resized(stream, size)
    whole = with_in_steps(shared, gathered, begin=in_forward, end=Phase.BACKWARD)
    return with_in_steps(whole, made, begin=is_gradient, end=Phase.BACKWARD)


def updates(taken: Taken) -> bool:
    """Whether a block is the optimizer's: a state, or a temporary of the update."""
    return taken.kind is Kind.OPTIMIZER or (
        taken.phase is Phase.OPTIMIZER and taken.kind is not Kind.GRADIENTS
    )


def _share(size: int, ranks: int) -> int:
    return -(-size // max(1, ranks))
