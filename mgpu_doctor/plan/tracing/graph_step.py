"""A training step of a Keras model, or of the user's own, traced by TensorFlow or run.

Also reads what the user's function returned, makes layers recompute in backward, and makes
variables without contents, so that a model of any size can be traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from mgpu_doctor.analysis.memory import liveness
from mgpu_doctor.analysis.memory.memory_plan import (
    Checkpointing,
    Framework,
    Optimizer,
    Precision,
    Settings,
)
from mgpu_doctor.analysis.memory.stream import Kind
from mgpu_doctor.plan.tracing import graph_run
from mgpu_doctor.plan.tracing.graph_nodes import UnfollowableError, flatten_graph
from mgpu_doctor.plan.tracing.user_function import StepError, TargetError, describe_error
from mgpu_doctor.plan.tracing_protocol import Answer

_POLICY = {Precision.FP32: "float32", Precision.BF16: "mixed_bfloat16"}
_OPTIMIZERS = {
    Optimizer.ADAMW: keras.optimizers.AdamW,
    Optimizer.ADAM: keras.optimizers.Adam,
    Optimizer.SGD: keras.optimizers.SGD,
}
COMPILED = (
    "XLA compiles a part of the step and plans its memory itself; it is counted as without XLA"
)
OWN = "the step is your own: its optimizer is the one that you gave it"


def trace(
    function: Callable[[], Any],
    settings: Settings,
    *,
    real: bool,
    order: liveness.Order = liveness.Order.BREADTH,
) -> Answer:
    """Returns the traced step that `function` describes.

    `real`: run it on the CPU with TensorFlow's GPU allocator (graph_run.py). Raises TargetError if
    it describes no step, StepError if the step fails.
    """
    step: _GraphStep | None = None
    try:
        with nullcontext() if real else variables_without_contents():
            with _keras_precision(settings):
                step = _GraphStep(read_target(function()), settings)
                batch = step.batch(settings.batch, real=real)
                traced = tf.function(step, autograph=False).get_concrete_function(*_specs(batch))
            parameters = step.parameters(traced)
            kinds = step.kinds(traced)
            if real:
                stream = graph_run.measure_stream(traced, batch, kinds, settings.batch, parameters)
                return Answer(stream, framework=Framework.TENSORFLOW, notes=step.notes)
            flat = flatten_graph(traced, {id(each.handle): kind for each, kind in kinds})
        stream = liveness.build_stream(flat.nodes, flat.held, settings.batch, parameters, order)
    except TargetError:
        raise
    except UnfollowableError as error:
        raise StepError(str(error), step.parameters(None) if step else None) from None
    except Exception as error:
        raise StepError(
            describe_error(error), None if step is None else step.parameters(None)
        ) from error
    notes = (*step.notes, COMPILED) if flat.compiled else step.notes
    return Answer(stream, framework=Framework.TENSORFLOW, notes=notes)


class _GraphStep:
    """One training step, called with the parts of a batch."""

    def __init__(self, trained: Trained, settings: Settings) -> None:
        self.trained = trained
        self.notes = (OWN,) if trained.step is not None else ()
        self._optimizer: Any = getattr(trained.model, "optimizer", None)
        self._shape: Any = None
        self._sums: dict[int, Any] = {}
        """Accumulated gradients of earlier micro-batches, by the variable's id."""
        self._accumulate = settings.accumulate
        if trained.model is not None and settings.checkpointing is not Checkpointing.NONE:
            _apply_checkpointing(trained.model, settings.checkpointing)
        if trained.step is not None:
            self._refuse(settings)
        else:
            self._optimizer = _OPTIMIZERS[settings.optimizer](1e-3)
        if trained.model is not None and _is_built(trained.model):
            self._make_variables(trained.model.trainable_variables)

    def batch(self, samples: int, *, real: bool) -> Any:
        """Returns the batch, made inside a graph if possible, where it takes no memory."""
        if not real:
            try:
                with tf.Graph().as_default():
                    return self._found(self.trained.batch(samples))
            except TargetError:
                raise
            except Exception:
                pass
        return self._found(self.trained.batch(samples))

    def __call__(self, *parts: Any) -> Any:
        batch = tf.nest.pack_sequence_as(self._shape, parts)
        if self.trained.step is not None:
            several = isinstance(batch, tuple) and self.trained.model is None
            return self.trained.step(*batch) if several else self.trained.step(batch)
        assert self.trained.loss is not None
        model = self.trained.model
        with tf.GradientTape() as tape:
            loss = self.trained.loss(model, batch)
            if not isinstance(loss, tf.Tensor) or loss.shape.num_elements() != 1:
                raise TargetError("the loss must be a scalar tensor.")
            part = loss / self._accumulate
        variables = model.trainable_variables
        if not variables:
            raise TargetError("the model has no parameters to train.")
        gradients = tape.gradient(part, variables)
        if all(gradient is None for gradient in gradients):
            raise TargetError("the loss does not depend on a trained parameter of the model.")
        self._update(variables, gradients)
        return loss

    def parameters(self, traced: Any) -> int:
        """The number of trained parameters."""
        if self.trained.model is not None:
            trained = self.trained.model.trainable_variables
        else:
            trained = (
                [variable for variable in traced.graph.variables if variable.trainable]
                if traced
                else []
            )
        return sum(_count_numbers(each) for each in trained)

    def kinds(self, traced: Any) -> list[tuple[Any, Kind]]:
        """Returns the kinds of the step's variables. If the user's own step does not specify it, an
        untrained variable with the shape of a weight is an optimizer state."""
        states = {id(each.value.handle) for each in getattr(self._optimizer, "variables", ())}
        sums = {id(each.handle) for each in self._sums.values()}
        shapes = {tuple(each.shape) for each in traced.graph.variables if each.trainable}
        tensors = []
        for variable in traced.graph.variables:
            state = id(variable.handle) in states or (
                self.trained.model is None
                and not variable.trainable
                and tuple(variable.shape) in shapes
            )
            kind = Kind.GRADIENTS if id(variable.handle) in sums else Kind.WEIGHTS
            tensors.append((variable, Kind.OPTIMIZER if state else kind))
        return tensors

    def _make_variables(self, trained: list[Any]) -> None:
        """Makes the optimizer's variables before tracing, if the model's exist: TensorFlow traces a
        step that makes variables twice."""
        if self._optimizer is not None and not self._optimizer.built and trained:
            self._optimizer.build(trained)
        if self._accumulate > 1:
            self._sums = {
                id(each): tf.Variable(lambda v=each: tf.zeros(v.shape), trainable=False)
                for each in trained
            }

    def _update(self, variables: list[Any], gradients: list[Any]) -> None:
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        if self._accumulate > 1:
            if not self._sums:
                with tf.init_scope():
                    self._make_variables(variables)
            sums = [self._sums[id(v)] for _, v in pairs]
            pairs = [(g + s, v) for (g, v), s in zip(pairs, sums, strict=True)]
            self._optimizer.apply_gradients(pairs)
            for each in sums:
                each.assign(tf.zeros_like(each))
        else:
            self._optimizer.apply_gradients(pairs)

    def _found(self, batch: Any) -> Any:
        find_tensors(batch)
        self._shape = tf.nest.map_structure(lambda _: 0, batch)
        return batch

    def _refuse(self, settings: Settings) -> None:
        """Refuses settings that the user's own step does not support."""
        asked = {
            "--accumulate": settings.accumulate > 1,
            "--optimizer": settings.optimizer is not Optimizer.ADAMW,
            "--checkpointing": self.trained.model is None
            and settings.checkpointing is not Checkpointing.NONE,
            "--precision": self.trained.model is None and settings.precision is not Precision.FP32,
        }
        for option, given in asked.items():
            if given:
                why = f"the training step is your own, so {option} cannot change it"
                raise TargetError(f"{why}: build it into the step.")


