"""What parallel strategies add to a rank's memory, and what they divide."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.memory.allocator import MIB
from mgpu_doctor.analysis.memory.allocator_replay import (
    Composition,
    find_composition,
    minimum_bytes,
    replay,
)
from mgpu_doctor.analysis.memory.distributed import (
    Layers,
    apply_strategy,
    bucket_sizes,
    find_layers,
)
from mgpu_doctor.analysis.memory.memory_plan import Plan, Settings, Strategy
from mgpu_doctor.analysis.memory.stream import Allocated, Kind, Phase, Stream
from mgpu_doctor.analysis.memory.stream_edits import gradient_sizes, step_spans
from tests.doctor.analysis.memory.allocation_streams import EMBEDDING, LAYER, Job

WEIGHTS = EMBEDDING + 4 * sum(LAYER)
SMALL = Job(batch=1, logits=512, kept=4096)
"""Weights and states are all that counts."""


def as_planned(stream: Stream, strategy: Strategy, ranks: int = 4, *, view: bool = False) -> Stream:
    return apply_strategy(stream, Plan(Settings(1), strategy, ranks, bucket_view=view))


def taken_apart(stream: Stream) -> Composition:
    return find_composition(stream, replay(stream))


@pytest.fixture(scope="module")
def small() -> Stream:
    return SMALL.stream()


def test_buckets_close_when_they_are_full() -> None:
    sizes = (600 << 10, 600 << 10, 20 * MIB, 4 * MIB, MIB, 30 * MIB, 3 * MIB)
    assert bucket_sizes(sizes) == (1200 << 10, 25 * MIB, 30 * MIB, 3 * MIB)
    assert bucket_sizes(()) == ()


def test_gradients_are_known_in_the_order_in_which_they_become_ready(small: Stream) -> None:
    assert gradient_sizes(small) == tuple(reversed((EMBEDDING, *LAYER * 4)))
    assert gradient_sizes(Job(batch=1, accumulate=3, logits=512).stream()) == gradient_sizes(small)


def test_ddp_adds_the_gradients_once_more_from_the_start(small: Stream) -> None:
    found = as_planned(small, Strategy.DDP)
    assert minimum_bytes(found) - minimum_bytes(small) == WEIGHTS
    peaks = taken_apart(found).phases
    assert peaks[Phase.SETUP] >= 2 * WEIGHTS
    assert [found.events[start].phase for start, _ in step_spans(found)] == [Phase.FORWARD] * 2


def test_with_a_bucket_view_gradients_live_in_the_buckets(small: Stream) -> None:
    """Weights, two states, buckets: four times the weights instead of five."""
    found = taken_apart(as_planned(small, Strategy.DDP, view=True))
    plain = taken_apart(as_planned(small, Strategy.DDP))
    saved = plain.phases[Phase.OPTIMIZER] - found.phases[Phase.OPTIMIZER]
    assert saved == pytest.approx(WEIGHTS, rel=0.05)
    assert found.kinds.get(Kind.GRADIENTS, 0) <= 2 * EMBEDDING


def test_zero1_divides_states_and_the_updates_temporaries(small: Stream) -> None:
    plain = taken_apart(as_planned(small, Strategy.DDP))
    found = taken_apart(as_planned(small, Strategy.ZERO1))
    saved = plain.phases[Phase.OPTIMIZER] - found.phases[Phase.OPTIMIZER]
    assert saved == pytest.approx(3 * WEIGHTS * 3 / 4, rel=0.05)
    assert found.kinds[Kind.BUCKETS] == plain.kinds[Kind.BUCKETS]


def test_fsdp_divides_all_states_but_holds_what_is_at_work(small: Stream) -> None:
    found = taken_apart(as_planned(small, Strategy.FSDP, ranks=8))
    gathered = EMBEDDING + 2 * sum(LAYER)
    assert found.phases[Phase.OPTIMIZER] == pytest.approx(5 * WEIGHTS / 8, rel=0.1)
    backward = 4 * WEIGHTS / 8 + 2 * gathered
    assert found.phases[Phase.BACKWARD] == pytest.approx(backward, rel=0.1)


def test_one_rank_alone_pays_for_fsdp_and_saves_nothing(small: Stream) -> None:
    assert minimum_bytes(as_planned(small, Strategy.FSDP, ranks=1)) > minimum_bytes(small)


def test_a_model_without_repeated_layers_is_one_group() -> None:
    assert find_layers((5, 4, 3, 2, 1)) == Layers(0, 0, 15)
    assert find_layers(()) == Layers(0, 0, 0)


def test_layers_are_reported_by_their_sizes() -> None:
    assert find_layers((100, 7, *(3, 4) * 6, 2)) == Layers(6, 7, 109)
    assert find_layers((100, 30, 30, *(9, 1, 9, 4) * 3, 2)) == Layers(3, 23, 162)
    assert find_layers((100, *(3, 4) * 6, *(30, 40, 41) * 2)) == Layers(2, 111, 142)


def test_activations_are_left_alone() -> None:
    stream = Job(batch=4).stream()
    for strategy in Strategy:
        assert _activations(as_planned(stream, strategy)) == _activations(stream)


def _activations(stream: Stream) -> list[int]:
    taken = [event for event in stream.events if isinstance(event, Allocated)]
    return [event.size for event in taken if event.kind is Kind.ACTIVATIONS]
