"""Asynchronous training with ParameterServerStrategy: a chief, workers, and parameter servers.

    python -m mgpu_trainers.tensorflow.launcher --workers 2 --servers 1 \
        mgpu_trainers.tensorflow.tf_ps --model cnn-nano --steps 200

The chief hands out steps; each worker takes the next one as soon as it has done one, with the
weights that it finds on the servers. A loop of its own, as `fit` of Keras 3 knows no servers (keras
issue 18624).
"""

import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from mgpu_trainers import catalogue, cluster, faults, schedule
from mgpu_trainers.cluster import Cluster, Task
from mgpu_trainers.failure_faults import Kill
from mgpu_trainers.fault_spec import ALL
from mgpu_trainers.slow_faults import Slow
from mgpu_trainers.tensorflow.common import training_job
from mgpu_trainers.tensorflow.common.graph_faults import PlantedInGraph, add_scalar
from mgpu_trainers.tensorflow.common.tf_loop import report_results
from mgpu_trainers.tensorflow.common.tf_strategy import Strategy
from mgpu_trainers.tensorflow.common.training_job import Job, Learner


class Ps(Strategy):
    """The chief's."""

    name = "tf-ps"

    def join(self) -> Any:
        tf.config.threading.set_intra_op_parallelism_threads(self.args.threads)
        tf.config.set_visible_devices([], "GPU")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return tf.distribute.ParameterServerStrategy(resolver)

    def plant(self) -> PlantedInGraph:
        return PlantedInGraph((), 0)  # the chief plants them: `RemoteFaults`


def serve(tf_cluster: Cluster, task: Task, threads: int) -> None:
    """Runs a worker or a parameter server until it is ended."""
    cluster.register_process(task)
    # Each worker may hold a thread of a server for as long as it waits for another's.
    pools = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=len(tf_cluster.tasks()) + 1,
        device_count={"GPU": 0},
    )
    addresses = {
        role: list(role_addresses) for role, role_addresses in tf_cluster.addresses.items()
    }
    server = tf.distribute.Server(
        addresses, job_name=task.role, task_index=task.index, protocol="grpc", config=pools
    )
    server.join()


def train(job: Job, tf_cluster: Cluster) -> None:
    args, distributed = job.strategy.args, job.strategy.distributed
    remote = RemoteFaults(args.fault, tf_cluster)
    learner = Learner(distributed, job.model, job.optimizer, job.planted, 1)
    workers = len(tf_cluster.addresses["worker"])
    coordinator = tf.distribute.coordinator.ClusterCoordinator(distributed)
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: job.batches(worker_index(), workers, job.size, 1)
        )
    )

    @tf.function  # type: ignore[untyped-decorator]
    def turn(batches: Any, step: Any) -> Any:
        inputs, targets = next(batches)
        return distributed.run(learner.update, args=(remote.delay(inputs, step), targets))

    scheduled: list[Any] = []
    for step in range(job.done + 1, args.steps + 1):
        remote.begin(step)
        job.optimizer.learning_rate = job.rate(step)
        scheduled.append(coordinator.schedule(turn, args=(batches, tf.constant(step, tf.int64))))
        last = step == args.steps
        saves = bool(args.save_every) and step % args.save_every == 0
        if last or saves or step % args.log_every == 0 or step == 1:
            coordinator.join()
            print(
                f"step {step} loss {np.mean([loss.fetch() for loss in scheduled]):.4f}", flush=True
            )
            scheduled = []
        if saves:
            job.checkpoint.save(step)


def main() -> None:
    args = catalogue.arguments(catalogue.find(Ps.name))
    tf_cluster, task = cluster.read_own_task(Ps.name)
    if task.role != "chief":
        serve(tf_cluster, task, args.threads)
    strategy = Ps(args)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        job = training_job.make_job(strategy)
        if job.done:
            print(schedule.describe_resumed(job.done, args.steps), flush=True)
        train(job, tf_cluster)
        report_results(job, reports=True)
    except tf.errors.UnavailableError as error:
        reason = str(error.message).splitlines()[0][:200]
        sys.exit(f"{Ps.name}: a parameter server is lost, and the weights with it: {reason}")


class RemoteFaults:
    """Plants faults in workers and parameter servers from the chief: they run only TensorFlow's
    server.

    Ranks are the workers, then the parameter servers.
    """

    def __init__(self, texts: Iterable[str], tf_cluster: Cluster) -> None:
        self._ranks = [
            Task(role, index)
            for role in ("worker", "ps")
            for index in range(len(tf_cluster.addresses[role]))
        ]
        self._planted = faults.parse(texts, len(self._ranks))

    def begin(self, step: int) -> None:
        """Called before a step is scheduled."""
        for fault in self._planted:
            if isinstance(fault, Kill) and fault.step == step:
                for task in self._ranks if fault.rank == ALL else [self._ranks[fault.rank]]:
                    process = cluster.process_id(task)
                    if process is None:
                        sys.exit("tf-ps: only what runs on the chief's machine can be killed")
                    os.kill(process, signal.Signals[f"SIG{fault.signal}"])

    def delay(self, inputs: Any, step: Any) -> Any:
        """Adds the planted delay to a worker's graph: the batch, available after the delay. A graph
        cannot sleep, so it computes for that long."""
        for fault in self._planted:
            if isinstance(fault, Slow):
                since = step - fault.start
                due = (worker_index() == fault.rank) & (since >= 0) & (since % fault.every == 0)
                extra = tf.where(due, (fault.ms or 0) / 1000, 0.0)
                inputs = add_scalar(inputs, _spin(tf.cast(extra, tf.float64)))
        return inputs


def _spin(seconds: Any) -> Any:
    """0.0, after computing for `seconds`."""
    end = tf.timestamp() + seconds
    turns = tf.while_loop(lambda _: tf.timestamp() < end, lambda turns: (turns + 1,), (0.0,))
    return tf.minimum(turns[0], 0.0)


def worker_index() -> Any:
    """In a graph: the index of the worker that runs it."""
    return tf.strings.to_number(tf.io.read_file(cluster.INDEX), tf.int64)


if __name__ == "__main__":
    main()
