"""Numbers as people write them: `80%`, `1.5GiB`, `20ms`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MOST_DIGITS = 18
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([^0-9.]*)")


@dataclass(frozen=True, slots=True)
class Unit:
    """`scale`: what one of it is in the field's own unit (SI; MHz, °C, shares 0..1)."""

    sign: str
    scale: float
    is_share: bool = False
    """Held against the field's share, where it has one."""


COUNT = (Unit("", 1),)
SHARE = (Unit("%", 0.01), Unit("", 0.01))
POWER = (Unit("W", 1), Unit("kW", 1000), Unit("", 1))
TEMPERATURE = (Unit("C", 1), Unit("°C", 1), Unit("", 1))
CLOCK = (Unit("MHz", 1), Unit("GHz", 1000), Unit("", 1))
SECONDS = (Unit("ms", 1e-3), Unit("s", 1), Unit("us", 1e-6), Unit("%", 0.01, is_share=True))
SIZE = (
    Unit("%", 0.01, is_share=True),
    *(Unit(f"{sign}iB", 1 << power) for sign, power in zip("KMGT", (10, 20, 30, 40), strict=True)),
    *(Unit(sign, 1 << power) for sign, power in zip("KMGT", (10, 20, 30, 40), strict=True)),
    *(Unit(f"{sign}B", 10**power) for sign, power in zip("KMGT", (3, 6, 9, 12), strict=True)),
    Unit("B", 1),
)
"""Memory is always told with its unit: `mem>80` could be meant as a share or as gibibytes."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as it was written, and its unit."""

    digits: str
    unit: Unit

    @property
    def value(self) -> float:
        return float(self.digits) * self.unit.scale

    @property
    def slack(self) -> float:
        """Half of one in the last digit that was written."""
        places = len(self.digits.partition(".")[2])
        return 0.5 * 10.0**-places * self.unit.scale

    def __str__(self) -> str:
        return f"{self.digits}{self.unit.sign}"


def quantity(written: str, units: Sequence[Unit]) -> Quantity | str:
    """The number, or what is wrong with it, as the end of a sentence."""
    found = _NUMBER.fullmatch(written)
    if found is None or len(found[1]) > MOST_DIGITS:
        return "expected a number"
    sign = found[2].casefold()
    for unit in units:
        if unit.sign.casefold() == sign:
            return Quantity(found[1], unit)
    known = [unit.sign for unit in units if unit.sign]
    if not known:
        return "expected a number without a unit"
    return f"expected a number with a unit: {', '.join(known)}"
