"""Capabilities of strategies: the catalogue declares them, options and faults ask for them.

Options and faults ask a trainer for these capabilities, never for its name. Imports no framework.
"""

import difflib
from collections.abc import Iterable, Mapping
from enum import Enum

Value = int | float | str
Values = Mapping[str, Value | None]
"""All options of a trainer by name, defaults included."""


class UsageError(ValueError):
    """A name, an option or a value that no trainer accepts; the message is one clear sentence.

    `option`: the option that is wrong, without its dashes; None: no single one.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


def suggest(typed: str, names: Iterable[str], *, most: int = 1) -> str:
    """`. Did you mean X, Y?` as the end of a message, with the names nearest to `typed`; empty if
    none is near."""
    close = difflib.get_close_matches(typed, list(names), n=most)
    return f". Did you mean {', '.join(close)}?" if close else ""


class Framework(str, Enum):
    TORCH = "torch"
    TENSORFLOW = "tensorflow"


class Launcher(str, Enum):
    """What starts a trainer's processes."""

    PYTHON = "python"
    """Nothing: the trainer is one process, which drives all devices itself."""
    TORCHRUN = "torchrun"
    APART = "apart"
    """Our own for ranks that outlive each other (`mgpu_trainers.apart`)."""
    CLUSTER = "cluster"
    """Our own for TensorFlow clusters (`mgpu_trainers.tensorflow.launcher`)."""
    RAY = "ray"


class Batches(Enum):
    """Which ranks take batches of their own."""

    PER_RANK = "per rank"
    SHARED = "shared"
    """All ranks work on the same batch."""
    PER_GROUP = "per group"
    """The ranks of a group (`--tp`) work on the same batch."""
    PER_WORKER = "per worker"
    """Every rank but rank 0, the parameter server."""


class Capability(Enum):
    """What a strategy has or does; the value completes the phrase "trainers whose …"."""

    WHOLE_MODEL = "ranks hold the whole model"
    EQUAL_COPIES = "ranks update whole copies of the model, equal after each step"
    DDP = "gradients travel in DistributedDataParallel's buckets"
    COMPRESSION = "gradients can be compressed"
    LATE_SYNC = "ranks may accumulate gradients without communication"
    COLLECTIVES = "ranks call collectives"
    STEP_COLLECTIVES = "ranks meet in each step"
    TIMEOUT = "collectives can time out"
    LOCAL_STEPS = "ranks train on their own for some steps"
    LOCAL_START = "first steps are synchronous"
    RANKS_MEET = "ranks are processes that meet"
    RENDEZVOUS = "ranks join the rendezvous themselves"
    SPLIT_LAYERS = "layers are divided among ranks"
    GROUPS = "ranks form tensor-parallel groups"
    PIPELINE = "ranks are the stages of a pipeline"
    DEVICE_STAGES = "layers are spread over the devices of one process"
    OWN_DATA = "ranks each read a part of the data"
    UNEVEN_BATCHES = "ranks may take batches of different sizes"
    SAVING_STALLS = "checkpoints can be written between any two steps"
    STEP_HOOKS = "steps can be changed from inside"
    ACCUMULATION = "steps can accumulate gradients"
    GLOBAL_BATCH = "global batch can be divided among known replicas"
    THREADS = "number of computing threads can be set"
    DEVICE_CHOICE = "devices can be chosen"
    REPLICAS = "replicas share one process"
    KERAS_FIT = "model can also be trained by Keras's fit"
    SERVERS = "weights are on separate parameter servers"
    TPU = "devices are TPU cores"


PHASES = ("input", "forward", "backward", "optimizer")
"""Phases of a step that a strategy runs; `other` lies between steps."""
