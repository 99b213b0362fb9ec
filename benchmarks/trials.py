"""The jobs of `benchmarks.blame`, each with its truth. All are scripts of `tests/jobs`, which know
nothing of the doctor."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

STRAGGLERS = {
    "input": "straggler-input",
    "forward": "straggler-compute",
    "backward": "straggler-compute",
    "optimizer": "straggler-optimizer",
    "between": "straggler-other",
}
SCRIPTS = {
    "plain_ddp": tuple(STRAGGLERS),
    "no_loader": ("forward", "backward", "optimizer", "between"),
    "manual_allreduce": ("forward", "backward", "between"),
    "accumulate": tuple(STRAGGLERS),
    "fsdp2": ("forward", "backward", "optimizer", "between"),
    "lightning_like": tuple(STRAGGLERS),
}
"""Scripts and what can be slow in them: DDP with and without a loader, a plain all-reduce loop,
accumulation, FSDP2, a Trainer-style loop."""
SIZES = ("20ms", "5%", "10%", "30%", "50%", "100%")
"""Planted slowness: of every step, or as a share of the rank's own step."""
FEWEST_RANKS_ONLY = ("5%",)
"""Sizes for two ranks only: four ranks on two cores wait longer than that for cores."""


class Launcher(enum.Enum):
    """What starts the ranks."""

    TORCHRUN = enum.auto()
    PLAIN = enum.auto()
    """`env_ranks.py`, a home-made launcher that does not load torch."""
    WORKERS = enum.auto()
    """`tf_workers.py`, a cluster of TensorFlow."""
    SCRIPT = enum.auto()
    """The script itself, or one process is all there is."""
    TRAINER = enum.auto()
    """One of the built-in trainers; `script` is its name."""


@dataclass(frozen=True)
class Trial:
    """One job. `codes`: what the first finding may be called; none: the job is healthy."""

    name: str
    script: str
    ranks: int
    options: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    culprits: tuple[int, ...] = ()
    launcher: Launcher = Launcher.TORCHRUN
    environment: tuple[tuple[str, str], ...] = ()
    fails: bool = False
    """Whether the job ends with an exit code other than 0."""
    outside: bool = False
    """Whether the job hangs, and is examined by `diagnose PID` without being prepared."""

    @property
    def healthy(self) -> bool:
        return not self.codes

    @property
    def twin(self) -> tuple[str, int]:
        """What a healthy job must have in common with this one to be compared with it."""
        return self.script, self.ranks


def matrix(ranks: int, steps: int, sizes: Sequence[str] = SIZES) -> Iterator[Trial]:
    """Every place in every script, in each of these sizes, and each script without a fault."""
    culprit = ranks - 2 if ranks > 2 else 1
    for script, places in SCRIPTS.items():
        base = ("--steps", str(steps))
        yield Trial(f"{script} healthy", script, ranks, base)
        for place in places:
            codes = (STRAGGLERS[place],)
            if script == "manual_allreduce" and place == "between":
                codes = ("straggler-compute",)  # nothing marks where forward begins; it says so
            for size in sizes:
                if ranks > 2 and size in FEWEST_RANKS_ONLY:
                    continue
                amount = ("--ms", size[:-2]) if size.endswith("ms") else ("--percent", size[:-1])
                options = (*base, "--fault", place, "--rank", str(culprit), *amount)
                yield Trial(f"{script} {place} {size}", script, ranks, options, codes, (culprit,))


def causes() -> Iterator[Trial]:
    """What surrounds a slow rank, settings that cost time, and what is trained."""

    def trial(
        name: str, script: str, code: str, *options: str, culprits: tuple[int, ...] = ()
    ) -> Trial:
        return Trial(name, script, 2, options, (code,), culprits)

    hog = ("--steps", "150", "--model", "cnn", "--hog", "1")
    yield trial("a neighbour on its core", "shared_cores", "straggler-host", *hog, culprits=(1,))
    yield trial(
        "twice the batch", "uneven_batches", "imbalance-data", "--uneven", "batch", culprits=(1,)
    )
    yield trial("lengths at random", "uneven_batches", "imbalance-data", "--uneven", "lengths")
    for kind, code, culprit in (
        ("sleep", "straggler-transient", "1"),
        ("gc", "gc-pauses", "1"),
        ("checkpoint", "checkpoint-stall", "0"),
        ("evaluation", "rank0-only-work", "0"),
    ):
        stall = ("--stall", kind, "--ms", "300", "--who", culprit)
        yield trial(f"{kind} now and then", "stalls", code, *stall, culprits=(int(culprit),))
    slow = ("--steps", "60", "--fault", "forward", "--ms", "25")
    for script in ("pipeline_sendrecv", "pipeline_1f1b"):
        yield trial(
            f"a slow stage, {script}",
            script,
            "imbalance-stage",
            *slow,
            "--rank",
            "1",
            culprits=(1,),
        )
        late = (*slow, "--after", "30", "--rank", "1")
        yield trial(
            f"a stage that slows down, {script}", script, "straggler-compute", *late, culprits=(1,)
        )
    yield trial("all loaders slow", "plain_ddp", "input-bound", "--fault", "input", "--rank", "-1")
    anew = ("--model", "cnn", "--workers", "1", "--steps", "150")
    yield trial("workers started for each epoch", "plain_ddp", "input-bound", *anew)
    yield trial(
        "all accumulated exchanged", "ddp_settings", "accumulation-syncs", "--accumulate", "4"
    )
    yield trial("needless search", "ddp_settings", "unused-parameter-scan", "--find-unused")
    grow = ("--steps", "100", "--every", "10")
    yield trial("shapes change", "recompiles", "recompiling", *grow, culprits=(0, 1))
    yield trial("no sampler", "data_sharding", "data-duplicated", "--no-sampler")
    yield trial("seeds of their own", "data_sharding", "seed-inconsistent", "--seeds", "per-rank")
    undivided = ("--undivided", "--global-batch-size", "64")
    yield trial("the global batch on each", "data_sharding", "batch-confusion", *undivided)
    large = ("--global-batch-size", "512", "--lr", "0.001")
    yield trial("the rate of a small batch", "data_sharding", "lr-unscaled", *large)
    yield trial(
        "no broadcast", "diverging_replicas", "replicas-diverged", "--wrong", "no-broadcast"
    )
    lost = ("--rank", "1", "--value", "inf")
    yield trial("a loss that is no number", "nan_loss", "loss-nan", *lost, culprits=(1,))
