"""The options of trainers: their names, values and defaults, and what a value may be.

Imports no framework.
"""

from dataclasses import dataclass, replace

Value = int | float | str


class UsageError(ValueError):
    """A name, an option or a value that no trainer takes; the message is one clear sentence.

    `option`: the one that is wrong, without its dashes; None: none of them.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True)
class Option:
    name: str
    type: type[int] | type[float] | type[str]
    default: Value | None
    help: str
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    least: float = 0
    most: float = 2**31 - 1
    """What frameworks take for any number; less where more would choke the machine."""
    words: tuple[str, ...] = ()
    """What may stand in place of a number."""

    def read(self, text: str) -> Value:
        """The value that `text` is; raises UsageError for one that it cannot be."""
        if self.choices and text not in self.choices:
            known = ", ".join(self.choices)
            raise UsageError(f"--{self.name} must be one of {known}, not {text}", self.name)
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


BATCH = {"gpt-nano": 4, "cnn-nano": 32}
"""Samples a rank takes at once, where nothing else is asked for."""

BLOCKS = {"gpt-nano": 4, "cnn-nano": 3}
"""Parts of a model between its first and its last layers."""

HEADS = {"gpt-nano": 4}
"""Attention heads of a model that has some."""

RANKS = Option("ranks", int, 2, "how many processes train together", least=1, most=64)
"""Taken by the launcher of every trainer, so not among a trainer's own options. `most`: each takes
a quarter of a gigabyte before it has done anything."""

TRAINING = (
    Option("steps", int, 200, "optimizer steps", least=1),
    Option("model", str, "gpt-nano", "what is trained", tuple(BATCH)),
    Option(
        "batch",
        int,
        None,
        "samples a rank takes at once (4 for gpt-nano, 32 for cnn-nano)",
        least=1,
    ),
    Option("workers", int, 0, "data-loader processes of each rank", most=64),
    Option(
        "prefetch", int, None, "batches that each of --workers has ready (2)", least=1, most=1024
    ),
    Option("pin", str, "on", "batches where a GPU can read them by itself", ("on", "off")),
    Option(
        "cache",
        str,
        "off",
        "samples stay in memory once they were made",
        ("on", "off"),
    ),
    Option("seed", int, 0, "of the weights and of the order of the data"),
    Option("lr", float, 1e-3, "learning rate"),
    Option(
        "accumulate",
        int,
        1,
        "batches whose gradients are added up for one optimizer step",
        least=1,
    ),
    Option("threads", int, 1, "computing threads of each rank", least=1, most=1024),
    Option(
        "device", str, "auto", "auto takes a GPU for each rank, else CPUs", ("auto", "cpu", "cuda")
    ),
    Option("log-every", int, 10, "steps between two printed losses", least=1),
    Option("fault", str, None, "KIND:KEY=VALUE,… planted on purpose", repeatable=True),
)
PRACTICES = (
    Option(
        "global-batch", int, None, "samples of all ranks in one step, in place of --batch", least=1
    ),
    Option(
        "lr-scaling",
        str,
        "none",
        "how --lr grows with the samples of a step, against the usual --batch",
        ("none", "linear", "sqrt"),
    ),
    Option("warmup", int, 0, "first steps, over which the learning rate rises to its full"),
    Option("precision", str, "fp32", "in which a pass is computed", ("fp32", "bf16", "fp16")),
    Option(
        "checkpointing",
        str,
        "none",
        "of activations; full: those inside a block are computed again in backward; selective: all "
        "but the results of matrix products and attention",
        ("none", "full", "selective"),
    ),
    Option("save-every", int, None, "steps between two checkpoints, in --save-to", least=1),
    Option("save-to", str, None, "folder of the checkpoint; one that is there is resumed from"),
)
"""What helps any strategy."""

AUTO = "auto"
AUTO_BATCH = replace(
    next(option for option in TRAINING if option.name == "batch"),
    help="samples a rank takes at once (4 or 32, as the model is); auto: the most that fit",
    words=(AUTO,),
)
"""Where a rank holds the whole model, so that one process can try what fits."""
COMPILE = Option(
    "compile",
    str,
    "off",
    "the blocks of the model go through torch.compile",
    ("on", "off"),
)

TIMEOUT = Option(
    "timeout", float, None, "seconds after which a collective fails", least=1, most=10**6
)
NO_SYNC = Option(
    "no-sync",
    str,
    "on",
    "with --accumulate, average gradients with the last batch alone",
    ("on", "off"),
)
BUCKET = Option(
    "bucket-mb", float, None, "size of the parts in which gradients travel", least=0.1, most=10**6
)
COMPRESS = Option(
    "compress",
    str,
    "none",
    "how gradients are made smaller for the way",
    ("none", "bf16", "fp16", "powersgd"),
)
SYNC_EVERY = Option("sync-every", int, 8, "steps between two averages of the weights", least=2)
SYNC_FIRST = Option("sync-first", int, 10, "first steps, in each of which gradients are averaged")
STAGES = Option("stages", int, 2, "parts the model is cut into, each on a device", least=1)
TP = Option("tp", int, 2, "ranks that share each layer; the groups of them share the data", least=1)
SCHEDULE = Option(
    "schedule",
    str,
    "1f1b",
    "in which order a rank takes micro-batches; interleaved and zbv: two stages a rank",
    ("gpipe", "1f1b", "interleaved", "zbv"),
)
MICRO_BATCHES = Option("micro-batches", int, 4, "parts in which a batch goes through", least=1)
