"""What the probe costs a step of TensorFlow: microseconds, in paired blocks.

    python -m benchmarks.tf_probe_cost [--replicas 1 | --workers 2] [--blocks 20] [--steps 50]

Two processes run the same custom loop (iterator, `tf.function`, tape, optimizer) in turn, never at
once: one bare, one under the probe. Each block of one is compared with the neighbouring block of
the other, so that a machine that drifts slows both. With --workers each of the two is a cluster of
several, and a figure is the mean over its workers.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.support import machine

ROOT = Path(__file__).parents[1]
WARM_UP = 150
"""Steps before the first block: TensorFlow learns by running which operations are cheap."""


class Loop:
    """A process, or the workers of a cluster, that run blocks of steps when asked."""

    def __init__(self, boxes: str | None, replicas: int, workers: int) -> None:
        environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
        environment.pop("MGPU_DOCTOR_BOXES", None)
        if boxes is not None:
            inject = str(ROOT / "probes/mgpu_probes/inject")
            environment |= {"MGPU_DOCTOR_BOXES": boxes, "PYTHONPATH": inject}
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--loop", "--replicas", str(replicas)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment | task,
            )
            for task in tasks(workers)
        ]

    def block(self, steps: int) -> tuple[float, float]:
        """Wall and CPU microseconds a step."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        readings = []
        for process in self.processes:
            assert process.stdout is not None
            readings.append([float(figure) for figure in process.stdout.readline().split()])
        wall, cpu = (
            statistics.mean(values) / steps * 1e6 for values in zip(*readings, strict=True)
        )
        return wall, cpu

    def end(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            process.wait()


def tasks(workers: int) -> list[dict[str, str]]:
    """What the environment of each worker adds; nothing for one that is alone."""
    if workers == 1:
        return [{}]
    bound = [socket.create_server(("localhost", 0)) for _ in range(workers)]
    addresses = [f"localhost:{bound_socket.getsockname()[1]}" for bound_socket in bound]
    for bound_socket in bound:
        bound_socket.close()
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            )
        }
        for index in range(workers)
    ]


def loop(replicas: int) -> None:
    """The inner process: an ordinary training loop, in blocks."""
    sys.path.insert(0, str(ROOT / "tests/jobs"))
    import _tf
    import keras
    import tensorflow as tf

    _tf.few_threads()
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = _tf.mirrored(replicas) if replicas > 1 else tf.distribute.get_strategy()
    slow = _tf.Slow(argparse.Namespace(fault="none", rank=0, ms=0.0), 0)
    with strategy.scope():
        model = _tf.model()
        optimizer = keras.optimizers.SGD(0.02)
        optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = losses(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = tf.function(lambda images, labels: strategy.run(train, args=(images, labels)))
    batches = iter(
        strategy.distribute_datasets_from_function(lambda _: _tf.dataset(32, slow))
        if "TF_CONFIG" in os.environ
        else strategy.experimental_distribute_dataset(_tf.dataset(32 * replicas, slow))
    )
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step(*next(batches))
        print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.loop:
        loop(args.replicas)
        return
    print(machine())
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as boxes:
        bare, probed = (Loop(where, args.replicas, args.workers) for where in (None, boxes))
        for warmed in (bare, probed):
            warmed.block(WARM_UP)
        pairs = [(bare.block(args.steps), probed.block(args.steps)) for _ in range(args.blocks)]
        bare.end()
        probed.end()
    workers_text = f"{args.workers} workers" if args.workers > 1 else f"{args.replicas} replica(s)"
    for index, measure in enumerate(("wall", "CPU")):
        base = statistics.median(times[index] for times, _ in pairs)
        added = [probed_times[index] - bare_times[index] for bare_times, probed_times in pairs]
        low, median, high = statistics.quantiles(added, n=4)
        print(
            f"{measure:4}  {workers_text}: bare {base:.0f} µs a step; the probe adds "
            f"{median:.0f} µs (quartiles {low:.0f} … {high:.0f})"
        )


if __name__ == "__main__":
    main()
