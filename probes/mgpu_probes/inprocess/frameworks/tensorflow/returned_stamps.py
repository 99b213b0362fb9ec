"""Lets a graph return its stamps together with its results. A call from the graph into Python would
cost several times as much.

TensorFlow builds the result of a call from flat tensors, by an output type found when the function
was traced. `_OutputWithStamps` wraps that type: it takes one more tensor, and removes it before the
user sees the result. The tensor holds integers, so that no gradient is computed for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ...probe_context import ProbeContext
from ...wrap import hidden
from .stamp_timeline import Layouts
from .tensorflow_support import tensorflow

probe: ProbeContext


class _Returned:
    """Whether graphs may return their stamps."""

    possible = False
    """Whether this version of TensorFlow has the functions that `patch` needs."""
    called = False
    """Whether the innermost function is traced because it was called. A graph that the program
    asked for, for an export, must keep its number of results."""


returning = _Returned()
_STAMPS = "__mgpu_returns__"
"""The attribute of a graph, after its tracing, that holds the stamps it is to return."""

Take = Callable[[Layouts, Any], None]
"""Receives the layouts and the vector that a call returned beside its results."""


class _OutputWithStamps:
    """The type of a function's output, with one more tensor for the stamps."""

    def __init__(self, output: Any, layouts: Layouts, kind: Any, take: Take) -> None:
        self._own, self._layouts, self._kind, self._take = output, layouts, kind, take

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._own, name)

    def __repr__(self) -> str:
        return repr(self._own)

    def flatten(self) -> list[Any]:
        """The types of all flat tensors: those of the result, then that of the stamps."""
        return [*self._own.flatten(), self._kind]

    def from_tensors(self, tensors: Iterator[Any]) -> Any:
        """The function's own result; hands the tensor of stamps to `take`."""
        result = self._own.from_tensors(tensors)
        beside = next(tensors, None)
        if beside is not None and probe.on:
            try:
                self._take(self._layouts, beside)
            except Exception as trouble:
                probe.fail(trouble)
        return result


def patch(concrete_function: ModuleType) -> None:
    """Wraps the creation of a function from a traced graph, to extend its output type."""
    owner = getattr(concrete_function, "ConcreteFunction", None)
    original = getattr(owner, "from_func_graph", None)
    types = getattr(getattr(concrete_function, "function_type_lib", None), "FunctionType", None)
    if (
        owner is None
        or not callable(original)
        or not (hasattr(types, "output") and hasattr(types, "pack_output"))
    ):
        return  # another TensorFlow: graphs send by calls

    @functools.wraps(original)
    def from_func_graph(graph: Any, function_type: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            ready = getattr(graph, _STAMPS, None)
            if ready is not None:
                delattr(graph, _STAMPS)
                function_type = _with_stamp_vector(graph, function_type, *ready)
        except Exception as trouble:
            probe.fail(trouble)
        return original(graph, function_type, *args, **kwargs)

    owner.from_func_graph = staticmethod(hidden(from_func_graph))
    returning.possible = True


def can_return(graph: Any) -> bool:
    """Whether the graph, which is being traced, can return stamps. Bodies of loops and conditions,
    which are other classes of graphs, cannot."""
    return (
        returning.possible
        and returning.called
        and type(graph).__name__ == "FuncGraph"
        and _calls_are_synchronous()
    )


def add_result(graph: Any, layouts: Layouts, vector: Any, take: Take) -> None:
    """Has `graph` return `vector`, whose values `layouts` describe; `take` gets it after each
    call."""
    setattr(graph, _STAMPS, (layouts, vector, take))


def _calls_are_synchronous() -> bool:
    """Whether a call returns only when it has ended: else reading its stamps would wait for it."""
    return bool(tensorflow().config.experimental.get_synchronous_execution())


def _with_stamp_vector(
    graph: Any, function_type: Any, layouts: Layouts, vector: Any, take: Take
) -> Any:
    """The function's type, extended by `vector` as one more result."""
    if function_type is None or function_type.output is None:
        return function_type
    kind = tensorflow().TensorSpec(vector.shape, vector.dtype)
    output = _OutputWithStamps(function_type.output, layouts, kind, take)
    extended_type = type(function_type)(
        function_type.parameters.values(), function_type.captures, return_annotation=output
    )
    graph.outputs.append(vector)
    return extended_type
