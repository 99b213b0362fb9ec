"""Captures of CUDA graphs, on a pretend graph class: no event is touched, and replays are steps."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mgpu_probes.inprocess.device_clock import MOST_EVENTS
from mgpu_probes.inprocess.frameworks.torch import (
    cuda_captures,
    device_events,
    process_groups,
    torch_support,
)
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_marks import backward_ended, updated
from mgpu_probes.inprocess.training_objects import UnseenWaits

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


class Event:
    """Never asked while a graph is captured."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.recorded = 0

    def record(self, _: Any) -> None:
        self.recorded += 1

    def query(self) -> bool:
        return True


class Graph:
    def capture_begin(self, fails: bool = False) -> None:
        if fails:
            raise RuntimeError("cudaErrorStreamCaptureUnsupported")

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The marks that are set, by a context whose process trains."""
    context = ProbeContext()
    context.on = True
    given: list[Any] = []
    monkeypatch.setattr(context, "mark", lambda mark, *_: given.append(mark))
    for module in (cuda_captures, torch_support):
        monkeypatch.setattr(module, "probe", context, raising=False)
    cuda_captures.patch(SimpleNamespace(CUDAGraph=Graph))  # type: ignore[arg-type]
    return given


@pytest.mark.usefixtures("marks")
def test_no_event_is_recorded_or_asked_while_a_graph_is_captured() -> None:
    events = device_events.StreamEvents("stream", Event)
    before = events.record()
    assert before is not None
    assert events.has_completed(before)
    graph = Graph()
    graph.capture_begin()
    assert events.record() is None
    assert not events.has_completed(before)
    graph.capture_end()
    assert events.record() is not None
    assert events.has_completed(before)


@pytest.mark.parametrize("has_driver", [True, False])
def test_another_thread_asks_on_the_same_device_and_spares_captures(
    monkeypatch: pytest.MonkeyPatch, has_driver: bool
) -> None:
    """It is given its device before it calls anything, and does not ask without the mode."""
    calls: list[Any] = []

    def exchange(mode: Any) -> int:
        calls.append(mode._obj.value)
        return 0

    def load(name: str) -> Any:
        if not has_driver:
            raise OSError(name)
        return SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange)

    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(ctypes, "CDLL", load)
    device = torch.device("cuda", 3)
    events = device_events.StreamEvents(SimpleNamespace(device=device), Event)
    assert events.enter_thread() is has_driver
    assert calls == ([device, 1] if has_driver else [device])


@pytest.mark.usefixtures("marks")
def test_a_capture_that_failed_does_not_last_longer_than_its_graph() -> None:
    events = device_events.StreamEvents("stream", Event)
    graph = Graph()
    with pytest.raises(RuntimeError):
        graph.capture_begin(fails=True)
    assert events.record() is None
    del graph
    assert events.record() is not None


@pytest.mark.parametrize(
    ("backward", "update", "expected"),
    [
        (True, True, [Steps.backward_begins, backward_ended, Steps.update_begins, updated]),
        (True, False, [Steps.backward_begins, backward_ended]),
        (False, True, [Steps.update_begins, updated]),
        (False, False, []),
    ],
)
def test_a_replay_sets_the_marks_of_what_was_captured(
    marks: list[Any], backward: bool, update: bool, expected: list[Any]
) -> None:
    graph = Graph()
    graph.capture_begin()
    if backward:
        cuda_captures.note_backward()
    if update:
        cuda_captures.note_update()
    graph.capture_end()
    cuda_captures.note_backward()
    graph.replay()
    assert marks == expected


def test_events_are_used_again_and_run_out() -> None:
    events = device_events.StreamEvents("stream", Event)
    made = [events.record() for _ in range(MOST_EVENTS)]
    assert events.record() is None
    events.give_back(made[:1])
    assert events.record() is made[0]


@pytest.mark.usefixtures("marks")
@pytest.mark.parametrize(("issued", "where"), [((4, 4), None), ((4, 5), UnseenWaits.CUDA_GRAPH)])
def test_a_graph_that_holds_collectives_hides_waits(
    monkeypatch: pytest.MonkeyPatch, issued: tuple[int, int], where: UnseenWaits | None
) -> None:
    monkeypatch.setattr(process_groups, "count_issued", iter(issued).__next__)
    graph = Graph()
    graph.capture_begin()
    graph.capture_end()
    assert cuda_captures.probe.objects.unseen_waits is where
