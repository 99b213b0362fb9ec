"""Predictions for other batch sizes than the traced ones, against the job at that size."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.memory.allocator_replay import minimum_bytes
from mgpu_doctor.analysis.memory.memory_plan import Checkpointing, Optimizer, Settings
from mgpu_doctor.analysis.memory.stream import Allocated, Kind, Phase, Stream
from mgpu_doctor.analysis.memory.stream_edits import (
    accumulate_gradients,
    interpolate_batch,
    rescale_batch,
)
from mgpu_doctor.analysis.memory.traced_streams import Traces
from tests.doctor.analysis.memory.allocation_streams import Job


@pytest.mark.parametrize("batch", [1, 3, 4, 8, 64])
def test_two_traces_tell_of_every_batch(batch: int) -> None:
    found = interpolate_batch(Job(2).stream(), Job(4).stream(), batch)
    assert found == Job(batch).stream()


def test_traces_of_different_steps_tell_of_no_other() -> None:
    assert interpolate_batch(Job(2).stream(), Job(4, layers=3).stream(), 8) is None
    assert interpolate_batch(Job(2).stream(), Job(4, recomputed=True).stream(), 8) is None
    assert interpolate_batch(Job(2).stream(), Job(2).stream(), 8) is None


@pytest.mark.parametrize("batch", [1, 2, 16])
def test_one_trace_is_scaled_where_it_grows(batch: int) -> None:
    """Here all that grows is proportional to the batch, so nothing is lost."""
    assert rescale_batch(Job(4).stream(), batch) == Job(batch).stream()


def test_copies_of_weights_do_not_grow_with_the_batch() -> None:
    sizes = {Kind.WEIGHTS: 8000, Kind.TEMPORARY: 4000, Kind.ACTIVATIONS: 8000, Kind.BATCH: 100}
    phases = [Phase.SETUP, *[Phase.FORWARD] * 3]
    events = [
        Allocated(number, size, kind, phase)
        for number, ((kind, size), phase) in enumerate(zip(sizes.items(), phases, strict=True))
    ]
    update = Allocated(9, 300, Kind.TEMPORARY, Phase.OPTIMIZER)
    found = rescale_batch(Stream((*events, update), (1,), 4, 2000), 8)
    assert [getattr(event, "size", 0) for event in found.events] == [8000, 4000, 8000, 200, 300]


def test_accumulation_holds_the_gradients_through_forward() -> None:
    single, several = Job(2).stream(), Job(2, accumulate=3).stream()
    found = minimum_bytes(accumulate_gradients(single))
    assert found > minimum_bytes(single)
    assert found == pytest.approx(minimum_bytes(several), rel=0.02)


def test_the_nearest_relative_is_found() -> None:
    job, full = Settings(4), Settings(4, checkpointing=Checkpointing.FULL)
    traces = Traces(
        {job: Job(4).stream(), Settings(2): Job(2).stream(), full: Job(4, recomputed=True).stream()}
    )
    cases = {
        Settings(4): "traced",
        Settings(16): "from traces at batch 2 and 4",
        Settings(8, checkpointing=Checkpointing.FULL): "scaled from batch 4",
        Settings(2, accumulate=4): "traced, with the gradients of earlier micro-batches added",
    }
    for settings, basis in cases.items():
        findings = traces.find(settings)
        assert findings is not None
        assert findings.basis == basis
        assert findings.stream.samples == settings.batch
    assert traces.find(Settings(4, checkpointing=Checkpointing.HALF)) is None


def test_two_micro_batches_stand_for_more() -> None:
    stream = Job(2, accumulate=2).stream()
    findings = Traces({Settings(2, accumulate=2): stream}).find(Settings(2, accumulate=64))
    assert findings is not None
    assert findings.stream is stream


def test_extra_work_is_counted_per_sample() -> None:
    before, after = Settings(4), Settings(2, accumulate=4, checkpointing=Checkpointing.FULL)
    traces = Traces({}, {before: 1000, after: 2600})
    assert traces.extra_work(before, after) == pytest.approx(0.3)
    assert traces.extra_work(Settings(8), after) == pytest.approx(0.3)
    assert traces.extra_work(before, Settings(4, optimizer=Optimizer.SGD)) is None
