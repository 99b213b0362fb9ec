"""What one planted fault is: where and when it takes hold."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mgpu_trainers import specs
from mgpu_trainers.specs import key

if TYPE_CHECKING:
    from mgpu_trainers.faults import Planted


@dataclass(frozen=True)
class Fault:
    """What one planted fault is; the methods say where it takes hold, by default nowhere."""

    kind: ClassVar[str]
    only: ClassVar[tuple[str, ...]] = ()
    """Trainers in which it can be; empty: in all, but for what `faults` and `natural` refuse."""
    rank: int = key(specs.rank, 1)

    def __str__(self) -> str:
        return specs.write(self)

    def join(self) -> None:
        """The rank is about to join the others."""

    def batch(self, size: int) -> int:
        """The rank's own batch size, where `size` is everybody's."""
        return size

    def part(self, own: int) -> int:
        """The part of the data that the rank takes, where `own` is the one that it should."""
        return own

    def skips(self, step: int) -> bool:
        """Whether the rank leaves out that step."""
        assert step > 0
        return False

    def attach(self, job: "Planted") -> None:
        """Puts hooks into the rank's model and optimizer."""

    def begin(self, job: "Planted") -> None:
        """The rank is about to begin step `job.step`; the first is 1."""
