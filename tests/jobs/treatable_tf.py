"""Keras' fit with one expensive habit, and the same with the habit corrected by hand."""

import argparse
import threading
import time

import tensorflow as tf

keras = tf.keras


class Chain(keras.layers.Layer):  # type: ignore[name-defined, misc]
    """Small operations that a compiler can fuse. `python`: it also calls a function of Python, as
    XLA cannot. `sensitive`: its result needs more digits than bfloat16 has."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.count, self.python, self.sensitive = args.chain, args.python, args.sensitive

    def call(self, x: tf.Tensor) -> tf.Tensor:
        for _ in range(self.count):
            x = tf.maximum(x, 0.0) * 0.99 + 0.01
        if self.python:
            called = tf.numpy_function(lambda value: value, [tf.stop_gradient(x)], x.dtype)
            x = x + 0 * tf.reshape(called, tf.shape(x))
        if self.sensitive:
            x = (x + 1000) - 1000
        return x


class OneCaller:
    """Takes so long to load a sample. `exclusive`: fails if it is called twice at once."""

    def __init__(self, seconds: float, *, exclusive: bool) -> None:
        self.seconds, self.exclusive = seconds, exclusive
        self.lock = threading.Lock()

    def __call__(self) -> None:
        is_first = self.lock.acquire(blocking=False)
        if self.exclusive and not is_first:
            raise RuntimeError("a sample is loaded already")
        time.sleep(self.seconds)
        if is_first:
            self.lock.release()


def pipeline(args: argparse.Namespace) -> tf.data.Dataset:
    """One epoch; each sample takes so long to load."""

    wait = OneCaller(args.sample_ms / 1000, exclusive=args.exclusive)

    def load(index: tf.Tensor) -> tf.Tensor:
        if args.sample_ms:
            tf.numpy_function(wait, [], [])
        sample = tf.fill((args.width,), tf.cast(index, tf.float32) / (args.epoch * args.batch))
        return sample, sample[:1]

    data = tf.data.Dataset.range(args.epoch * args.batch)
    data = data.map(load, num_parallel_calls=args.parallel or None)
    if args.cache:
        data = data.cache()
    data = data.batch(args.batch)
    if args.prefetch:
        data = data.prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    if args.as_written:  # else it prefetches by itself
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
    return data.with_options(options)


def options() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("epochs", 10), ("epoch", 2000), ("batch", 4), ("width", 16), ("layers", 2),
        ("parallel", 0), ("chain", 0), ("floor", 0),
    ):  # fmt: skip
        known.add_argument(f"--{name}", type=int, default=default)
    for name in ("sample-ms", "step-ms"):
        known.add_argument(f"--{name}", type=float, default=0.0)
    for name in ("cache", "prefetch", "exclusive", "python", "sensitive", "mixed", "as-written"):
        known.add_argument(f"--{name}", action="store_true")
    known.add_argument("--jit", action=argparse.BooleanOptionalAction, default="auto")
    return known


def main() -> None:
    args = options().parse_args()
    keras.utils.set_random_seed(0)
    if args.mixed:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    layers = [keras.layers.Dense(args.width, "relu") for _ in range(args.layers)]
    if args.chain or args.sensitive:
        layers.append(Chain(args))
    layers.append(keras.layers.Dense(1, dtype="float32"))
    model = keras.Sequential([keras.layers.Input((args.width,)), *layers])

    def loss(wanted: tf.Tensor, answer: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(wanted - answer)) + args.floor

    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=args.jit)
    callbacks = []
    if args.step_ms:
        callbacks.append(
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda *_, **__: time.sleep(args.step_ms / 1000)
            )
        )
    model.fit(pipeline(args), epochs=args.epochs, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main()
