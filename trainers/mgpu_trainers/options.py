"""The options of trainers, each declared once: name, type, default, unit, and who takes it.

The command line's help, its validation and the tables of the documentation come from here.
Imports no framework.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from mgpu_trainers.capabilities import Capability, Framework, UsageError, Value, suggest

AUTO = "auto"
"""In place of a number of samples: the most that fit."""

BATCH = {"gpt-nano": 4, "cnn-nano": 32}
"""Samples per rank and batch, unless an option says otherwise."""

BLOCKS = {"gpt-nano": 4, "cnn-nano": 3}
"""Blocks of a model between its first and its last layers."""

HEADS = {"gpt-nano": 4}
"""Attention heads of a model that has some."""


@dataclass(frozen=True)
class Option:
    """One option; `needs` and `framework` say which trainers take it.

    `lacks`: a capability that excludes it. `least`, `most`: bounds of a number; the default `most`
    is what frameworks accept, lower where more would overload the machine. `words`: values besides
    numbers.
    `unit`: of a number, for the documentation. `default_text`: shown where no default is fixed.
    """

    name: str
    type: type[int] | type[float] | type[str]
    default: Value | None
    help: str
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    least: float = 0
    most: float = 2**31 - 1
    words: tuple[str, ...] = ()
    unit: str = ""
    needs: Capability | None = None
    lacks: Capability | None = None
    framework: Framework | None = None
    default_text: str = ""

    def suits(self, framework: Framework, capabilities: Set[Capability]) -> bool:
        """Whether a trainer of this framework with these capabilities takes the option."""
        return (
            self.framework in (None, framework)
            and (self.needs is None or self.needs in capabilities)
            and (self.lacks is None or self.lacks not in capabilities)
        )

    def read(self, text: str) -> Value:
        """The value that `text` spells; raises UsageError if the option does not accept it."""
        if self.choices and text not in self.choices:
            choices = ", ".join(self.choices)
            hint = suggest(text, self.choices)
            raise UsageError(f"--{self.name} must be one of {choices}, not {text}{hint}", self.name)
        if text in self.words:
            return text
        try:
            value = self.type(text)
        except ValueError:
            kind = "a whole number" if self.type is int else "a number"
            kind = " or ".join((kind, *self.words))
            raise UsageError(f"--{self.name} takes {kind}, not {text!r}", self.name) from None
        if not isinstance(value, str) and not value >= self.least:
            raise UsageError(f"--{self.name} must be {self.least} or more, not {text}", self.name)
        if not isinstance(value, str) and value > self.most:
            raise UsageError(f"--{self.name} must be {self.most} or less, not {text}", self.name)
        return value


RANKS = Option("ranks", int, 2, "processes that train together", least=1, most=64)
"""Taken by the launcher of every trainer, so not among a trainer's own options. `most`: each takes
a quarter of a gigabyte before it has done anything."""

_SWITCH = ("on", "off")
_BATCH = Option(
    "batch", int, None, "samples per rank and batch", least=1, unit="samples", default_text="4, 32"
)
_WORKERS = Option(
    "workers", int, 0, "data-loader processes per rank", most=64, framework=Framework.TORCH
)
_TIMEOUT = Option(
    "timeout",
    float,
    None,
    "seconds after which a collective fails",
    least=1,
    most=10**6,
    unit="s",
    needs=Capability.TIMEOUT,
    default_text="the framework's",
)

OPTIONS = (
    Option("steps", int, 200, "optimizer steps", least=1),
    Option("model", str, "gpt-nano", "model to train", tuple(BATCH)),
    replace(
        _BATCH,
        help="samples per rank and batch (4 for gpt-nano, 32 for cnn-nano); "
        "auto: the most that fit",
        words=(AUTO,),
        needs=Capability.WHOLE_MODEL,
    ),
    replace(
        _BATCH,
        help="samples per rank and batch (4 for gpt-nano, 32 for cnn-nano)",
        lacks=Capability.WHOLE_MODEL,
    ),
    _WORKERS,
    replace(
        _WORKERS,
        help="threads of tf.data that make several batches at once; 0: one, two batches ahead",
        most=1024,
        framework=Framework.TENSORFLOW,
    ),
    Option(
        "prefetch",
        int,
        None,
        "batches that each of --workers keeps ready (2)",
        least=1,
        most=1024,
        unit="batches",
        framework=Framework.TORCH,
        default_text="2",
    ),
    Option("pin", str, "on", "pinned host memory for batches", _SWITCH, framework=Framework.TORCH),
    Option("cache", str, "off", "keep samples in memory once they were made", _SWITCH),
    Option("seed", int, 0, "seed of the weights and of the order of the data"),
    Option("lr", float, 1e-3, "learning rate (AdamW)"),
    Option(
        "accumulate",
        int,
        1,
        "batches whose gradients are added up for one optimizer step",
        least=1,
        needs=Capability.ACCUMULATION,
    ),
    Option(
        "threads",
        int,
        1,
        "computing threads per rank",
        least=1,
        most=1024,
        needs=Capability.THREADS,
    ),
    Option(
        "device",
        str,
        "auto",
        "auto: a GPU per rank if there are enough, else CPUs",
        ("auto", "cpu", "cuda"),
        needs=Capability.DEVICE_CHOICE,
    ),
    Option("log-every", int, 10, "steps between two printed losses", least=1, unit="steps"),
    Option("fault", str, None, "KIND:KEY=VALUE,… to plant on purpose", repeatable=True),
    Option(
        "global-batch",
        int,
        None,
        "samples of all ranks in one step, instead of --batch",
        least=1,
        unit="samples",
        needs=Capability.GLOBAL_BATCH,
    ),
    Option(
        "lr-scaling",
        str,
        "none",
        "how --lr grows with the samples of a step, relative to the usual --batch",
        ("none", "linear", "sqrt"),
    ),
    Option(
        "warmup", int, 0, "first steps, over which the learning rate rises evenly", unit="steps"
    ),
    Option(
        "precision",
        str,
        "fp32",
        "type of the forward and backward pass; fp16 scales the loss",
        ("fp32", "bf16", "fp16"),
    ),
    Option(
        "checkpointing",
        str,
        "none",
        "activation checkpointing; full: recompute all of a block in backward; selective: all but "
        "matrix products, convolutions and attention",
        ("none", "full", "selective"),
        framework=Framework.TORCH,
    ),
    Option("save-every", int, None, "steps between two checkpoints", least=1, unit="steps"),
    Option("save-to", str, None, "folder of the checkpoint; a run resumes from one that is there"),
    Option(
        "compile",
        str,
        "off",
        "compile the blocks of the model with torch.compile",
        _SWITCH,
        needs=Capability.WHOLE_MODEL,
    ),
    Option(
        "no-sync",
        str,
        "on",
        "with --accumulate, average gradients with the last batch only",
        _SWITCH,
        needs=Capability.LATE_SYNC,
    ),
    _TIMEOUT,
    replace(
        _TIMEOUT,
        default=60.0,
        help="seconds in which the TPU must be found",
        most=2**31 - 1,
        needs=Capability.TPU,
    ),
    Option(
        "bucket-mb",
        float,
        None,
        "size of DDP's gradient buckets, in MiB",
        least=0.1,
        most=10**6,
        unit="MiB",
        needs=Capability.DDP,
        default_text="torch's",
    ),
    Option(
        "compress",
        str,
        "none",
        "compression of gradients on their way",
        ("none", "bf16", "fp16", "powersgd"),
        needs=Capability.COMPRESSION,
    ),
    Option(
        "sync-every",
        int,
        8,
        "steps between two averages of the weights",
        least=2,
        unit="steps",
        needs=Capability.LOCAL_STEPS,
    ),
    Option(
        "sync-first",
        int,
        10,
        "first steps, in each of which gradients are averaged",
        unit="steps",
        needs=Capability.LOCAL_START,
    ),
    Option(
        "tp",
        int,
        2,
        "ranks per group that share each layer; must divide --ranks",
        least=1,
        needs=Capability.GROUPS,
    ),
    Option(
        "schedule",
        str,
        "1f1b",
        "order of micro-batches; interleaved and zbv: two stages per rank",
        ("gpipe", "1f1b", "interleaved", "zbv"),
        needs=Capability.PIPELINE,
    ),
    Option(
        "micro-batches",
        int,
        4,
        "parts of a batch that go through the stages; must divide it",
        least=1,
        needs=Capability.PIPELINE,
    ),
    Option(
        "stages",
        int,
        2,
        "parts the model is cut into, each on a device",
        least=1,
        needs=Capability.DEVICE_STAGES,
    ),
    Option(
        "api",
        str,
        "loop",
        "our own training loop, or model.fit of Keras 3",
        ("loop", "fit"),
        needs=Capability.KERAS_FIT,
    ),
    Option(
        "replicas",
        int,
        2,
        "devices that one process trains on together",
        least=1,
        most=64,
        needs=Capability.REPLICAS,
    ),
    Option(
        "servers",
        int,
        1,
        "parameter servers, which hold the weights",
        least=1,
        most=64,
        needs=Capability.SERVERS,
    ),
    Option(
        "tpu",
        str,
        "local",
        "name or address of the TPU; local: of this machine",
        needs=Capability.TPU,
    ),
)
"""Every option of any trainer, in the order in which help shows them."""
