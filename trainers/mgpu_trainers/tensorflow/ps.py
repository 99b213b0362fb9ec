"""Asynchronous training with ParameterServerStrategy: a chief, workers, and parameter servers.

    python -m mgpu_trainers.tensorflow.launcher --workers 2 --servers 1 \
        mgpu_trainers.tensorflow.ps --model cnn-nano --steps 200

The chief hands out steps; each worker takes the next one as soon as it has done one, with the
weights that it finds on the servers. A loop of its own, as `fit` of Keras 3 knows no servers (keras
issue 18624).
"""

import signal
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from mgpu_trainers import catalogue, cluster, kept
from mgpu_trainers.cluster import Cluster, Task
from mgpu_trainers.tensorflow import station
from mgpu_trainers.tensorflow.common import job
from mgpu_trainers.tensorflow.common.job import Job
from mgpu_trainers.tensorflow.common.learner import Learner
from mgpu_trainers.tensorflow.common.loop import conclude
from mgpu_trainers.tensorflow.common.planted import Planted
from mgpu_trainers.tensorflow.common.strategy import Strategy
from mgpu_trainers.tensorflow.remote import Remote


class Ps(Strategy):
    """The chief's."""

    name = "tf-ps"

    def join(self) -> Any:
        tf.config.threading.set_intra_op_parallelism_threads(self.args.threads)
        tf.config.set_visible_devices([], "GPU")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return tf.distribute.ParameterServerStrategy(resolver)

    def plant(self) -> Planted:
        return Planted((), 0)  # `Remote` has them


def serve(whole: Cluster, task: Task, threads: int) -> None:
    """What workers and parameter servers do, until they are ended."""
    station.occupy(task)
    # Each worker may hold a thread of a server for as long as it waits for another's.
    pools = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=len(whole.tasks()) + 1,
        device_count={"GPU": 0},
    )
    addresses = {role: list(each) for role, each in whole.addresses.items()}
    server = tf.distribute.Server(
        addresses, job_name=task.role, task_index=task.index, protocol="grpc", config=pools
    )
    server.join()


def train(made: Job, whole: Cluster) -> None:
    args, distributed = made.strategy.args, made.strategy.distributed
    remote = Remote(args.fault, whole)
    learner = Learner(distributed, made.model, made.optimizer, made.planted, 1)
    workers = len(whole.addresses["worker"])
    coordinator = tf.distribute.coordinator.ClusterCoordinator(distributed)
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: made.batches(station.index(), workers, made.size, 1)
        )
    )

    @tf.function  # type: ignore[untyped-decorator]
    def turn(batches: Any, step: Any) -> Any:
        inputs, targets = next(batches)
        return distributed.run(learner.update, args=(remote.late(inputs, step), targets))

    handed: list[Any] = []
    for step in range(made.done + 1, args.steps + 1):
        remote.begin(step)
        made.optimizer.learning_rate = made.rate(step)
        handed.append(coordinator.schedule(turn, args=(batches, tf.constant(step, tf.int64))))
        last = step == args.steps
        saves = bool(args.save_every) and step % args.save_every == 0
        if last or saves or step % args.log_every == 0 or step == 1:
            coordinator.join()
            print(f"step {step} loss {np.mean([each.fetch() for each in handed]):.4f}", flush=True)
            handed = []
        if saves:
            made.run.save(step)


def main() -> None:
    args = catalogue.arguments(catalogue.find(Ps.name))
    whole, task = cluster.mine(Ps.name)
    if task.role != "chief":
        serve(whole, task, args.threads)
    strategy = Ps(args)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        made = job.make(strategy)
        if made.done:
            print(kept.told(made.done, args.steps), flush=True)
        train(made, whole)
        conclude(made, tells=True)
    except tf.errors.UnavailableError as error:
        said = str(error.message).splitlines()[0][:200]
        sys.exit(f"{Ps.name}: a parameter server is lost, and the weights with it: {said}")


if __name__ == "__main__":
    main()
