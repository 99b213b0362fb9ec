"""What a treatment is: a declared change to a training job's settings, and which jobs it fits.

Numpy is not imported here: `run --treat` must not load it before it has started the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import TypeAlias

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.process_metadata import UNKNOWN, ProcessMetadata

Value: TypeAlias = bool | int
DDP = frozenset({"ddp", "zero1"})
"""Strategies that use DistributedDataParallel."""
FSDP = frozenset({"fsdp"})
_STRATEGIES = {DDP: "DistributedDataParallel", FSDP: "fully_shard"}


class Effect(str, Enum):
    """What a treatment may change in the result of the training."""

    NOTHING = "nothing"
    ROUNDING = "rounding"
    """Sums in another order: differences in the last digits, which training can amplify."""
    CONVERGENCE = "convergence"
    """The result may differ: compare the validation loss of whole runs."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a job that treatments may fit."""

    framework: str | None
    strategy: frozenset[str]
    metadata: ProcessMetadata
    """Of the first rank that reported any."""
    cores: float | None
    """Cores per rank of its host."""
    micro_batches: int | None
    """Backward passes per update."""
    garbage_share: float | None
    """Share of the step time, 0..1, in garbage collections, on the rank with the most."""
    saves: bool
    """Whether any rank saved a checkpoint."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """A change to a job's settings."""

    name: str
    summary: str
    """What it does, as an imperative."""
    framework: str | None
    """None: any."""
    lines: str
    """What a person would write to make the change last; `{value}` stands for the value."""
    needs: str
    """What must be true of the job, in a sentence."""
    propose: Callable[[Situation], Value | str]
    """The value to try in this situation, or why it does not fit."""
    strategies: frozenset[str] = frozenset()
    """Those that it needs; empty: any."""
    effect: Effect = Effect.NOTHING
    fixes: tuple[str, ...] = ()
    """Ids of the fixes of findings that this treatment applies."""
    codes: tuple[str, ...] = ()
    """Codes of the findings that have these fixes."""
    least: int | None = None
    """The least value; None: it is a switch without one."""
    most: int = 0
    variable: str | None = None
    """The environment variable that it sets; None: the probe changes calls of the framework."""
    setting: str = "{value}"
    """What the variable is set to."""
    start_seconds: float = 0.0
    """Seconds by which it may prolong the start of the job."""
    needs_gpu: bool = False
    """Whether only a GPU can show what it does. Such treatments have not been tried yet."""
    switches: bool = False
    """Whether it can be switched on and off while the job runs."""
    waits_to_be_named: bool = False
    """Whether it is tried only if the user names it: it may change how the training converges, or
    hardly ever fits."""
    excludes: frozenset[str] = frozenset()
    """Treatments that cannot be combined with it."""

    @property
    def is_switch(self) -> bool:
        """Whether it has no value but on."""
        return self.least is None

    def find_value(self, situation: Situation) -> Value | str:
        """The value to try, or a sentence that says why the treatment does not fit the job."""
        if self.framework is not None and situation.framework != self.framework:
            return f"it is for {self.framework}"
        if self.strategies and not self.strategies & situation.strategy:
            return f"the job does not use {_STRATEGIES[self.strategies]}"
        if self.needs_gpu and (situation.metadata.device or "cpu").startswith("cpu"):
            return "the job uses no GPU"
        return self.propose(situation)

    def parse_value(self, text: str) -> Value:
        """The value that a user wrote. Raises ValueError with a sentence that says what is
        allowed."""
        if self.least is None:
            if text.lower() in ("", "1", "on", "true", "yes"):
                return True
            raise ValueError(f"{self.name} has no value: write {self.name} alone.")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
        if self.least is not None and number is not None and self.least <= number <= self.most:
            return number
        raise ValueError(
            f"{self.name} takes a whole number from {self.least} to {self.most}, not {text!r}."
        )

    def check_value(self, value: object) -> Value:
        """The value of a file, checked. Raises ValueError."""
        if value is True and self.is_switch:
            return True
        if self.is_switch or type(value) is not int:
            wanted = "true" if self.is_switch else "a whole number"
            raise ValueError(f"{self.name} must be {wanted}.")
        return self.parse_value(str(value))

    def write_lines(self, value: Value) -> str:
        """The lines that make the change last."""
        return self.lines.replace("{value}", str(value))


def find_situation(case: Case) -> Situation:
    """What the case tells about treatments that fit."""
    known = [rank for rank in case.ranks if rank.metadata != UNKNOWN]
    metadata = known[0].metadata if known else UNKNOWN
    local_ranks = metadata.local_world_size or max(1, len(case.ranks))
    cores = None if metadata.affinity is None else metadata.affinity / local_ranks
    passes = [rank.steps["micro_batches"] for rank in known if len(rank.steps)]
    garbage = [
        float(rank.steps["gc_s"].sum()) / wall
        for rank in known
        if len(rank.steps) and (wall := float(rank.steps["wall_ns"].sum()) * 1e-9) > 0
    ]
    return Situation(
        framework=case.job.framework,
        strategy=frozenset((case.job.strategy or "").split("+")) - {""},
        metadata=metadata,
        cores=cores,
        micro_batches=int(median(passes[0].tolist())) if passes else None,
        garbage_share=max(garbage, default=None),
        saves=any(event.kind == "checkpoint" for rank in known for event in rank.events),
    )
