"""Keras' fit with one expensive habit, and the same with the habit corrected by hand."""

import argparse
import time

import tensorflow as tf

keras = tf.keras


def pipeline(args: argparse.Namespace) -> tf.data.Dataset:
    """One epoch; each sample takes so long to load."""

    def load(index: tf.Tensor) -> tf.Tensor:
        if args.sample_ms:
            tf.numpy_function(lambda: time.sleep(args.sample_ms / 1000), [], [])
        sample = tf.fill((args.width,), tf.cast(index, tf.float32) / (args.epoch * args.batch))
        return sample, sample[:1]

    data = tf.data.Dataset.range(args.epoch * args.batch)
    data = data.map(load, num_parallel_calls=args.parallel or None)
    if args.cache:
        data = data.cache()
    data = data.batch(args.batch)
    return data.prefetch(tf.data.AUTOTUNE) if args.prefetch else data


def options() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("epochs", 200), ("epoch", 30), ("batch", 4), ("width", 16), ("layers", 2), ("parallel", 0),
    ):  # fmt: skip
        known.add_argument(f"--{name}", type=int, default=default)
    for name in ("sample-ms", "step-ms"):
        known.add_argument(f"--{name}", type=float, default=0.0)
    for name in ("cache", "prefetch"):
        known.add_argument(f"--{name}", action="store_true")
    return known


def main() -> None:
    args = options().parse_args()
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(args.width, "relu") for _ in range(args.layers)]
    model = keras.Sequential([keras.layers.Input((args.width,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
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