@contextmanager
def _keras_precision(settings: Settings) -> Iterator[None]:
    """Sets the precision, which Keras fixes while a model is built."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy(_POLICY[settings.precision])
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def _is_built(model: Any) -> bool:
    return bool(model.built) and all(layer.built for layer in model.layers)


def _apply_checkpointing(model: Any, how: Checkpointing) -> None:
    if how is Checkpointing.HALF:
        raise TargetError("--checkpointing half is torch's: of TensorFlow, full can be planned.")
    if not recompute_layers(model):
        raise TargetError(
            "no layer of the model can be recomputed: build tf.recompute_grad into the model."
        )


def _specs(batch: Any) -> list[Any]:
    return [tf.TensorSpec(each.shape, each.dtype) for each in tf.nest.flatten(batch)]


def _count_numbers(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() or 0)


PROTOCOL = (
    "return (model, batch, loss), (compiled model, batch) or (step, batch): a Keras model, a "
    "function of the number of samples that makes a batch, and a function of model and batch that "
    "gives the loss; or a training step of yours, called with the batch (docs/plan.md)"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """What is trained; it has either `loss` or `step`. `own`: whether model and optimizer are in
    the user's own step, or the model was compiled with an optimizer."""

    model: Any
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any] | None
    step: Callable[..., Any] | None


