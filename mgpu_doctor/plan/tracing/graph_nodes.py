"""Flattens a traced function into nodes of one graph, calls inlined, with each operation's memory
use.

The memory use follows the kernels (`forward_input…`, `set_output`). An unlisted operation makes new
buffers, so its memory may be overestimated, never underestimated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from mgpu_doctor.analysis.memory.liveness import Held, Node, Use
from mgpu_doctor.analysis.memory.stream import Kind, Phase

Value = tuple[int, int]
"""An operation's number, and the index of its output."""


class UnfollowableError(Exception):
    """The graph does not show how much memory it takes; the message says where."""


@dataclass(slots=True)
class FlatGraph:
    """A flattened graph. `compiled`: whether XLA compiles a part of it and plans that part's memory
    itself."""

    held: list[Held] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    compiled: bool = False


def flatten_graph(traced: Any, kinds: Mapping[int, Kind]) -> FlatGraph:
    """Returns the flattened graph. `traced`: a concrete function. `kinds`: kinds of variables, by
    the id of their handle."""
    made = _GraphFlattener()
    captured = {inner.name: outer for outer, inner in traced.graph.captures}
    given = []
    for tensor in traced.graph.inputs:
        outer = captured.get(tensor.name)
        kind = Kind.BATCH if outer is None else kinds.get(id(outer), Kind.WEIGHTS)
        given.append(made.hold(tensor, outer, kind))
    made.graph(traced.graph, given, ())
    weights = {each.size for each in made.flat.held if each.kind is Kind.WEIGHTS}
    made.flat.nodes = _assign_phases(made.flat.nodes, weights)
    return made.flat


class _GraphFlattener:
    def __init__(self) -> None:
        self.flat = FlatGraph()
        self._variable: dict[Value, int] = {}

    def hold(self, inner: Any, outer: Any, kind: Kind) -> Value:
        """Adds an input of the function: a variable, a constant, a part of the batch."""
        size = _tensor_bytes(
            inner if outer is None or inner.dtype != tf.resource else _variable_spec(outer)
        )
        self.flat.held.append(Held(inner.op.name, size or 0, kind))
        held = len(self.flat.held) - 1
        resource = inner.dtype == tf.resource
        node = Node(inner.op.name, Use.READS, (), (), (0 if resource else size or 0,), kind,
                    Phase.FORWARD, None if resource else held)  # fmt: skip
        value = self._add(node)
        if resource:
            self._variable[value] = held
        return value

    def graph(
        self, graph: Any, given: Sequence[Value], after: tuple[int, ...], prefix: str = ""
    ) -> tuple[list[Value], tuple[int, ...]]:
        """Adds the nodes of a graph; returns its outputs, and the nodes that must end before it
        ends."""
        known = {tensor.name: value for tensor, value in zip(graph.inputs, given, strict=True)}
        ends: dict[str, tuple[int, ...]] = {}
        if loop := next((op for op in graph.get_operations() if op.type in LOOPS), None):
            raise UnfollowableError(
                f"it has control flow ({loop.type}, {loop.name}), and the graph does not say "
                "how often it runs"
            )
        for op in graph.get_operations():
            if op.outputs and op.outputs[0].name in known:
                ends[op.name] = ()
                continue
            inputs = tuple(known[tensor.name] for tensor in op.inputs)
            waits = tuple(
                n for control_input in op.control_inputs for n in ends.get(control_input.name, ())
            )
            waits = tuple(dict.fromkeys(waits if inputs or waits else after))
            if op.type in CALLS:
                values, ends[op.name] = self._call(graph, op, inputs, waits, prefix)
            else:
                number, _ = self._add(self._node(op, inputs, waits, prefix))
                ends[op.name] = (number,)
                values = [(number, output) for output in range(len(op.outputs))]
                if op.type == "Identity" and inputs[0] in self._variable:
                    self._variable[values[0]] = self._variable[inputs[0]]
            known.update((t.name, value) for t, value in zip(op.outputs, values, strict=True))
        over = [number for op in graph.control_outputs for number in ends.get(op.name, ())]
        return [known[tensor.name] for tensor in graph.outputs], tuple(over)

    def _call(
        self, graph: Any, op: Any, inputs: tuple[Value, ...], waits: tuple[int, ...], prefix: str
    ) -> tuple[list[Value], tuple[int, ...]]:
        function = graph._get_function(op.get_attr("f").name)
        definition = function.cached_definition
        if "_XlaMustCompile" in definition.attr and definition.attr["_XlaMustCompile"].b:
            self.flat.compiled = True
        inner = function.graph  # as traced: the definition has lost the shapes of variables
        values, over = self.graph(inner, inputs, waits, f"{prefix}{op.name}/")
        return values, over or tuple(number for number, _ in values)

    def _node(
        self, op: Any, inputs: tuple[Value, ...], waits: tuple[int, ...], prefix: str
    ) -> Node:
        use = USES.get(op.type, Use.MAKES)
        held = self._variable.get(inputs[0]) if inputs else None
        if held is not None and use in (Use.MAKES, Use.REUSES, Use.PASSES):
            held = None  # a slice of a variable, or a fused update in place
        if use in (Use.READS, Use.UPDATES, Use.ASSIGNS) and held is None:
            raise UnfollowableError(f"a variable is not known ({op.type}, {op.name})")
        sizes = tuple(_output_bytes(op, tensor) for tensor in op.outputs)
        phase = Phase.BACKWARD if _is_backward(prefix + op.name) else Phase.FORWARD
        return Node(prefix + op.name, use, inputs, waits, sizes, Kind.TEMPORARY, phase, held)

    def _add(self, node: Node) -> Value:
        self.flat.nodes.append(node)
        return len(self.flat.nodes) - 1, 0


