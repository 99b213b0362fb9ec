"""What graphs return beside their results. TensorFlow is a fake: its types of functions and results
do what the real ones do with flat tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.inprocess.framework_adapters import give_context
from mgpu_probes.inprocess.frameworks.tensorflow import returned_stamps
from mgpu_probes.inprocess.frameworks.tensorflow.stamp_timeline import LOSS, Layouts, Stamp
from mgpu_probes.inprocess.probe_context import ProbeContext

LAYOUTS: Layouts = ((Stamp(LOSS, 0, 0, 0),),)
VECTOR = SimpleNamespace(shape=(1,), dtype="int64")


class Pair:
    """The type of a result of two tensors."""

    def flatten(self) -> list[str]:
        return ["float", "float"]

    def from_tensors(self, tensors: Iterator[Any]) -> tuple[Any, Any]:
        return next(tensors), next(tensors)

    def placeholder_value(self) -> str:
        return "its own"


class FunctionType:
    output: Any = None

    def __init__(
        self, parameters: Any = (), captures: Any = (), *, return_annotation: Any = None
    ) -> None:
        self.parameters, self.captures = dict(parameters), captures
        self.output = return_annotation

    def pack_output(self, flat: list[Any]) -> Any:
        return self.output.from_tensors(iter(flat))


class FuncGraph:
    def __init__(self) -> None:
        self.outputs = ["loss", "accuracy"]


class CondBranchFuncGraph(FuncGraph):
    pass


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module that makes functions of graphs, watched."""

    class ConcreteFunction:
        @classmethod
        def from_func_graph(cls, graph: Any, function_type: Any, attrs: Any) -> Any:
            return SimpleNamespace(graph=graph, type=function_type, attrs=attrs)

    experimental = SimpleNamespace(get_synchronous_execution=lambda: True)
    tensorflow = SimpleNamespace(
        config=SimpleNamespace(experimental=experimental),
        TensorSpec=lambda shape, dtype: f"{dtype}{list(shape)}",
    )
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setattr(returned_stamps, "returning", returned_stamps._Returned())
    context = ProbeContext()
    context.on = True
    give_context(context)
    module = SimpleNamespace(
        ConcreteFunction=ConcreteFunction,
        function_type_lib=SimpleNamespace(FunctionType=FunctionType),
        tensorflow=tensorflow,
    )
    returned_stamps.patch(module)  # type: ignore[arg-type]
    returned_stamps.returning.called = True
    return module


def test_a_call_gives_its_own_result_and_the_rest_is_taken(module: SimpleNamespace) -> None:
    taken: list[Any] = []
    graph, own = FuncGraph(), FunctionType(return_annotation=Pair())
    assert returned_stamps.can_return(graph)
    returned_stamps.add_result(
        graph, LAYOUTS, VECTOR, lambda layouts, rest: taken.append((layouts, rest))
    )
    made = module.ConcreteFunction.from_func_graph(graph, own, {"attr": 1})
    assert graph.outputs == ["loss", "accuracy", VECTOR]
    assert made.type.output.flatten() == ["float", "float", "int64[1]"]
    assert made.type.output.placeholder_value() == "its own"
    assert made.type.pack_output([0.5, 0.9, "stamps"]) == (0.5, 0.9)
    assert taken == [(LAYOUTS, "stamps")]
    assert made.type.pack_output([0.5, 0.9]) == (0.5, 0.9)
    assert (len(taken), made.attrs) == (1, {"attr": 1})


def test_a_graph_that_sends_nothing_stays_as_it_is(module: SimpleNamespace) -> None:
    graph, own = FuncGraph(), FunctionType(return_annotation=Pair())
    made = module.ConcreteFunction.from_func_graph(graph, own, attrs=None)
    assert made.type is own
    assert graph.outputs == ["loss", "accuracy"]


def test_trouble_with_the_rest_never_reaches_the_call(
    module: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Exception] = []
    monkeypatch.setattr(returned_stamps.probe, "fail", told.append)

    def take(_: Layouts, rest: Any) -> None:
        raise ValueError(rest)

    graph = FuncGraph()
    returned_stamps.add_result(graph, LAYOUTS, VECTOR, take)
    own = FunctionType(return_annotation=Pair())
    made = module.ConcreteFunction.from_func_graph(graph, own, None)
    assert made.type.pack_output([1, 2, "stamps"]) == (1, 2)
    assert [str(one) for one in told] == ["stamps"]


def test_branches_other_ways_to_a_graph_and_asynchronous_calls_return_nothing_more(
    module: SimpleNamespace,
) -> None:
    assert not returned_stamps.can_return(CondBranchFuncGraph())
    returned_stamps.returning.called = False
    assert not returned_stamps.can_return(FuncGraph())
    returned_stamps.returning.called = True
    module.tensorflow.config.experimental.get_synchronous_execution = lambda: False
    assert not returned_stamps.can_return(FuncGraph())


@pytest.mark.parametrize("module_of_old", [{}, {"ConcreteFunction": FuncGraph}])
def test_another_tensorflow_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, module_of_old: dict[str, Any]
) -> None:
    monkeypatch.setattr(returned_stamps, "returning", returned_stamps._Returned())
    returned_stamps.patch(SimpleNamespace(**module_of_old))  # type: ignore[arg-type]
    assert not returned_stamps.returning.possible
