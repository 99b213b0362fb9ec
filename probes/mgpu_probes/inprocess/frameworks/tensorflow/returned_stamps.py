"""Stamps that a graph returns beside its own results, so that the loop finds them in memory when a
call is over: a call from the graph into Python costs several times as much.

TensorFlow makes what a call returns from flat tensors, by a type that was found when the function
was traced. Ours stands before that type: one more tensor, which is taken out on the way. It is of
whole numbers, for which no gradient is ever asked.
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
    """How graphs may send."""

    possible = False
    """Whether this TensorFlow can be taught to return more."""
    called = False
    """Whether the innermost function that is being traced is traced because it was called: what a
    program asks for as a graph may go to where its results are counted."""


returning = _Returned()
_READY = "__mgpu_returns__"
"""An attribute of graphs whose tracing is over."""

Take = Callable[[Layouts, Any], None]
"""Takes what a call returned beside its results."""


class _OutputWithStamps:
    """The type of a result, and of what is returned beside it."""

    def __init__(self, output: Any, layouts: Layouts, kind: Any, take: Take) -> None:
        self._own, self._layouts, self._kind, self._take = output, layouts, kind, take

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._own, name)

    def __repr__(self) -> str:
        return repr(self._own)

    def flatten(self) -> list[Any]:
        """The types of all tensors."""
        return [*self._own.flatten(), self._kind]

    def from_tensors(self, tensors: Iterator[Any]) -> Any:
        """The result."""
        result = self._own.from_tensors(tensors)
        beside = next(tensors, None)
        if beside is not None and probe.on:
            try:
                self._take(self._layouts, beside)
            except Exception as trouble:
                probe.fail(trouble)
        return result


def patch(concrete_function: ModuleType) -> None:
    """Sees each function that is made of a graph."""
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
            ready = getattr(graph, _READY, None)
            if ready is not None:
                delattr(graph, _READY)
                function_type = _with_stamp_vector(graph, function_type, *ready)
        except Exception as trouble:
            probe.fail(trouble)
        return original(graph, function_type, *args, **kwargs)

    owner.from_func_graph = staticmethod(hidden(from_func_graph))
    returning.possible = True


def can(graph: Any) -> bool:
    """Whether a graph that is being traced can return more; bodies of loops and conditions (kinds
    of graphs of their own) cannot."""
    return (
        returning.possible
        and returning.called
        and type(graph).__name__ == "FuncGraph"
        and _at_once()
    )


def will(graph: Any, layouts: Layouts, vector: Any, take: Take) -> None:
    """`graph` returns `vector`, which is of `layouts`, and `take` gets it."""
    setattr(graph, _READY, (layouts, vector, take))


def _at_once() -> bool:
    """Whether a call has ended when it returns; to read what it gives would wait else."""
    return bool(tensorflow().config.experimental.get_synchronous_execution())


def _with_stamp_vector(
    graph: Any, function_type: Any, layouts: Layouts, vector: Any, take: Take
) -> Any:
    """The type of a function that returns `vector`, too."""
    if function_type is None or function_type.output is None:
        return function_type
    kind = tensorflow().TensorSpec(vector.shape, vector.dtype)
    output = _OutputWithStamps(function_type.output, layouts, kind, take)
    extended_type = type(function_type)(
        function_type.parameters.values(), function_type.captures, return_annotation=output
    )
    graph.outputs.append(vector)
    return extended_type
