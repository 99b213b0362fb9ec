"""Data-parallel training in one process with MirroredStrategy.

    python -m mgpu_trainers.tensorflow.tf_mirrored --replicas 2 --model cnn-nano --steps 200

Without GPUs the replicas are on virtual CPUs, which share the cores.
"""

from typing import Any

import tensorflow as tf

from mgpu_trainers.tensorflow.common.tf_loop import main
from mgpu_trainers.tensorflow.common.tf_strategy import Strategy


class Mirrored(Strategy):
    name = "tf-mirrored"

    def join(self) -> Any:
        self.replicas = self.args.replicas
        self.devices = self.choose(first=0, count=self.replicas)
        return tf.distribute.MirroredStrategy(self.devices)

    def note(self) -> str | None:
        if self.devices[0].startswith("GPU"):
            return None
        return f"its {self.replicas} replicas are virtual CPUs in one process, which share cores"


if __name__ == "__main__":
    main(Mirrored)
