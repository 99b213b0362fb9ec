"""Data-parallel training with TPUStrategy.

    python -m mgpu_trainers.tensorflow.tpu --model cnn-nano --steps 200

Not tried on a TPU: the loop is that of the other strategies.
"""

import argparse
import sys
from typing import Any

import tensorflow as tf

from mgpu_trainers.tensorflow import tpu_check
from mgpu_trainers.tensorflow.common.loop import main
from mgpu_trainers.tensorflow.common.strategy import Strategy


class Tpu(Strategy):
    name = "tf-tpu"

    def __init__(self, args: argparse.Namespace) -> None:
        if why := tpu_check.missing(args.tpu, args.timeout):
            sys.exit(f"{self.name} needs a TPU: {why}")
        super().__init__(args)

    def join(self) -> Any:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=self.args.tpu)
        if self.args.tpu != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)


if __name__ == "__main__":
    main(Tpu)
