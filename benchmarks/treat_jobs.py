"""For each treatment a job that it helps, one that it does not change and one that it breaks.

Costs that a core cannot pay evenly while others use it are pretended: samples, steps, links and
checkpoints sleep. `benchmarks.treat_trials` runs the jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_doctor.advice.treatment import Value

JOBS = Path(__file__).parents[1] / "tests" / "jobs"


def alone(*words: str) -> list[str]:
    """A job of one process."""
    return [sys.executable, str(JOBS / "treatable.py"), *words]


def keras(*words: str) -> list[str]:
    """A job of one process with TensorFlow."""
    return [sys.executable, str(JOBS / "treatable_tf.py"), *words]


def ranks(script: str, *words: str) -> list[str]:
    """A job of two ranks."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [sys.executable, "-m", *torchrun, str(JOBS / script), *words]


def pair(*words: str) -> list[str]:
    """A job of two ranks of DistributedDataParallel."""
    return ranks("treatable.py", *words)


def linked(*words: str) -> list[str]:
    """The same with settings of DistributedDataParallel and pretended links."""
    return ranks("ddp_settings.py", "--steps", "20000", *words)


@dataclass(frozen=True, slots=True)
class Jobs:
    """A treatment and its jobs. None: no such job is known."""

    value: Value
    helps: list[str]
    by_hand: list[str]
    """The job that it helps, with the script edited."""
    same: list[str]
    breaks: list[str] | None = None
    finding: str | None = None
    """Code of the finding about the job that it helps; None: the doctor has none about it."""
    by_memory: bool = False
    """Whether it is to save memory, not time."""


