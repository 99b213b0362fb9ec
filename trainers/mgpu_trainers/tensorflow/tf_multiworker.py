"""Data-parallel training in several processes with MultiWorkerMirroredStrategy.

    python -m mgpu_trainers.tensorflow.launcher --workers 2 \
        mgpu_trainers.tensorflow.tf_multiworker --model cnn-nano --steps 200

A loop of its own, as `fit` of Keras 3 fails under this strategy (keras issue 20585).
"""

import tempfile
from typing import Any

import tensorflow as tf

from mgpu_trainers import cluster, faults
from mgpu_trainers.planting import Planted
from mgpu_trainers.tensorflow import arrival
from mgpu_trainers.tensorflow.common.tf_loop import main
from mgpu_trainers.tensorflow.common.tf_strategy import Strategy


class MultiWorker(Strategy):
    name = "tf-multiworker"

    def join(self) -> Any:
        tf_cluster, task = cluster.read_own_task(self.name)
        tasks = tf_cluster.tasks()
        self.rank, self.world = tasks.index(task), len(tasks)
        self.choose(first=tf_cluster.place(task), count=1)
        Planted(faults.parse(self.args.fault, self.world), self.rank).join()
        seconds = self.args.timeout
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)
        with arrival.deadline(self.name, seconds or arrival.LONGEST):
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def save_to(self) -> str | None:
        """Every process must save, but only the first one's checkpoint is kept."""
        if self.rank == 0 or not self.args.save_to:
            return super().save_to()
        self._dropped = tempfile.TemporaryDirectory()
        return self._dropped.name


if __name__ == "__main__":
    main(MultiWorker)
