"""On what this process computes, settled before TensorFlow makes its devices."""

import sys

import tensorflow as tf


def choose(name: str, wanted: str, *, first: int, count: int, threads: int) -> list[str]:
    """The names of `count` devices from the `first` on: GPUs if there are enough, else CPUs.

    Several CPUs are one, divided into virtual ones. Ends the process where there are too few GPUs.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, count))
    gpus = tf.config.list_physical_devices("GPU")
    enough = len(gpus) >= first + count
    if wanted == "cuda" and not enough:
        sys.exit(f"{name}: {len(gpus)} GPUs are too few; try --device cpu")
    mine = gpus[first : first + count] if enough and wanted != "cpu" else []
    tf.config.set_visible_devices(mine, "GPU")
    for gpu in mine:  # else TensorFlow takes all of its memory at once
        tf.config.experimental.set_memory_growth(gpu, True)
    if not mine and count > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        virtual = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(cpu, virtual)
    return [f"{'GPU' if mine else 'CPU'}:{number}" for number in range(count)]
