"""What a strategy may do otherwise than one process that trains alone on one device."""

import argparse
from typing import Any, ClassVar

import tensorflow as tf

from mgpu_trainers import faults
from mgpu_trainers.tensorflow.common import devices
from mgpu_trainers.tensorflow.common.planted import Planted


class Strategy:
    """`distributed`: TensorFlow's own.

    rank: of this process among `world`, which divide the data. replicas: how many of them faults
    name as ranks, here.
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
        return devices.choose(
            self.name, args.device, first=first, count=count, threads=args.threads
        )

    def note(self) -> str | None:
        """What the devices at hand cannot show of the strategy, as one sentence."""
        return None

    def plant(self) -> Planted:
        """The faults of this process."""
        named = faults.parse(self.args.fault, max(self.world, self.replicas))
        return Planted(named, self.rank, self.replicas)

    def save_to(self) -> str | None:
        """Where this process saves what all save; None: nothing is saved."""
        return self.args.save_to or None
