"""Weights that a program updates itself in a graph. TensorFlow is a fake that builds one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.inprocess.framework_adapters import give_context
from mgpu_probes.inprocess.frameworks.tensorflow import (
    function_calls,
    graph_stamps,
    keras_optimizers,
)
from mgpu_probes.inprocess.frameworks.tensorflow.stamp_timeline import GRADIENTS, LOSS, Stamp
from mgpu_probes.inprocess.probe_context import ProbeContext

GRAPH = SimpleNamespace(experimental_acd_manager=object())


class Variable:
    def __init__(self, *, trainable: bool = True) -> None:
        self.trainable = trainable
        self.value = 5

    def assign_sub(self, less: int) -> int:
        self.value -= less
        return self.value


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a call that is under way, whose function is being traced."""
    fake = SimpleNamespace(
        executing_eagerly=lambda: False,
        compat=SimpleNamespace(v1=SimpleNamespace(get_default_graph=lambda: GRAPH)),
        distribute=SimpleNamespace(get_replica_context=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", fake)
    context = ProbeContext()
    context.on = True
    give_context(context)
    monkeypatch.setattr(graph_stamps.tracing, "allowed", lambda: True)
    monkeypatch.setattr(graph_stamps, "_pending", {})
    monkeypatch.setattr(graph_stamps, "_update_stamps", {})
    monkeypatch.setattr(function_calls, "current_call", function_calls._Call())
    function_calls.current_call.facts = function_calls.FunctionFacts()
    yield
    assert graph_stamps.tracing.off == ""


def watched() -> type[Any]:
    class Own(Variable):
        pass

    keras_optimizers.patch_variables(SimpleNamespace(Variable=Own))  # type: ignore[arg-type]
    return Own


def stamped(kind: int) -> None:
    sent = graph_stamps._pending.setdefault(id(GRAPH), graph_stamps._GraphStamps())
    sent.stamps.append(Stamp(kind, 0, 0, 0))


@pytest.mark.usefixtures("tensorflow")
def test_what_is_taken_from_a_weight_after_its_gradients_is_the_update() -> None:
    stamped(LOSS)
    stamped(GRADIENTS)
    assert watched()().assign_sub(2) == 3
    assert function_calls.current_call.facts is not None
    assert function_calls.current_call.facts.updates
    assert id(GRAPH) in graph_stamps._update_stamps


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize(("kind", "trainable"), [(LOSS, True), (GRADIENTS, False)])
def test_statistics_and_what_comes_before_gradients_are_none(kind: int, trainable: bool) -> None:
    stamped(kind)
    watched()(trainable=trainable).assign_sub(2)
    assert function_calls.current_call.facts is not None
    assert not function_calls.current_call.facts.updates
    assert graph_stamps._update_stamps == {}


def test_keras_on_torch_asks_nothing_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    context = ProbeContext()
    context.on = True
    give_context(context)
    assert watched()().assign_sub(2) == 3
    assert context.on
