"""The base class of the TensorFlow trainers' strategies: one process on one device.

A strategy is a file of the parent package with a subclass, which overrides what differs; the
training loop calls it. Devices must be chosen here, before TensorFlow initializes them.
"""

import argparse
import sys
from typing import Any, ClassVar

import tensorflow as tf

from mgpu_trainers import faults
from mgpu_trainers.tensorflow.common.graph_faults import PlantedInGraph


class Strategy:
    """`distributed`: TensorFlow's strategy object. `rank`, `world`: this process among those that
    divide the data. `replicas`: number of this process's replicas, which faults address as ranks.
    """

    name: ClassVar[str]
    rank = 0
    world = 1
    replicas = 1

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.distributed = self.join()

    def join(self) -> Any:
        self.choose(first=0, count=1)
        return tf.distribute.get_strategy()

    def choose(self, *, first: int, count: int) -> list[str]:
        args = self.args
        return choose_devices(
            self.name, args.device, first=first, count=count, threads=args.threads
        )

    def note(self) -> str | None:
        """A sentence on what these devices cannot show about the strategy; None: there is
        nothing."""
        return None

    def plant(self) -> PlantedInGraph:
        """The faults of this process."""
        named = faults.parse(self.args.fault, max(self.world, self.replicas))
        return PlantedInGraph(named, self.rank, self.replicas)

    def save_to(self) -> str | None:
        """The folder this process saves checkpoints to; None: it saves none."""
        return self.args.save_to or None


def choose_devices(name: str, wanted: str, *, first: int, count: int, threads: int) -> list[str]:
    """The names of `count` devices from the `first` on: GPUs if there are enough, else CPUs.

    Several CPUs are virtual devices of a single one. Exits with a message if there are too few
    GPUs.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, count))
    gpus = tf.config.list_physical_devices("GPU")
    enough = len(gpus) >= first + count
    if wanted == "cuda" and not enough:
        sys.exit(f"{name}: {len(gpus)} GPUs are too few; try --device cpu")
    chosen = gpus[first : first + count] if enough and wanted != "cpu" else []
    tf.config.set_visible_devices(chosen, "GPU")
    for gpu in chosen:  # otherwise TensorFlow allocates all of its memory at once
        tf.config.experimental.set_memory_growth(gpu, True)
    if not chosen and count > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        virtual = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(cpu, virtual)
    return [f"{'GPU' if chosen else 'CPU'}:{number}" for number in range(count)]
