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
    rank: int = key(specs.rank, 1)

    def __str__(self) -> str:
        return specs.write(self)

    def batch(self, size: int) -> int:
        """The rank's own batch size, where `size` is everybody's."""
        return size

    def attach(self, job: "Planted") -> None:
        """Puts hooks into the rank's model and optimizer."""

    def begin(self, job: "Planted") -> None:
        """The rank is about to begin step `job.step`; the first is 1."""
