"""What a treatment is: a declared change to a training job's settings, and which jobs it fits.

Numpy is not imported here: `run --treat` must not load it before it has started the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import partial
from statistics import median
from typing import TypeAlias

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.process_metadata import UNKNOWN, ProcessMetadata
from mgpu_doctor.recording.record_chunks import chunks

Value: TypeAlias = bool | int
DDP = frozenset({"ddp", "zero1"})
"""Strategies that use DistributedDataParallel."""
WHOLE = DDP | {"single", "manual"}
"""Strategies with which each rank holds and calls a whole model."""
FSDP = frozenset({"fsdp"})
_STRATEGIES = {
    DDP: "DistributedDataParallel",
    WHOLE: "a whole model on each rank",
    FSDP: "fully_shard",
    WHOLE | FSDP: "a whole model on each rank, or fully_shard",
    frozenset({"multiworker"}): "MultiWorkerMirroredStrategy",
    frozenset({"mirrored"}): "MirroredStrategy",
}


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
class Remedy:
    """A fix of findings, which several treatments may apply."""

    fix: str
    """Its id."""
    codes: tuple[str, ...]
    """Codes of the findings that have it."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """A change to a job's settings."""

    name: str
    summary: str
    """What it does, as an imperative."""
    needs: str
    """What must be true of the job, in a sentence."""
    propose: Callable[[Situation], Value | str] = lambda _: True
    """The value to try in this situation, or why it does not fit."""
    _: KW_ONLY
    lines: str = ""
    """What a person would write to make the change last, unless it is set in the environment;
    `{value}` is replaced by the value."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that it sets; empty: the probe changes calls of the framework."""
    framework: str | None = None
    """None: any."""
    strategies: frozenset[str] = frozenset()
    """Those that it needs; empty: any."""
    effect: Effect = Effect.NOTHING
    applies: Remedy | None = None
    """The fix of findings that it applies."""
    values: range | None = None
    """The values it takes; None: it is a switch without one."""
    start_seconds: float = 0.0
    """Seconds by which it may prolong the start of the job."""
    needs_gpu: bool = False
    """Whether only a GPU can show what it does. Such treatments have not been tried yet."""
    switches: bool = False
    """Whether it can be switched on and off while the job runs."""
    only_by_name: bool = False
    """Whether it is tried only if the user names it, as it saves memory instead of time, or hardly
    ever fits. So are those that may change how the training converges."""
    slot: str | None = None
    """What it occupies: two treatments with the same slot cannot be combined."""

    @property
    def is_switch(self) -> bool:
        """Whether it has no value but on."""
        return self.values is None

    @property
    def fix(self) -> str | None:
        """The id of the fix of findings that it applies; None: none."""
        return self.applies.fix if self.applies is not None else None

    @property
    def waits_to_be_named(self) -> bool:
        """Whether it is tried only if the user names it."""
        return self.only_by_name or self.effect is Effect.CONVERGENCE

    @property
    def strategy_names(self) -> str:
        """The strategies that it needs, as a user knows them; empty: any."""
        return _STRATEGIES[self.strategies] if self.strategies else ""

    def find_value(self, situation: Situation) -> Value | str:
        """The value to try, or a sentence that says why the treatment does not fit the job."""
        if self.framework is not None and situation.framework != self.framework:
            return f"it is for {self.framework}"
        if self.strategies and not self.strategies & situation.strategy:
            return f"it needs {self.strategy_names}"
        if self.needs_gpu and (situation.metadata.device or "cpu").startswith("cpu"):
            return "the job uses no GPU"
        return self.propose(situation)

    def parse_value(self, text: str) -> Value:
        """The value that a user wrote. Raises ValueError with a sentence that says what is
        allowed."""
        if self.values is None:
            if text.lower() in ("", "1", "on", "true", "yes"):
                return True
            raise ValueError(f"{self.name} has no value: write {self.name} alone.")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
        if number is not None and number in self.values:
            return number
        least, most = self.values[0], self.values[-1]
        raise ValueError(f"{self.name} takes a whole number from {least} to {most}, not {text!r}.")

    def check_value(self, value: object) -> Value:
        """The value of a file, checked. Raises ValueError."""
        if value is True and self.is_switch:
            return True
        if self.is_switch or type(value) is not int:
            wanted = "true" if self.is_switch else "a whole number"
            raise ValueError(f"{self.name} must be {wanted}.")
        return self.parse_value(str(value))

    def write_lines(self, value: Value) -> str:
        """The lines that make the change last, or the variables to set."""
        lines = self.lines or " ".join(f"{name}={text}" for name, text in self.environment.items())
        return lines.replace("{value}", str(value))


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that cannot be tried without an edit of the script."""

    summary: str
    """What to do, as an imperative."""
    lines: str
    """What a person would write."""
    reason: str
    """Why the script must be edited, a clause."""


TorchTreatment = partial(Treatment, framework="torch")
ModelTreatment = partial(TorchTreatment, strategies=WHOLE)
DdpTreatment = partial(TorchTreatment, strategies=DDP)
FsdpTreatment = partial(TorchTreatment, strategies=FSDP)
TensorflowTreatment = partial(Treatment, framework="tensorflow")


def find_situation(case: Case) -> Situation:
    """What the case tells about treatments that fit."""
    known = [rank for rank in case.ranks if rank.metadata != UNKNOWN]
    metadata = known[0].metadata if known else UNKNOWN
    local_ranks = metadata.local_world_size or max(1, len(case.ranks))
    cores = None if metadata.affinity is None else metadata.affinity / local_ranks
    steps = [rank.steps for rank in known if len(rank.steps)]
    garbage = [
        collecting / (wall * 1e-9)
        for chunk in chunks(steps)
        for collecting, wall in zip(
            chunk["gc_s"].sum(axis=1).tolist(), chunk["wall_ns"].sum(axis=1).tolist(), strict=True
        )
        if wall > 0
    ]
    return Situation(
        framework=case.job.framework,
        strategy=frozenset((case.job.strategy or "").split("+")) - {""},
        metadata=metadata,
        cores=cores,
        micro_batches=int(median(steps[0]["micro_batches"].tolist())) if steps else None,
        garbage_share=max(garbage, default=None),
        saves=any(event.kind == "checkpoint" for rank in known for event in rank.events),
    )
