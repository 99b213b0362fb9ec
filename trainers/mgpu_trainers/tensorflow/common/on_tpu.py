"""Replicas on the cores of a TPU."""

from typing import Any

import tensorflow as tf

from mgpu_trainers.tensorflow.common.strategy import Strategy


class Tpu(Strategy):
    name = "tf-tpu"

    def join(self) -> Any:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=self.args.tpu)
        if self.args.tpu != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
