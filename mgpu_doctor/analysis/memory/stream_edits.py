"""The same step with something changed: another batch, optimizer or loss.

A changed stream is replayed like a traced one, so that every phase's peak is found again. Batches
were compared with traces of GPT-2-small and ResNet-50 at that batch (fp32, bf16, checkpointed): the
same to the byte, from two traces as from one. Accumulation by formula: allocated -0.3 and +0.1 %,
reserved +2.5 and -0.5 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.stream import Allocated, Event, Freed, Kind, Phase, Stream

Change = Callable[[int, Event], Iterable[Event]]
"""Gives what replaces an event, given its index."""


def edit_events(stream: Stream, change: Change) -> Stream:
    """The stream with every event replaced; steps start where they did."""
    starts = set(stream.steps)
    events: list[Event] = []
    steps = []
    for index, event in enumerate(stream.events):
        if index in starts:
            steps.append(len(events))
        events.extend(change(index, event))
    return replace(stream, events=tuple(events), steps=tuple(steps))


def resize_blocks(stream: Stream, size: Callable[[Allocated], int]) -> Stream:
    """Every block with the bytes that `size` returns."""

    def change(_: int, event: Event) -> Iterable[Event]:
        if isinstance(event, Allocated) and (new := size(event)) != event.size:
            return (replace(event, size=new),)
        return (event,)

    return edit_events(stream, change)


def add_setup_blocks(stream: Stream, blocks: Sequence[tuple[str, Kind, int]]) -> Stream:
    """Adds blocks (name, kind, bytes) that are allocated at the end of set-up and never freed."""
    fresh = _new_numbers(stream)
    extra = [Allocated(next(fresh), size, kind, Phase.SETUP, name) for name, kind, size in blocks]
    first = stream.steps[0] if stream.steps else 0
    events = (*stream.events[:first], *extra, *stream.events[first:])
    return replace(stream, events=events, steps=tuple(at + len(extra) for at in stream.steps))


def add_step_blocks(
    stream: Stream,
    blocks: Sequence[tuple[str, Kind, int]],
    *,
    begin: Callable[[Event], bool],
    end: Phase,
) -> Stream:
    """Adds blocks that every step allocates before the first event that satisfies `begin`, and
    frees after its last event of the phase `end`."""
    fresh = _new_numbers(stream)
    before: dict[int, list[Event]] = {}
    after: dict[int, list[Event]] = {}
    for start, stop in step_spans(stream):
        inside = range(start, stop)
        first = next((i for i in inside if begin(stream.events[i])), None)
        last = next((i for i in reversed(inside) if stream.events[i].phase is end), None)
        if first is None or last is None or last < first:
            continue
        for name, kind, size in blocks:
            number = next(fresh)
            phase = stream.events[first].phase
            before.setdefault(first, []).append(Allocated(number, size, kind, phase, name))
            after.setdefault(last, []).append(Freed(number, end))

    return edit_events(stream, lambda i, event: (*before.get(i, ()), event, *after.get(i, ())))


def shorten_gradients(stream: Stream) -> Stream:
    """Each gradient lives only until the next one is made: it is copied or added at once, and the
    memory that keeps it is counted elsewhere."""
    gradients = {event.block for event in stream.events if is_gradient(event)}
    waiting: list[int] = []

    def change(_: int, event: Event) -> Iterable[Event]:
        if event.block not in gradients and event.phase is Phase.BACKWARD:
            return (event,)
        freed = [Freed(block, Phase.BACKWARD) for block in waiting]
        waiting.clear()
        if event.block not in gradients:
            return (*freed, event)
        if isinstance(event, Allocated):
            waiting.append(event.block)
            return (event,) if not freed else (event, *freed)
        return freed

    return edit_events(stream, change)


def is_in_forward(event: Event) -> bool:
    return event.phase is Phase.FORWARD


def is_gradient(event: Event) -> bool:
    return isinstance(event, Allocated) and event.kind is Kind.GRADIENTS


def gradient_sizes(stream: Stream) -> tuple[int, ...]:
    """Bytes of each gradient, in the order in which they become ready: those held at the moment
    when gradients take the most."""
    live_sizes: dict[int, int] = {}
    now = most = 0
    best: tuple[int, ...] = ()
    taken_last = False
    for event in stream.events:
        if isinstance(event, Allocated):
            if event.kind is Kind.GRADIENTS:
                live_sizes[event.block] = event.size
                now += event.size
                taken_last = True
        elif event.block in live_sizes:
            if taken_last and now > most:
                most, best = now, tuple(live_sizes.values())
            taken_last = False
            now -= live_sizes.pop(event.block)
    return tuple(live_sizes.values()) if now > most else best


def step_spans(stream: Stream) -> list[tuple[int, int]]:
    """The first event of each step, and the one after its last."""
    return list(zip(stream.steps, [*stream.steps[1:], len(stream.events)], strict=False))


def _new_numbers(stream: Stream) -> count[int]:
    return count(max((event.block for event in stream.events), default=-1) + 1)


def belongs_to_update(taken: Allocated) -> bool:
    """Whether a block is the optimizer's: a state, or a temporary of the update."""
    return taken.kind is Kind.OPTIMIZER or (
        taken.phase is Phase.OPTIMIZER and taken.kind is not Kind.GRADIENTS
    )


