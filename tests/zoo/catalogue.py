"""The scripts: what each needs, how it is started, and what should come out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.matrix.verdicts import LEAST_COVERAGE

SCRIPTS = Path(__file__).parent / "scripts"
HANGS_IN = "_planted.py"
"""The file of the line at which every script hangs."""


class Launcher(Enum):
    """How a script is started."""

    TORCHRUN = "torchrun"
    WORKERS = "workers of a TensorFlow cluster"
    ALONE = "python"
    HOROVODRUN = "horovodrun"


@dataclass(frozen=True, eq=False)
class Packages:
    """What is installed on top of the development environment. `words`: for pip, options among
    them; `variables`: while installing and of all jobs."""

    name: str
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


DEVELOPMENT = Packages("development")
TRANSFORMERS = Packages("transformers", ("transformers",))
DEEPSPEED = Packages("deepspeed", ("--no-build-isolation", "deepspeed"), {"DS_BUILD_OPS": "0"})
RAY = Packages(
    "ray",
    ("ray[train]",),
    {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux, too: loopback alone
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    },
)
JAX = Packages("jax", ("jax",))
HOROVOD = Packages(
    "horovod",
    ("--no-build-isolation", "horovod"),
    {"HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1", "HOROVOD_WITH_PYTORCH": "1"},
)


@dataclass(frozen=True)
class Expected:
    """The first finding, and the rank that is accused, alone. `rank`: None where none is known."""

    code: str
    rank: int | None = 1


BEHIND = Expected("hang-rank-behind")
RAISED = Expected("failed-exception")


@dataclass(frozen=True)
class Script:
    """`name`: of its file, unless `file` says so. `style`: what it is like, and where its faults
    are. `shown`: packages whose versions the page shows.

    `slow`: None where no rank can be slower than another. `hang`: None where the place alone is
    expected, in a process that no other one waits for.
    `faulty`: the rank with the fault. `unseen`: what the doctor does not see of a healthy job.
    `least_coverage`: None where its phases are not judged."""

    name: str
    style: str
    shown: tuple[str, ...]
    slow: Expected | None
    hang: Expected | None = BEHIND
    crash: Expected = RAISED
    packages: Packages = DEVELOPMENT
    launcher: Launcher = Launcher.TORCHRUN
    ranks: int = 2
    steps: int = 40
    faulty: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    unseen: str = ""
    least_coverage: float | None = LEAST_COVERAGE
    costs: tuple[str, ...] = ()
    """Codes that are true of the healthy script, too: on a busy machine what it does costs 5 % of
    the time or more."""
    stepless: tuple[int, ...] = ()
    """Ranks that take no steps of their own: they serve the others, or nothing watches them."""
    noisy: bool = False
    """Whether it prints more than its own lines, and not the same each time."""

    @property
    def path(self) -> Path:
        return SCRIPTS / f"{self.file or self.name}.py"

    @property
    def takes_steps(self) -> bool:
        """Whether mgpu-doctor counts the steps of any rank."""
        return len(self.stepless) < self.ranks


INPUT = Expected("straggler-input")
COMPUTE = Expected("straggler-compute")
OTHER = Expected("straggler-other")


def _keras_fit(backend: str, package: str, packages: Packages, unseen: str = "") -> Script:
    return Script(
        f"keras_fit_{backend}",
        f"Keras 3 `fit` on {backend}, one process; a callback",
        ("keras", package),
        slow=None,
        hang=None,
        crash=Expected("failed-exception", None if unseen else 0),
        packages=packages,
        launcher=Launcher.ALONE,
        ranks=1,
        steps=60,
        faulty=0,
        variables={"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"},
        file="keras_fit_backend",
        unseen=unseen,
        stepless=(0,) if unseen else (),
    )


CATALOGUE = (
    Script(
        "nanogpt_loop",
        "nanoGPT-like loop: a batch by hand between forward and backward",
        ("torch",),
        slow=COMPUTE,  # the time between forward's begin and backward's begin
    ),
    Script("trainer_class", "minGPT-like `Trainer` class; a callback", ("torch",), slow=OTHER),
    Script(
        "vision_reference",
        "torchvision-like reference; `collate_fn` in a worker of the loader",
        ("torch",),
        slow=INPUT,
        crash=Expected("failed-dataloader-worker"),
        steps=60,
    ),
    Script(
        "grpo_loop",
        "TRL-like loop: sampling, rewards, one update; the reward",
        ("torch",),
        slow=OTHER,
        unseen="a phase for rollouts: no hook sees a model that is called without its wrapper and "
        "without gradients",
        least_coverage=None,
    ),
    Script(
        "titan_loop",
        "torchtitan-like: FSDP2, activation checkpointing, distributed checkpoint; tokens",
        ("torch",),
        slow=INPUT,
    ),
    Script(
        "mesh_2d",
        "FSDP2 and tensor parallel on a 2 × 2 device mesh; forward",
        ("torch",),
        slow=COMPUTE,
        ranks=4,
    ),
    Script(
        "interleaved_pipeline",
        "`torch.distributed.pipelining`, interleaved 1F1B; the stages of a rank",
        ("torch",),
        slow=Expected("imbalance-stage"),
    ),
    Script(
        "diffusion_accelerate",
        "diffusers-like loop with Accelerate; noise before forward",
        ("torch", "accelerate"),
        slow=OTHER,
        costs=("sync-excess",),  # gathers the loss of each batch
    ),
    Script("local_sgd", "Accelerate's `LocalSGD`; forward", ("torch", "accelerate"), slow=COMPUTE),
    Script(
        "lightning_modules",
        "Lightning with a data module and validation; `collate_fn`",
        ("torch", "lightning"),
        slow=INPUT,
    ),
    Script(
        "fabric_loop",
        "Lightning Fabric; a hook in backward",
        ("torch", "lightning"),
        slow=COMPUTE,
    ),
    Script(
        "keras_on_torch",
        "a Keras 3 model under DistributedDataParallel; between backward and update",
        ("keras", "torch"),
        slow=OTHER,
    ),
    _keras_fit("tensorflow", "tensorflow-cpu", DEVELOPMENT),
    Script(
        "workers_custom_loop",
        "`MultiWorkerMirroredStrategy`, a loop of its own; the data pipeline",
        ("tensorflow-cpu", "keras"),
        slow=INPUT,
        launcher=Launcher.WORKERS,
        variables={"TF_CPP_MIN_LOG_LEVEL": "2"},
    ),
    Script(
        "rpc_server",
        "a parameter server over RPC, two trainers; forward",
        ("torch",),
        slow=Expected("straggler-compute", 2),
        hang=Expected("hang-rank-behind", 2),
        crash=Expected("failed-exception", 2),
        ranks=3,
        faulty=2,
    ),
    Script(
        "remote_layers",
        "a model on two processes: RPC, distributed autograd, `DistributedOptimizer`; forward",
        ("torch",),
        slow=None,
        stepless=(0,),
    ),
    Script(
        "sliced_tables",
        "recommender with divided tables: whole batches, all-to-all; the tables",
        ("torch",),
        slow=OTHER,
        steps=60,
    ),
    Script(
        "player_and_trainers",
        "reinforcement learning with divided roles: a player, two trainers; forward",
        ("torch",),
        slow=Expected("straggler-other", 2),
        hang=Expected("hang-rank-behind", 2),
        crash=Expected("failed-exception", 2),
        ranks=3,
        steps=60,
        faulty=2,
        stepless=(0,),
    ),
    Script(
        "language_trainer",
        "transformers `Trainer`, a small GPT-2; the collator",
        ("torch", "transformers", "accelerate"),
        slow=INPUT,
        packages=TRANSFORMERS,
        costs=("sync-excess",),  # the Trainer gathers the number of tokens in each step
    ),
    Script(
        "deepspeed_engine",
        "DeepSpeed, ZeRO 2; forward",
        ("torch", "deepspeed"),
        slow=COMPUTE,
        packages=DEEPSPEED,
        noisy=True,
    ),
    Script(
        "ray_workers",
        "Ray Train, `TorchTrainer`; forward",
        ("torch", "ray"),
        slow=COMPUTE,
        hang=Expected("hang-rank-behind", None),  # only a worker itself knows its number
        packages=RAY,
        launcher=Launcher.ALONE,
        least_coverage=None,  # `train.report` waits for Ray's controller
        noisy=True,
    ),
    _keras_fit("jax", "jax", JAX, unseen="steps and phases: nothing watches JAX"),
    Script(
        "horovod_loop",
        "Horovod; forward",
        ("torch", "horovod"),
        slow=COMPUTE,
        packages=HOROVOD,
        launcher=Launcher.HOROVODRUN,
    ),
)
