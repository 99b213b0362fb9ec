"""A trainer as the catalogue lists it: its module, its launcher, and its capabilities.

Imports no framework.
"""

from dataclasses import dataclass, replace

from mgpu_trainers.capabilities import PHASES, Batches, Capability, Framework, Launcher, Values
from mgpu_trainers.options import OPTIONS, RANKS, Option
from mgpu_trainers.torch_versions import TorchPart


@dataclass(frozen=True)
class Trainer:
    """A strategy as the catalogue knows it.

    `capabilities`: what it has or does. `batches`: which ranks take batches of their own.
    `timed_phases`: those in which the time a rank itself takes is known, so that a fault can
    multiply it; in the others a rank also waits, or nothing measures it. `least_ranks`: the fewest
    processes that can train. `torch_parts`: what it needs of PyTorch that not every version has.
    """

    name: str
    module: str
    framework: Framework
    launcher: Launcher
    summary: str
    capabilities: frozenset[Capability]
    batches: Batches = Batches.PER_RANK
    timed_phases: tuple[str, ...] = PHASES
    least_ranks: int = 1
    default_ranks: int = 2
    torch_parts: tuple[TorchPart, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """Its own options, in the order of help."""
        return tuple(
            option for option in OPTIONS if option.suits(self.framework, self.capabilities)
        )

    @property
    def ranks(self) -> Option:
        """`--ranks` with the default of this trainer."""
        return replace(RANKS, default=self.default_ranks)

    def has(self, capability: Capability) -> bool:
        return capability in self.capabilities

    @property
    def is_one_process(self) -> bool:
        return self.launcher is Launcher.PYTHON

    @property
    def shares_batches(self) -> bool:
        """Whether several ranks work on the same batch."""
        return self.batches in (Batches.SHARED, Batches.PER_GROUP)

    @property
    def has_server_rank(self) -> bool:
        """Whether rank 0 is a parameter server, which takes no batches."""
        return self.batches is Batches.PER_WORKER

    def count_faulty_ranks(self, ranks: int, values: Values) -> int:
        """How many ranks a fault can name: replicas of one process and separate servers, too."""
        if self.has(Capability.SERVERS):
            return ranks + int(values["servers"] or 0)
        return int(values.get("replicas") or ranks)

    def count_shares(self, ranks: int, tensor_parallel: int | None) -> int:
        """How many parts the data is divided into: ranks, groups of ranks, or workers."""
        if self.batches is Batches.SHARED:
            return 1
        if self.batches is Batches.PER_WORKER:
            return ranks - 1
        if self.batches is Batches.PER_GROUP:
            return ranks // (tensor_parallel or 1)
        return ranks
