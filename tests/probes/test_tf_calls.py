"""Calls of functions, and the marks that follow from what their graphs sent. TensorFlow is a fake:
a function that runs what it is given."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.inprocess.frameworks.tensorflow import (
    function_calls,
    graph_stamps,
    replica_latencies,
    turn_marks,
)
from mgpu_probes.inprocess.frameworks.tensorflow.stamp_timeline import (
    FETCH_BEGINS,
    GRADIENTS,
    INPUT,
    LOSS,
    REDUCE_BEGINS,
    REDUCE_ENDS,
    UPDATE,
    Layout,
    Stamp,
)
from mgpu_probes.inprocess.layout import EVALUATION, PHASES
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_fast_path import StepFastPath
from mgpu_probes.inprocess.step_marks import backward_ended, fetch_found_end, fetched, updated
from mgpu_probes.inprocess.step_segments import UPDATE as UPDATED
from mgpu_probes.inprocess.step_segments import Step

KINDS = (FETCH_BEGINS, INPUT, LOSS, GRADIENTS, REDUCE_BEGINS, REDUCE_ENDS, UPDATE)
LAYOUT: Layout = tuple(Stamp(kind, 0, 0, at) for at, kind in enumerate(KINDS))
NAMES = {
    turn_marks.fetch_begins: "asks",
    fetched: "fetched",
    Steps.forward_begins: "forward",
    Steps.computing_begins: "computes",
    Steps.computing_ends: "computed",
    Steps.backward_begins: "backward",
    backward_ended: "gradients",
    Steps.call_begins: "reduces",
    turn_marks._reduced: "reduced",
    Steps.update_begins: "updates",
    updated: "updated",
    fetch_found_end: "end of data",
}


class Probe:
    """Takes marks down; its clock goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.on = True
        self.trained = False
        self.owner = threading.get_ident()
        self.now = 0
        self.marks: list[tuple[str, int]] = []
        self.troubles: list[Exception] = []
        self.thread_clock: Callable[[], float] = int
        self.ledger = Ledger(0)

    def clock(self) -> int:
        self.now += 1_000_000_000
        return self.now

    def adopt(self) -> bool:
        return threading.get_ident() == self.owner

    def mark(self, mark: Any, now: int, _: object = ()) -> None:
        self.marks.append((NAMES.get(mark, mark), now // 1_000_000_000))

    def fail(self, trouble: Exception) -> None:
        self.troubles.append(trouble)


def _tensorflow() -> SimpleNamespace:
    config = SimpleNamespace(functions_run_eagerly=lambda: False)
    return SimpleNamespace(executing_eagerly=lambda: True, config=config)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    probe = Probe()
    for module in (function_calls, turn_marks, graph_stamps):
        monkeypatch.setattr(module, "probe", probe, raising=False)
    monkeypatch.setattr(graph_stamps, "wall_to_monotonic_ns", int)
    monkeypatch.setitem(sys.modules, "tensorflow", _tensorflow())
    monkeypatch.setattr(function_calls, "current_call", function_calls._Call())
    yield probe
    function_calls._arrived.clear()
    replica_latencies._latencies.clear()
    assert probe.troubles == []


def function(compiles: bool = False) -> type[Any]:
    class Function:
        """As TensorFlow's: tells what it traces, runs its body."""

        _jit_compile = compiles

        def __init__(self, body: Callable[[], Any]) -> None:
            self.body = body

        def __call__(self) -> Any:
            return self.body()

        def get_concrete_function(self) -> Any:
            return self

        def _clone(self, body: Callable[[], Any] | None) -> Any:
            return Function(body or self.body)

    function_calls.patch(SimpleNamespace(Function=Function))  # type: ignore[arg-type]
    return Function


def sends(probe: Probe, kinds: tuple[int, ...] = KINDS) -> None:
    layout = tuple(stamp for stamp in LAYOUT if stamp.kind in kinds)
    began = probe.now / 1e9
    moments = [began + 0.1 * at for at, stamp in enumerate(layout, 1) if stamp.kind != UPDATE]
    graph_stamps.tracing.send((layout,), moments)


def test_a_step_of_keras_from_asking_for_data_to_the_update(probe: Probe) -> None:
    def body() -> None:
        function_calls.note_operations(trains=True, updates=True, fetches=True)
        sends(probe)

    step = function()(body)
    step()
    whole = ["asks", "fetched", "forward", "backward", "gradients", "reduces", "reduced"]
    assert [name for name, _ in probe.marks] == [*whole, "updates", "updated"]
    probe.marks.clear()
    step()
    assert [name for name, _ in probe.marks] == [*whole, "updates", "updated"]
    assert probe.trained


def test_the_engine_divides_each_step_by_its_stamps(probe: Probe) -> None:
    told: list[Step] = []
    fast_path = StepFastPath(Ledger(0), told.append, lambda: (0, 0, 0, 0))
    probe.mark = fast_path.mark  # type: ignore[method-assign, assignment]

    def body() -> None:
        function_calls.note_operations(trains=True, updates=True, fetches=True)
        sends(probe)

    step = function()(body)
    for _ in range(40):  # the engine decides, then the fast_path
        step()
    fast_path.engine().leave()
    assert len(told) == 40
    phases = {"input": 0.1, "forward": 0.2, "backward": 0.1, "wait": 0.1, "optimizer": 0.4}
    for one in told[5:-1]:
        seconds = {name: ns / 1e9 for name, ns in zip(PHASES, one.phases, strict=True) if ns}
        assert seconds == pytest.approx(phases | {"other": 1.1})
        assert one.level == UPDATED


def test_the_end_of_the_data_is_no_step(probe: Probe) -> None:
    ends = False

    def body() -> None:
        function_calls.note_operations(trains=True, updates=True, fetches=True)
        if ends:
            raise StopIteration
        sends(probe)

    step = function()(body)
    step()
    ends = True
    probe.marks.clear()
    with pytest.raises(StopIteration):
        step()
    assert [name for name, _ in probe.marks] == ["asks", "end of data"]


def test_what_xla_compiles_is_one_piece(probe: Probe) -> None:
    def body() -> None:
        function_calls.note_operations(trains=True, updates=True)
        assert not graph_stamps.tracing.allowed()

    step = function(compiles=True)(body)
    step()
    step()
    names = ["forward", "backward", "gradients", "updates", "updated"]
    assert [name for name, _ in probe.marks] == names * 2
    assert function_calls.current_call.xla_calls == 0
    assert function_calls.current_call.jit


def test_functions_that_do_not_train_are_the_loops_own_work(probe: Probe) -> None:
    step = function()(lambda: sends(probe, (INPUT,)))
    step()
    assert probe.marks == []
    step()
    assert [name for name, _ in probe.marks] == ["computes", "computed"]
    probe.marks.clear()
    probe.ledger.enter(EVALUATION, 0)
    step()
    assert probe.marks == []


def test_a_function_that_begins_to_train_is_known_from_its_next_call_on(probe: Probe) -> None:
    def body() -> None:
        if trains:
            function_calls.note_operations(trains=True)
            sends(probe, (LOSS, GRADIENTS))

    trains = False
    step = function()(body)
    for trains in (False, True, True):  # noqa: B007 - the body reads it
        step()
    names = ["forward", "backward", "gradients"]
    assert [name for name, _ in probe.marks] == ["computes", "computed", *names]


def test_an_update_alone_and_a_backward_alone(probe: Probe) -> None:
    def accumulates() -> None:
        function_calls.note_operations(trains=True)
        sends(probe, (LOSS, GRADIENTS))

    gradients = function()(accumulates)
    update = function()(lambda: function_calls.note_operations(updates=True))
    for one in (gradients, update):
        one()
    names = ["forward", "backward", "gradients", "updates", "updated"]
    assert [name for name, _ in probe.marks] == names


def accumulation(probe: Probe, graphs: int) -> Callable[[], None]:
    """Four passes in a call, in one graph or in one that runs four times; no optimizer."""

    def body() -> None:
        function_calls.note_operations(trains=True)
        kinds = (LOSS, GRADIENTS) * (4 // graphs)
        layout = tuple(Stamp(kind, at // 2, 0, at) for at, kind in enumerate(kinds))
        for _ in range(graphs):
            began = probe.clock() / 1e9
            graph_stamps.tracing.send(
                (layout,), [began + 0.1 * at for at in range(1, len(layout) + 1)]
            )

    return body


@pytest.mark.parametrize("graphs", [1, 4])
def test_an_accumulation_without_an_optimizer_is_one_step(probe: Probe, graphs: int) -> None:
    told: list[Step] = []
    fast_path = StepFastPath(Ledger(0), told.append, lambda: (0, 0, 0, 0))
    probe.mark = fast_path.mark  # type: ignore[method-assign, assignment]
    layouts: list[Layout] = []

    def send(sent: tuple[Layout, ...], values: list[float]) -> None:
        layouts[:] = layouts or [sent[0]]
        function_calls._collect_stamps((layouts[0],), values)

    step = function()(accumulation(probe, graphs))
    graph_stamps.tracing.send = send
    for _ in range(30):
        step()
    fast_path.engine().leave()
    assert len(told) == 30
    for one in told[5:-1]:
        seconds = {name: ns / 1e9 for name, ns in zip(PHASES, one.phases, strict=True) if ns}
        assert set(seconds) == {"forward", "backward", "other"}
        assert seconds["backward"] == pytest.approx(0.4)
        assert one.backwards == 4


def test_batches_that_a_graph_fetches_are_turns_without_an_optimizer_too(probe: Probe) -> None:
    layouts = (tuple(Stamp(kind, 0, 0, kind) for kind in (INPUT, LOSS, GRADIENTS)),)

    def body() -> None:
        function_calls.note_operations(trains=True, fetches=True)
        for _ in range(3):
            began = probe.clock() / 1e9
            graph_stamps.tracing.send(layouts, [began + 0.1 * at for at in range(1, 4)])

    told: list[Step] = []
    fast_path = StepFastPath(Ledger(0), told.append, lambda: (0, 0, 0, 0))
    probe.mark = fast_path.mark  # type: ignore[method-assign, assignment]
    step = function()(body)
    for _ in range(10):
        step()
    fast_path.engine().leave()
    assert len(told) == 30


def test_a_function_inside_another_belongs_to_it(probe: Probe) -> None:
    def trains() -> None:
        function_calls.note_operations(trains=True)
        sends(probe, (LOSS, GRADIENTS))

    kind = function()
    outer = kind(kind(trains))
    outer()
    assert [name for name, _ in probe.marks] == ["forward", "backward", "gradients"]


def test_calls_of_other_threads_are_not_the_loops(probe: Probe) -> None:
    step = function()(lambda: function_calls.note_operations(trains=True))
    other = threading.Thread(target=step)
    other.start()
    other.join()
    assert probe.marks == []
    assert function_calls.current_call.facts is None


@pytest.mark.usefixtures("probe")
def test_who_asks_for_a_graph_gets_one_without_stamps() -> None:
    plain, stamped = function()(list), function()(_traced_with_stamps)
    plain()
    stamped()
    assert plain.get_concrete_function() is plain
    asked = stamped.get_concrete_function()
    assert asked is not stamped
    assert asked.body is stamped.body
    assert stamped.get_concrete_function() is asked


@pytest.mark.usefixtures("probe")
def test_what_xla_compiles_calls_functions_without_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    class Inner:
        """A body that tells whose it is."""

        def __call__(self) -> None:
            ran.append(sys._getframe(1).f_locals["self"])
            graph_stamps.tracing.stamped = 1

    inner = function()(Inner())
    inner()
    tensorflow = SimpleNamespace(executing_eagerly=lambda: False, config=None)
    outer = function(compiles=True)(inner)
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    outer()
    assert ran[0] is inner
    assert ran[1] is inner.get_concrete_function()


def _traced_with_stamps() -> None:
    graph_stamps.tracing.stamped += 1


def test_an_exception_passes_as_it_is(probe: Probe) -> None:
    def body() -> None:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        function()(body)()
    assert function_calls.current_call.facts is None
    assert probe.marks == []
