"""A step of TensorFlow is traced: what is seen of it, and what is reported if nothing can be.

In this process nothing of it is computed; against real steps it is held in test_tf_plans.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from mgpu_doctor.analysis.memory.allocator_replay import replay
from mgpu_doctor.analysis.memory.liveness import Order
from mgpu_doctor.analysis.memory.memory_plan import (
    Checkpointing,
    Framework,
    Optimizer,
    Precision,
    Settings,
)
from mgpu_doctor.analysis.memory.stream import Allocated, Freed, Kind, Phase, Stream
from mgpu_doctor.analysis.memory.stream_edits import interpolate_batch
from mgpu_doctor.plan.tracing.graph_step import OWN, trace
from mgpu_doctor.plan.tracing.user_function import StepError, TargetError
from mgpu_doctor.plan.tracing_protocol import Answer

pytestmark = pytest.mark.slow

WIDTH, SAMPLES = 256, 64
MATRIX, ACTIVATION = 4 * WIDTH * WIDTH, 4 * WIDTH * SAMPLES


def batch(samples: int) -> Any:
    return tf.ones((samples, WIDTH))


def squares(model: Any, given: Any) -> Any:
    return tf.reduce_sum(tf.square(model(given)))


def matrices(activation: str = "relu") -> Any:
    inputs = keras.Input((WIDTH,))
    first = keras.layers.Dense(WIDTH, activation, use_bias=False)(inputs)
    return keras.Model(inputs, keras.layers.Dense(WIDTH, use_bias=False)(first))


def two_matrices() -> Any:
    return matrices(), batch, squares


def traced(function: Callable[[], Any], settings: Settings, order: Order = Order.BREADTH) -> Answer:
    return trace(function, settings, real=False, order=order)


def sizes(stream: Stream, kind: Kind, *, set_up: bool = False) -> list[int]:
    return [
        event.size
        for event in stream.events
        if isinstance(event, Allocated)
        and event.kind is kind
        and event.size >= ACTIVATION
        and set_up <= (event.phase is Phase.SETUP)
    ]


def peak(answer: Answer) -> int:
    return replay(answer.stream, framework=Framework.TENSORFLOW).peak_allocated


@pytest.fixture(scope="module")
def adam() -> Answer:
    return traced(two_matrices, Settings(SAMPLES))


def test_each_buffer_is_known_for_what_it_is(adam: Answer) -> None:
    stream = adam.stream
    assert adam.framework is Framework.TENSORFLOW
    assert stream.parameters == 2 * WIDTH * WIDTH
    assert sizes(stream, Kind.WEIGHTS, set_up=True) == [MATRIX] * 2
    assert sizes(stream, Kind.OPTIMIZER) == [MATRIX] * 4
    assert sizes(stream, Kind.BATCH) == [ACTIVATION]
    assert sizes(stream, Kind.GRADIENTS) == [MATRIX] * 2
    assert sizes(stream, Kind.ACTIVATIONS) == [ACTIVATION] * 2  # relu works in place
    taken = [event for event in stream.events if isinstance(event, Allocated)]
    assert {e.phase for e in taken if e.kind is Kind.GRADIENTS} == {Phase.BACKWARD}
    assert {each.phase for each in taken} == set(Phase)


def test_after_the_step_weights_states_and_batch_are_left(adam: Answer) -> None:
    freed = {event.block for event in adam.stream.events if isinstance(event, Freed)}
    taken = [event for event in adam.stream.events if isinstance(event, Allocated)]
    left = [event.size for event in taken if event.block not in freed and event.size >= ACTIVATION]
    assert sorted(left) == [ACTIVATION, *[MATRIX] * 6]


def test_a_step_at_any_batch_follows_from_two(adam: Answer) -> None:
    other, wanted = (traced(two_matrices, Settings(samples)).stream for samples in (128, 192))
    found = interpolate_batch(adam.stream, other, 192)
    assert found is not None
    assert replay(found).peak_allocated == replay(wanted).peak_allocated


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_model_that_is_built_is_traced_once(micro_batches: int) -> None:
    called = []

    def counted(model: Any, given: Any) -> Any:
        called.append(given)
        return squares(model, given)

    settings = Settings(SAMPLES, micro_batches)
    again = traced(lambda: (matrices(), batch, counted), settings)
    assert len(called) == 1
    assert peak(again) == peak(traced(two_matrices, settings))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_model_that_is_built_by_its_first_call_is_traced_all_the_same(micro_batches: int) -> None:
    def lazy() -> Any:
        layers = [keras.layers.Dense(WIDTH, each, use_bias=False) for each in ("relu", None)]
        return keras.Sequential(layers), batch, squares

    settings = Settings(SAMPLES, micro_batches)
    assert peak(traced(lazy, settings)) == peak(traced(two_matrices, settings))


def test_sgd_has_no_states(adam: Answer) -> None:
    answer = traced(two_matrices, Settings(SAMPLES, optimizer=Optimizer.SGD))
    assert sizes(answer.stream, Kind.OPTIMIZER) == []
    assert peak(adam) - peak(answer) >= 4 * MATRIX


def test_accumulated_gradients_stay_beside_those_of_a_micro_batch() -> None:
    answer = traced(two_matrices, Settings(SAMPLES, 2))
    held = [e for e in answer.stream.events if isinstance(e, Allocated) and e.phase is Phase.SETUP]
    assert [each.size for each in held if each.kind is Kind.GRADIENTS] == [MATRIX] * 2


def test_mixed_precision_halves_activations_and_keeps_weights() -> None:
    before = keras.mixed_precision.dtype_policy().name
    stream = traced(two_matrices, Settings(2 * SAMPLES, precision=Precision.BF16)).stream
    assert keras.mixed_precision.dtype_policy().name == before
    assert sizes(stream, Kind.WEIGHTS, set_up=True) == [MATRIX] * 2
    assert ACTIVATION in sizes(stream, Kind.ACTIVATIONS)  # twice the samples, half the size


def test_recomputed_layers_keep_their_inputs_alone() -> None:
    def gelu() -> Any:  # keeps several buffers, if it is not computed again
        return matrices("gelu"), batch, squares

    wide = Settings(64 * SAMPLES, optimizer=Optimizer.SGD)
    full = Settings(64 * SAMPLES, optimizer=Optimizer.SGD, checkpointing=Checkpointing.FULL)
    assert peak(traced(gelu, full)) < peak(traced(gelu, wide))


def test_a_compiled_model_is_traced_with_its_own_optimizer() -> None:
    def compiled() -> Any:
        model = matrices()
        model.compile(optimizer="rmsprop", loss="mse")
        return model, lambda samples: (batch(samples), batch(samples))

    answer = traced(compiled, Settings(SAMPLES))
    assert answer.notes == (OWN,)
    assert sizes(answer.stream, Kind.OPTIMIZER) == [MATRIX] * 2


def test_a_step_of_ones_own_is_put_in_line() -> None:
    def own() -> Any:
        weight = tf.Variable(lambda: tf.ones((WIDTH, WIDTH)), name="weight")
        velocity = tf.Variable(lambda: tf.zeros((WIDTH, WIDTH)), trainable=False)

        def step(given: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(given @ weight))
            velocity.assign(0.9 * velocity + tape.gradient(loss, weight))
            weight.assign_sub(0.1 * velocity)
            return loss

        return tf.function(step), batch

    stream = traced(own, Settings(SAMPLES)).stream
    assert sizes(stream, Kind.WEIGHTS, set_up=True) == [MATRIX]
    assert sizes(stream, Kind.OPTIMIZER) == [MATRIX]
    assert sizes(stream, Kind.GRADIENTS) == [MATRIX]
    assert stream.parameters == WIDTH * WIDTH


def test_a_model_larger_than_memory_is_traced() -> None:
    def huge() -> Any:
        inputs = keras.Input((1 << 20,))
        model = keras.Model(inputs, keras.layers.Dense(1 << 20, use_bias=False)(inputs))
        return model, lambda samples: tf.ones((samples, 1 << 20)), squares

    assert traced(huge, Settings(1)).stream.parameters == 1 << 40  # 4 TiB


def test_where_the_graph_does_not_tell_the_run_is_left_to_decide() -> None:
    def looping(model: Any, given: Any) -> Any:
        rounds = tf.cast(tf.reduce_sum(given), tf.int32)
        return tf.while_loop(
            lambda i, _: i < rounds, lambda i, x: (i + 1, x + squares(model, given)), (0, 0.0)
        )[1]

    def choosing(model: Any, given: Any) -> Any:
        return tf.reduce_sum(tf.boolean_mask(model(given), given > 0))

    for loss, said in ((looping, "control flow"), (choosing, "shape of a tensor is not known")):
        with pytest.raises(StepError, match=said) as caught:
            traced(lambda loss=loss: (matrices(), batch, loss), Settings(SAMPLES))  # type: ignore[misc]
        assert caught.value.parameters == 2 * WIDTH * WIDTH


@pytest.mark.parametrize(
    ("returned", "settings", "message"),
    [
        (lambda: 3, Settings(2), "returned (int)"),
        (lambda: (matrices(), batch), Settings(2), "not compiled"),
        (lambda: (squares, batch, squares), Settings(2), "must be a Keras model"),
        (lambda: (matrices(), lambda _: (), squares), Settings(2), "contains no tensors"),
        (lambda: (matrices(), batch, lambda m, x: m(x)), Settings(2), "scalar tensor"),
        (
            lambda: (matrices(), batch, lambda _, x: tf.reduce_sum(x)),
            Settings(2),
            "does not depend on a trained",
        ),
        (lambda: (squares, batch), Settings(2, 4), "--accumulate cannot change it"),
        (two_matrices, Settings(2, checkpointing=Checkpointing.HALF), "half is torch's"),
    ],
)
def test_what_describes_no_step_is_refused_with_a_sentence(
    returned: Any, settings: Settings, message: str
) -> None:
    with pytest.raises(TargetError) as caught:
        traced(returned, settings)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
