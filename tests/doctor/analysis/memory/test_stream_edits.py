"""Formulas change allocation streams: the result is a stream that could have been traced."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.allocator_replay import minimum_bytes
from mgpu_doctor.analysis.memory.memory_plan import Plan, Settings, Strategy
from mgpu_doctor.analysis.memory.prediction import arrange_step
from mgpu_doctor.analysis.memory.stream import Allocated, Kind, Phase, Stream
from mgpu_doctor.analysis.memory.stream_edits import (
    PARTS,
    add_setup_blocks,
    add_step_blocks,
    chunk_loss,
    find_logits,
    fuse_optimizer,
    offload_optimizer,
    quantize_states,
    shorten_gradients,
    step_spans,
)
from tests.doctor.analysis.memory.allocation_streams import EMBEDDING, LAYER, LOGITS, Job, stream_of

STATES = 2 * (EMBEDDING + 4 * sum(LAYER))
SWITCHES = ("bucket_view", "chunked_loss", "eight_bit_states", "offload_optimizer")


def check(stream: Stream) -> None:
    """Blocks are taken once, and freed once at most, after that; steps begin with forward."""
    there: set[int] = set()
    taken: set[int] = set()
    for event in stream.events:
        if isinstance(event, Allocated):
            assert event.block not in taken
            assert event.size >= 0
            taken.add(event.block)
            there.add(event.block)
        else:
            there.remove(event.block)
    assert all(stream.events[step].phase is Phase.FORWARD for step in stream.steps)
    assert all(stream.events[step - 1].phase is not Phase.FORWARD for step in stream.steps)


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_whatever_is_planned_could_have_been_traced(strategy: Strategy, accumulate: int) -> None:
    stream = Job(2, accumulate=accumulate).stream()
    for on in product((False, True), repeat=len(SWITCHES)):
        switches: dict[str, Any] = dict(zip(SWITCHES, on, strict=True))
        plan = Plan(Settings(2, accumulate), strategy, 4, **switches)
        check(arrange_step(stream, plan))


def kinds(stream: Stream, kind: Kind, phase: Phase | None = None) -> int:
    taken = [
        event for event in stream.events if isinstance(event, Allocated) and event.kind is kind
    ]
    return sum(event.size for event in taken if phase in (None, event.phase))


def test_states_in_eight_bits_take_a_quarter_and_their_scales() -> None:
    found = quantize_states(Job(1).stream())
    assert kinds(found, Kind.OPTIMIZER) == STATES // 4 + STATES // 4 // 256 * 4
    assert kinds(found, Kind.TEMPORARY, Phase.OPTIMIZER) == 0
    tiny = Stream([Allocated(0, 4096, Kind.OPTIMIZER, Phase.OPTIMIZER)], (0,), 1, 1)
    assert quantize_states(tiny) == Stream(tuple(tiny.events), (0,), 1, 1)


def test_a_fused_update_has_states_but_no_temporaries() -> None:
    found = fuse_optimizer(Job(1).stream())
    assert kinds(found, Kind.OPTIMIZER) == STATES
    assert kinds(found, Kind.TEMPORARY, Phase.OPTIMIZER) == 0
    assert kinds(found, Kind.TEMPORARY) == 2 * LOGITS


def test_an_update_on_the_host_takes_nothing() -> None:
    found = offload_optimizer(Job(1).stream())
    assert kinds(found, Kind.OPTIMIZER) == 0
    assert kinds(found, Kind.TEMPORARY, Phase.OPTIMIZER) == 0
    assert kinds(found, Kind.GRADIENTS) == kinds(Job(1).stream(), Kind.GRADIENTS)


def test_logits_and_their_gradients_are_cut_in_parts() -> None:
    stream = Job(4).stream()
    whole = LOGITS * 4
    assert find_logits(stream) == whole
    assert minimum_bytes(stream) - minimum_bytes(chunk_loss(stream)) == pytest.approx(
        3 * whole * (1 - 1 / PARTS), rel=0.01
    )
    assert chunk_loss(Job(4, logits=512).stream()) == Job(4, logits=512).stream()


def test_short_logits_have_half_the_size() -> None:
    stream = stream_of((0, 8 * MIB), (1, 16 * MIB))
    named = Stream((*stream.events[:1], _log_softmax(16 * MIB)), (0,), 1, 0)
    assert minimum_bytes(chunk_loss(named)) == 8 * MIB + 2 * MIB
    assert minimum_bytes(chunk_loss(named, short=True)) == MIB + 2 * MIB


def test_states_as_large_as_the_logits_stay_whole() -> None:
    kept = [
        Allocated(0, 16 * MIB, Kind.WEIGHTS, Phase.SETUP),
        Allocated(1, 16 * MIB, Kind.GRADIENTS, Phase.BACKWARD),
        Allocated(2, 16 * MIB, Kind.TEMPORARY, Phase.OPTIMIZER),
    ]
    stream = Stream((*kept, _log_softmax(16 * MIB)), (1,), 1, 0)
    assert minimum_bytes(chunk_loss(stream)) == 3 * 16 * MIB + 2 * MIB


def test_gradients_that_are_copied_live_one_at_a_time() -> None:
    stream = Job(1, logits=512, kept=4096).stream()
    found = shorten_gradients(stream)
    check(found)
    start, stop = step_spans(found)[0]
    now = most = 0
    sizes: dict[int, int] = {}
    for event in found.events[start:stop]:
        if isinstance(event, Allocated) and event.kind is Kind.GRADIENTS:
            sizes[event.block] = event.size
            now += event.size
            most = max(most, now)
        else:
            now -= sizes.pop(event.block, 0)
    assert most == EMBEDDING + LAYER[0]
    assert now == 0


def test_blocks_are_added_where_they_belong() -> None:
    stream = Job(1).stream()
    extra = [("extra", Kind.BUCKETS, MIB)]
    held = add_setup_blocks(stream, extra)
    assert held.events[held.steps[0] - 1].block not in {event.block for event in stream.events}
    assert minimum_bytes(held) == minimum_bytes(stream) + MIB
    inside = add_step_blocks(
        stream, extra, begin=lambda event: event.phase is Phase.BACKWARD, end=Phase.BACKWARD
    )
    added = [event for event in inside.events if getattr(event, "name", "") == "extra"]
    assert [event.phase for event in added] == [Phase.BACKWARD] * 2
    assert len(inside.events) == len(stream.events) + 4


def _log_softmax(size: int) -> Allocated:
    return Allocated(9, size, Kind.ACTIVATIONS, Phase.FORWARD, "aten::_log_softmax")