GROWING = {Kind.ACTIVATIONS, Kind.BATCH, Kind.TEMPORARY}


def interpolate_batch(first: Stream, second: Stream, batch: int) -> Stream | None:
    """Every block on the straight line through its sizes in two traces that differ only in the
    batch. None: the two did not allocate and free the same blocks."""
    apart = second.samples - first.samples
    if not apart or len(first.events) != len(second.events):
        return None
    sizes: dict[int, int] = {}
    for event, other in zip(first.events, second.events, strict=True):
        if not _is_same_event(event, other):
            return None
        if isinstance(event, Allocated) and isinstance(other, Allocated):
            grown = (other.size - event.size) * (batch - first.samples)
            sizes[event.block] = max(0, event.size + grown // apart)
    return _with_samples(resize_blocks(first, lambda taken: sizes[taken.block]), batch)


def rescale_batch(stream: Stream, batch: int) -> Stream:
    """Another batch from one trace: activations, batches and temporaries of forward and backward
    grow with the batch, unless they are as large as a weight or half of one (a cast)."""
    weights = {
        size
        for event in stream.events
        if isinstance(event, Allocated) and event.kind is Kind.WEIGHTS
        for size in (event.size, event.size // 2)
    }

    def size(taken: Allocated) -> int:
        if taken.kind not in GROWING or taken.size in weights:
            return taken.size
        if taken.kind is not Kind.BATCH and taken.phase not in AT_WORK:
            return taken.size
        return taken.size * batch // max(1, stream.samples)

    return _with_samples(resize_blocks(stream, size), batch)


def accumulate_gradients(stream: Stream) -> Stream:
    """A step of one micro-batch as one of several: gradients of earlier micro-batches are held
    throughout, and those of the current one are added to them as they come."""
    held = [("accumulated gradients", Kind.GRADIENTS, size) for size in gradient_sizes(stream)]
    return add_step_blocks(
        shorten_gradients(stream), held, begin=is_in_forward, end=Phase.OPTIMIZER
    )


def _is_same_event(event: Event, other: Event) -> bool:
    if isinstance(event, Allocated) and isinstance(other, Allocated):
        return (event.block, event.kind, event.phase) == (other.block, other.kind, other.phase)
    return type(event) is type(other) and event.block == other.block


def _with_samples(stream: Stream, batch: int) -> Stream:
    return Stream(stream.events, stream.steps, batch, stream.parameters)


LEAST_IN_EIGHT_BITS = 4096 * 4
"""bitsandbytes leaves states of fewer than 4096 numbers in 32 bits (`min_8bit_size`)."""
BLOCK = 256
"""8-bit numbers that share a 32-bit scale."""


def fuse_optimizer(stream: Stream) -> Stream:
    """The step without the temporaries of the update."""
    return resize_blocks(stream, lambda taken: 0 if is_update_scratch(taken) else taken.size)


def quantize_states(stream: Stream) -> Stream:
    """Optimizer states of one byte per number instead of four, and their scales. The update runs
    weight by weight in one kernel, without temporaries."""

    def size(taken: Allocated) -> int:
        if taken.kind is not Kind.OPTIMIZER or taken.size < LEAST_IN_EIGHT_BITS:
            return 0 if is_update_scratch(taken) else taken.size
        numbers = taken.size // 4
        return numbers + numbers // BLOCK * 4

    return resize_blocks(stream, size)


def offload_optimizer(stream: Stream) -> Stream:
    """Optimizer states and update on the CPU: neither takes device memory."""
    return resize_blocks(stream, lambda taken: 0 if belongs_to_update(taken) else taken.size)


def is_update_scratch(taken: Allocated) -> bool:
    """Whether it is a temporary of the update."""
    return belongs_to_update(taken) and taken.kind is not Kind.OPTIMIZER


AT_WORK = {Phase.FORWARD, Phase.BACKWARD}

PARTS = 8
"""Parts that the tokens are cut into."""

KEPT = {Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER, Kind.BUCKETS, Kind.BATCH}
LEAST_LOGITS = MIB
"""Bytes; smaller logits are not worth cutting."""


def find_logits(stream: Stream) -> int:
    """Bytes of the log-probabilities that the loss makes; 0: no cross-entropy was seen."""
    sizes = [
        event.size
        for event in stream.events
        if isinstance(event, Allocated)
        and event.phase is Phase.FORWARD
        and "log_softmax" in event.name
    ]
    largest = max(sizes, default=0)
    return largest if largest >= LEAST_LOGITS else 0


def chunk_loss(stream: Stream, *, short: bool = False) -> Stream:
    """Logits, log-probabilities and their gradients, recognized by their size, exist for one part
    at a time; `short`: logits in 16 bits have half that size."""
    whole = find_logits(stream)
    sizes = {whole, whole // 2} if short else {whole}
    if not whole:
        return stream

    def size(taken: Allocated) -> int:
        cut = taken.size in sizes and taken.kind not in KEPT and taken.phase in AT_WORK
        return -(-taken.size // PARTS) if cut else taken.size

    return resize_blocks(stream, size)