def _assign_phases(nodes: Sequence[Node], weights: Collection[int]) -> list[Node]:
    """Assigns phases and kinds. Everything after backward belongs to the optimizer. Outputs of
    forward that backward needs are activations. Outputs of backward that the optimizer needs, and
    that are as large as a weight, are gradients."""
    phased: list[Node] = []
    late: set[int] = set()
    for number, node in enumerate(nodes):
        before = {*(other for other, _ in node.inputs), *node.after}
        follows = bool(before & late)
        if follows or node.phase is Phase.BACKWARD:
            late.add(number)
        updates = follows and node.phase is Phase.FORWARD
        phased.append(replace(node, phase=Phase.OPTIMIZER) if updates else node)
    by_backward = _find_needed_by(phased, Phase.BACKWARD, {Use.PASSES, Use.REUSES})
    by_optimizer = _find_needed_by(phased, Phase.OPTIMIZER, {Use.PASSES})
    for number, node in enumerate(phased):
        if node.held is None and node.phase is Phase.FORWARD and number in by_backward:
            phased[number] = replace(node, kind=Kind.ACTIVATIONS)
        elif (
            node.phase is Phase.BACKWARD
            and number in by_optimizer
            and any(size in weights for size in node.sizes)
        ):
            phased[number] = replace(node, kind=Kind.GRADIENTS)
    return phased


def _find_needed_by(
    nodes: Sequence[Node], phase: Phase, through: Collection[Use]
) -> Collection[int]:
    """Returns the operations whose outputs are used in a phase, directly or through an alias."""
    needed: set[int] = set()
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        passes = node.use in through and number in needed
        if node.phase is phase or passes:
            needed.update(other for other, _ in node.inputs)
    return needed


def _is_backward(name: str) -> bool:
    parts = name.split("/")
    return "gradient_tape" in parts or parts[0] == "gradients"


def _output_bytes(op: Any, tensor: Any) -> int:
    """Returns the bytes of an output. Raises UnfollowableError if its shape is unknown."""
    size = _tensor_bytes(tensor)
    if size is None:
        if tensor.dtype in (tf.int32, tf.int64) and (tensor.shape.rank or 1) < 2:
            return 0  # a shape: it is on the host
        raise UnfollowableError(f"the shape of a tensor is not known ({op.type}, {op.name})")
    small = size < SMALL and (op.type == "Const" or tensor.dtype in (tf.int32, tf.int64))
    return 0 if small else size


def _tensor_bytes(tensor: Any) -> int | None:
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    elements = tensor.shape.num_elements()
    return None if elements is None else int(elements) * int(tensor.dtype.size)


def _variable_spec(handle: Any) -> Any:
    """Returns a variable's shape and type from its handle."""
    data = handle._handle_data
    shapes: Iterable[Any] = data.shape_and_type if data is not None and data.is_set else ()
    for each in shapes:
        return tf.TensorSpec(tf.TensorShape(each.shape), tf.as_dtype(each.dtype))
    return tf.TensorSpec((), tf.bool)


_PASS = """CheckNumerics EnsureShape ExpandDims Identity IdentityN PreventGradient Reshape Snapshot
Squeeze StopGradient"""

_REUSE = """Abs Add AddN AddV2 BiasAdd ClipByValue Cos Div DivNoNan Elu EluGrad Erf Erfc Exp Expm1
FusedBatchNormGradV3 InvGrad LeakyRelu LeakyReluGrad Log Log1p LogSoftmax LogicalNot Maximum Minimum
Mul MulNoNan Neg OnesLike Pow RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rsqrt
RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax Softplus SoftplusGrad
Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy ZerosLike"""

USES = {
    **dict.fromkeys(_PASS.split(), Use.PASSES),
    **dict.fromkeys(_REUSE.split(), Use.REUSES),
    "ReadVariableOp": Use.READS,
    "AssignVariableOp": Use.ASSIGNS,
    "AssignAddVariableOp": Use.UPDATES,
    "AssignSubVariableOp": Use.UPDATES,
}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
LOOPS = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "Enter", "Merge"}
"""Control flow: the graph does not contain how often its body runs."""
SMALL = 4096
"""Constants and integers of fewer bytes are folded away, or are on the host."""
