"""What the person at the screen chose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.tui.filter import Filter


class Order(str, Enum):
    """How ranks are sorted."""

    RANK = "rank"
    OWN = "own work"
    WAIT = "wait"
    STEP = "step"
    MEMORY = "memory"
    STATE = "state"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class View:
    """Panels draw a frame under a view."""

    order: Order = Order.RANK
    finding: int = 0
    """Which finding is selected."""
    filter: Filter | None = None
    """Which ranks and GPUs are shown; None: all."""
    reversed: bool = False
    """The order turned round; what is not known stays last."""
