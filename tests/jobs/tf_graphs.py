"""Ways to run a function that trains by hand, over and over, and what each gives: the observed job
prints what the bare one does. `turns` counts those of the accumulation, which is the loop."""

import argparse
import tempfile
from typing import Any

import _tf
import numpy as np
import tensorflow as tf

PARTS = 4


class Line(tf.Module):  # type: ignore[misc]
    """A product with a matrix, and how to learn it."""

    def __init__(self) -> None:
        self.weights = tf.Variable(tf.eye(8) * 0.5)

    @tf.function  # type: ignore[untyped-decorator]
    def train(self, batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ self.weights - batch) ** 2)
        self.weights.assign_sub(0.1 * tape.gradient(loss, self.weights))
        return {"loss": loss, "nothing": None}

    @tf.function  # type: ignore[untyped-decorator]
    def accumulate(self, parts: Any) -> Any:
        total, loss = tf.zeros_like(self.weights), 0.0
        for part in tf.range(PARTS):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((parts[part] @ self.weights - parts[part]) ** 2)
            total += tape.gradient(loss, self.weights)
        self.weights.assign_sub(0.01 * total)
        return loss


@tf.function  # type: ignore[untyped-decorator]
def outside(line: Line, batch: Any) -> Any:
    """Gradients through a function that computes some itself."""
    with tf.GradientTape() as tape:
        loss = 2 * line.train(batch)["loss"]
    return tape.gradient(loss, line.weights)


@tf.function  # type: ignore[untyped-decorator]
def reduced(line: Line, batches: Any) -> Any:
    """Training by a data set's own loop, which counts what its function returns."""

    def one(total: Any, batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ line.weights - batch) ** 2)
        line.weights.assign_sub(0.1 * tape.gradient(loss, line.weights))
        return total + loss

    return batches.reduce(0.0, one)


@tf.function  # type: ignore[untyped-decorator]
def chosen(line: Line, batch: Any) -> Any:
    return tf.cond(tf.reduce_sum(batch) > 0, lambda: line.train(batch)["loss"], lambda: 0.0)


@tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
def compiled(line: Line, batch: Any) -> Any:
    """XLA compiles what was traced for TensorFlow before."""
    return line.train(batch)["loss"]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    args = options.parse_args()
    _tf.few_threads()
    line = Line()
    batch = tf.constant(np.random.default_rng(0).random((4, 8)), tf.float32)
    loss = 0.0
    parts = tf.data.Dataset.from_tensors(tf.stack([batch] * PARTS)).repeat(args.steps)
    for part in parts:
        loss = float(line.accumulate(part))
    print(f"turns {args.steps} loss {loss:.5f}")
    told = line.train(batch)
    print(sorted(told), told["nothing"], f"{float(told['loss']):.5f}")
    with tf.GradientTape() as tape:
        loss_ = line.train(batch)["loss"]
    print(f"{float(tf.reduce_sum(tape.gradient(loss_, line.weights))):.5f}")
    print(f"{float(tf.reduce_sum(outside(line, batch))):.5f}")
    print(f"{float(reduced(line, tf.data.Dataset.from_tensors(batch).repeat(3))):.5f}")
    print(f"{float(chosen(line, batch)):.5f}")
    concrete = line.train.get_concrete_function(batch)
    shown = line.train.pretty_printed_concrete_signatures().partition("Captures")[0]
    print(concrete.output_shapes, shown)
    print(len(line.accumulate.get_concrete_function(part).outputs))
    print(f"{float(concrete(batch)['loss']):.5f}", f"{float(compiled(line, batch)):.5f}")
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(line, folder)
        again = tf.saved_model.load(folder)
        print(f"{float(again.train(batch)['loss']):.5f}", flush=True)


if __name__ == "__main__":
    main()