def read_target(returned: Any) -> Trained:
    """Returns what the user's function returned, checked. Raises TargetError if it is something
    else."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    if len(parts) not in (2, 3) or not all(callable(part) for part in parts):
        what = ", ".join(type(part).__name__ for part in parts)
        raise TargetError(f"the function returned ({what}); let it {PROTOCOL}.")
    model = parts[0] if isinstance(parts[0], keras.Model) else None
    if len(parts) == 3:
        if model is None:
            raise TargetError(f"the first of three must be a Keras model; let it {PROTOCOL}.")
        return Trained(model, parts[1], parts[2], None)
    if model is None:
        return Trained(None, parts[1], None, parts[0])
    if not model.compiled:
        raise TargetError(f"the model is not compiled, and there is no loss; let it {PROTOCOL}.")
    return Trained(model, parts[1], None, model.train_step)


def find_tensors(batch: Any) -> list[Any]:
    """Returns all tensors inside a batch. Raises TargetError if there are none."""
    tensors = [each for each in tf.nest.flatten(batch) if hasattr(each, "shape")]
    if not tensors:
        raise TargetError(
            "the batch contains no tensors: make it a tensor, or a tuple or dict of tensors."
        )
    return tensors


def recompute_layers(model: Any) -> bool:
    """Makes layers recompute in backward; returns False if the model has no such layer. Layers that
    count batches or draw random numbers (batch norm, dropout) are left unchanged: they would do so
    twice."""
    wrapped = [
        layer
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer) and not layer.non_trainable_variables
    ]
    for layer in wrapped:
        layer.call = _recomputing(layer.call)
    return bool(wrapped)


def _recomputing(call: Callable[..., Any]) -> Callable[..., Any]:
    def recomputed(*inputs: Any, **options: Any) -> Any:
        return tf.recompute_grad(partial(call, **options))(*inputs)

    return recomputed


SMALL_VARIABLE = 1 << 14
"""Elements. Smaller variables are made as usual: counters and rates are read outside graphs."""


@contextmanager
def variables_without_contents() -> Iterator[None]:
    with tf.variable_creator_scope(_make_empty):
        yield


def _make_empty(make: Any, **asked: Any) -> Any:
    value, shape = asked.get("initial_value"), asked.get("shape")
    with tf.Graph().as_default():  # infers it without computing it
        made = tf.convert_to_tensor(value() if callable(value) else _as_graph_tensor(value))
    shape = tf.TensorShape(shape) if shape is not None else made.shape
    if not shape.is_fully_defined() or shape.num_elements() < SMALL_VARIABLE:
        return make(**asked)
    return resource_variable_ops.UninitializedVariable(
        trainable=asked.get("trainable"),
        name=asked.get("name"),
        shape=shape,
        dtype=tf.as_dtype(asked.get("dtype") or made.dtype),
        synchronization=asked.get("synchronization"),
        aggregation=asked.get("aggregation"),
    )


def _as_graph_tensor(value: Any) -> Any:
    """Returns an eager tensor as a graph tensor."""
    if isinstance(value, tf.Tensor):
        return tf.compat.v1.placeholder(value.dtype, value.shape)
    return value