_SLEEPS = ("--step-ms", "20")
_UNUSED = ("--kept", "2000", "--width", "64", "--batch", "8")
_SPLIT = ("--accumulate", "4", "--link", "4", "--width", "64", "--layers", "2")
_SAVES = ("--save-ms", "200", "--step-ms", "40")
_IMAGES = ("--images", "28", "--layers", "3", "--batch", "8")
_CHAIN = ("--wide", "4", "--chain", "20")
_GARBAGE = ("--garbage", "100000", *_SLEEPS)
_SPAWNS = ("--spawn", "--width", "256", "--layers", "8")
_BURSTS = ("--workers", "1", "--slow-every", "10", "--slow-ms", "120", *_SLEEPS)
_EVEN_LOADER = ("--workers", "1", *_SLEEPS)
_IDLE_RANKS = ("--fault", "forward", "--rank", "-1", "--ms", "20", "--width", "64", "--layers", "2")
_HEAVY = ("--width", "1024", "--batch", "1", "--at-once")
_BUCKETS = ("--link", "1000", "--latency-ms", "3", "--width", "64", "--buckets", "0.01")
_REDUCES = ("--width", "256", "--link", "20")
_HARDLY_REDUCES = ("--width", "32", "--link", "200", "--step-ms", "30")
_GATHERS = ("--link-ms", "4", "--width", "64")
_MANY = ("--layers", "300", "--width", "8")
_MATMUL = ("--width", "1024", "--layers", "4", "--batch", "256", "--floor", "1")
_STATES = ("--width", "1024", "--layers", "16", "--step-ms", "50")
_BLOCKS = ("--blocks", "--layers", "12", "--width", "128", "--batch", "4096", "--epoch", "100")
_OBJECTS = ("--objects", "20000")
_ARRAYS = ("--wide", "8", "--chain", "10")
_MAPPED = ("env", "MALLOC_MMAP_THRESHOLD_=1048576")
"""Else the peak of equal runs differs by 15 %: freed arrays stay in the allocator's heaps."""
_KEPT_MEMORY = ("env", "MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=17179869184")
_SHORT_EPOCHS = ("--epoch", "8", "--epochs", "2000")
"""The first one, which a cache does not help, ends before the measured steps begin."""
_XLA = ("--no-jit", "--chain", "60", "--width", "256", "--batch", "256")
_KERAS_MATMUL = ("--width", "1024", "--layers", "4", "--batch", "256", "--floor", "1")
ALL_JOBS: Mapping[str, Jobs] = {
    "loader-workers": Jobs(
        2,
        alone("--sample-ms", "5"),
        alone("--sample-ms", "5", "--workers", "2", "--persistent"),
        alone("--step-ms", "100"),
        alone("--sample-ms", "5", "--alone"),
        finding="input-bound",
    ),
    "loader-prefetch": Jobs(
        16,
        alone(*_BURSTS),
        alone("--prefetch", "16", *_BURSTS),
        alone(*_EVEN_LOADER),
    ),
    "loader-persistent": Jobs(
        True,
        alone("--epoch", "4", *_EVEN_LOADER),
        alone("--epoch", "4", "--persistent", *_EVEN_LOADER),
        alone(*_EVEN_LOADER),
    ),
    "tf-prefetch": Jobs(
        True,
        keras("--sample-ms", "5", "--as-written", *_SLEEPS),
        keras("--sample-ms", "5", "--as-written", "--prefetch", *_SLEEPS),
        keras(*_SLEEPS),
    ),
    "tf-parallel-map": Jobs(
        4,
        keras("--sample-ms", "10"),
        keras("--sample-ms", "10", "--parallel", "4"),
        keras(*_SLEEPS),
        keras("--sample-ms", "10", "--exclusive"),
    ),
    "tf-cache": Jobs(
        True,
        keras("--sample-ms", "10", *_SHORT_EPOCHS),
        keras("--sample-ms", "10", "--cache", *_SHORT_EPOCHS),
        keras(*_SLEEPS),
    ),
    "ddp-no-search": Jobs(
        True,
        linked("--find-unused", *_UNUSED),
        linked(*_UNUSED),
        linked(*_IDLE_RANKS),
        linked("--find-unused", "--spare", "3", *_UNUSED),
        finding="unused-parameter-scan",
    ),
    "ddp-bucket-view": Jobs(
        True,
        linked(*_HEAVY),
        linked("--bucket-view", *_HEAVY),
        linked(*_IDLE_RANKS),
        linked("--detach", *_IDLE_RANKS),
    ),
    "ddp-static-graph": Jobs(
        True,
        linked("--find-unused", *_UNUSED),
        linked("--find-unused", "--static", *_UNUSED),
        linked(*_IDLE_RANKS),
        linked("--find-unused", "--spare", "3", *_UNUSED),
    ),
    "ddp-bucket-size": Jobs(
        25,
        linked(*_BUCKETS),
        linked(*_BUCKETS, "--buckets", "25"),
        linked("--buckets", "0.01", *_IDLE_RANKS),
    ),
    "ddp-no-sync": Jobs(
        4,
        linked(*_SPLIT),
        linked("--no-sync", *_SPLIT),
        linked("--no-sync", "--fault", "forward", "--rank", "-1", *_SPLIT),
        finding="accumulation-syncs",
    ),
    "ddp-local-buffers": Jobs(
        True,
        linked("--buffer-mib", "32", *_IDLE_RANKS),
        linked("--buffer-mib", "32", "--local-buffers", *_IDLE_RANKS),
        linked("--scales", "--local-buffers", *_IDLE_RANKS),
        linked("--scales", *_IDLE_RANKS),
    ),
    "ddp-compress-fp16": Jobs(
        True,
        ranks("slow_link.py", *_REDUCES),
        ranks("slow_link.py", "--fp16", *_REDUCES),
        ranks("slow_link.py", *_HARDLY_REDUCES),
        ranks("slow_link.py", "--scale", "1e7", "--rate", "1e-10", *_HARDLY_REDUCES),
    ),
    "ddp-power-sgd": Jobs(
        2,
        ranks("slow_link.py", *_REDUCES),
        ranks("slow_link.py", "--low-rank", "2", *_REDUCES),
        ranks("slow_link.py", "--low-rank", "2", *_HARDLY_REDUCES),
    ),
    "fsdp-keep-gathered": Jobs(
        True,
        ranks("treatable_fsdp.py", *_GATHERS),
        ranks("treatable_fsdp.py", "--keep", *_GATHERS),
        ranks("treatable_fsdp.py", "--width", "32", "--layers", "2", "--step-ms", "150"),
    ),
    "optimizer-fused": Jobs(
        True,
        alone("--no-foreach", *_MANY),
        alone("--fused", *_MANY),
        alone("--fused", *_SLEEPS),
    ),
    "optimizer-foreach": Jobs(
        True,
        alone("--no-foreach", *_MANY),
        alone("--foreach", *_MANY),
        alone("--no-foreach", *_SLEEPS),
    ),
    "optimizer-zero1": Jobs(
        True,
        pair(*_STATES),
        pair("--sharded", *_STATES),
        pair(*_SLEEPS),
        pair("--save-states", *_SLEEPS),
        by_memory=True,
    ),
    "activation-checkpointing": Jobs(
        True,
        [*_MAPPED, *pair(*_BLOCKS)],
        [*_MAPPED, *pair("--checkpoint", *_BLOCKS)],
        pair("--blocks", *_SLEEPS),
        pair("--blocks", "--once", *_SLEEPS),
        by_memory=True,
    ),
    "autocast-bf16": Jobs(
        True,
        pair(*_MATMUL),
        pair("--autocast", *_MATMUL),
        pair("--floor", "1", *_SLEEPS),
        pair("--sensitive", *_SLEEPS),
    ),
    "compile": Jobs(
        True,
        pair(*_CHAIN),
        pair("--compile", *_CHAIN),
        pair(*_SLEEPS),
        alone("--penalty", "--chain", "3", *_SLEEPS),
    ),
    "channels-last": Jobs(
        True,
        alone(*_IMAGES),
        alone("--channels-last", *_IMAGES),
        alone("--images", "2", *_SLEEPS),
        alone("--view", *_IMAGES),
    ),
    "keras-jit": Jobs(
        True,
        keras(*_XLA),
        keras(*_XLA, "--jit"),
        keras("--jit", *_SLEEPS),
        keras("--python", *_XLA),
    ),
    "keras-mixed-bf16": Jobs(
        True,
        keras(*_KERAS_MATMUL),
        keras("--mixed", *_KERAS_MATMUL),
        keras(*_SLEEPS),
        keras("--sensitive", *_SLEEPS),
    ),
    "gc-freeze": Jobs(
        True,
        alone(*_GARBAGE),
        alone("--freeze", *_GARBAGE),
        alone(*_SLEEPS),
        finding="gc-pauses",
    ),
    "gc-together": Jobs(
        500,
        alone(*_OBJECTS),
        alone("--collect-every", "500", *_OBJECTS),
        alone(*_SLEEPS),
    ),
    "threads": Jobs(
        1,
        alone(*_SPAWNS),
        alone("--threads", "1", *_SPAWNS),
        alone("--threads", "1", *_SPAWNS),
        finding="cpu-oversubscribed",
    ),
    "keep-host-memory": Jobs(
        True,
        alone(*_ARRAYS),
        [*_KEPT_MEMORY, *alone(*_ARRAYS)],
        alone(*_SLEEPS),
    ),
    "checkpoint-in-background": Jobs(
        True,
        alone(*_SAVES),
        alone("--background", *_SAVES),
        alone(*_SLEEPS),
        alone("--check-file", *_SAVES),
        finding="checkpoint-stall",
    ),
}
NO_JOBS: Mapping[str, str] = {
    "gloo-threads": "needs a link that is slow to answer",
    "tf-pack-size": "needs a link that is slow to answer",
    "drop-gradients": "needs a GPU: a CPU gains nothing, as new memory costs what zeros do",
    "interop-threads": "needs operations that run at once, on more than two cores",
    "tf-threads": "needs more than two cores: threads of two workers on two do not wait in loops",
    "rank-cores": "needs more cores than ranks",
}
"""Treatments whose gain two cores and loopback do not show, and why not, a clause."""
