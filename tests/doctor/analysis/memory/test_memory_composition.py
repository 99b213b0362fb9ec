"""The parts of the peak add up to it, and each phase has its own."""

from __future__ import annotations

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.allocator_replay import find_composition, replay
from mgpu_doctor.analysis.memory.stream import Allocated, Freed, Kind, Phase, Stream
from tests.doctor.analysis.memory.allocation_streams import Job, taking


def test_the_peak_is_taken_apart_by_kind_and_operator() -> None:
    events = (
        Allocated(0, 4 * MIB, Kind.WEIGHTS, Phase.SETUP, "weight"),
        Allocated(1, 6 * MIB, Kind.ACTIVATIONS, Phase.FORWARD, "mm"),
        Allocated(2, 7 * MIB, Kind.ACTIVATIONS, Phase.FORWARD, "mm"),
        Freed(1, Phase.BACKWARD),
        Allocated(3, 4 * MIB, Kind.GRADIENTS, Phase.BACKWARD, "add"),
        Freed(2, Phase.BACKWARD),
        Allocated(4, 8 * MIB, Kind.OPTIMIZER, Phase.OPTIMIZER, "zeros"),
        Allocated(5, 300, Kind.TEMPORARY, Phase.OPTIMIZER),
    )
    stream = Stream(events, (1,), 1, 1)
    composition = find_composition(stream, replay(stream))
    assert composition.phase is Phase.FORWARD
    assert composition.kinds == {Kind.WEIGHTS: 4 * MIB, Kind.ACTIVATIONS: 13 * MIB}
    assert composition.largest == (("mm", 13 * MIB), ("weight", 4 * MIB))
    assert composition.phases == {
        Phase.SETUP: 4 * MIB,
        Phase.FORWARD: 17 * MIB,
        Phase.BACKWARD: 17 * MIB,
        Phase.OPTIMIZER: 16 * MIB + 512,
    }


def test_the_parts_add_up_to_the_replays_peak() -> None:
    stream = Job(batch=2, accumulate=2).stream()
    played = replay(stream)
    composition = find_composition(stream, played)
    assert composition.total == played.peak_allocated == max(composition.phases.values())
    assert composition.phase is not None
    assert composition.phases[composition.phase] == composition.total


def test_where_memory_runs_out_as_much_as_was_played_is_taken_apart() -> None:
    stream = Job().stream()
    played = replay(stream, 300 * MIB)
    assert played.shortage is not None
    assert 0 < find_composition(stream, played).total <= 300 * MIB


def test_nothing_is_made_of_nothing() -> None:
    assert find_composition(taking(), replay(taking())).phase is None
