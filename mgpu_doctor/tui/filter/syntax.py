"""What a filter is made of, and whether it matches a row. `str` of each gives its text again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mgpu_doctor.tui.filter.fields import TEXTS, Field, NumberField, Numbers, TextField
from mgpu_doctor.tui.filter.row import Row
from mgpu_doctor.tui.filter.units import Quantity

MEANING = '()!&|:=<>,"'
"""Characters that mean something: text that holds one, or a quote, is written in quotes."""
WORDS = ("and", "or", "not")
UNKNOWN = ("?", "unknown")
ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Word:
    """Any text field holds it."""

    text: str

    def matches(self, row: Row) -> bool:
        wanted = self.text.casefold()
        return any(wanted in value.casefold() for field in TEXTS for value in field.read(row))

    def __str__(self) -> str:
        return quoted(self.text)


@dataclass(frozen=True, slots=True)
class Says:
    """A text field holds one of the texts; `exact`: is one of them; `differs`: is none of them."""

    field: TextField
    texts: tuple[str, ...]
    exact: bool = False
    differs: bool = False

    def matches(self, row: Row) -> bool:
        values = self.field.read(row)
        return bool(values) and any(map(self._fits, values)) is not self.differs

    def _fits(self, value: str) -> bool:
        if self.exact:
            return value in self.texts
        return any(text.casefold() in value.casefold() for text in self.texts)

    def __str__(self) -> str:
        sign = "!=" if self.differs else "=" if self.exact else ":"
        return f"{self.field.name}{sign}{','.join(map(quoted, self.texts))}"


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, both included; the same twice is one number, as it is written."""

    low: Quantity
    high: Quantity

    def holds(self, values: Numbers) -> bool:
        slack = self.low.slack if self.low == self.high else 0.0
        return any(self.low.value - slack <= one <= self.high.value + slack for one in values)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Within:
    """A number is in one of the ranges; `differs`: is known and in none of them."""

    field: NumberField
    ranges: tuple[Range, ...]
    differs: bool = False

    def matches(self, row: Row) -> bool:
        known = [(one, read_as(self.field, one.low, row)) for one in self.ranges]
        if not all(values for _, values in known):
            return not self.differs and any(one.holds(values) for one, values in known)
        return any(one.holds(values) for one, values in known) is not self.differs

    def __str__(self) -> str:
        return f"{self.field.name}{'!=' if self.differs else ':'}{','.join(map(str, self.ranges))}"


@dataclass(frozen=True, slots=True)
class Compares:
    field: NumberField
    sign: str
    quantity: Quantity

    def matches(self, row: Row) -> bool:
        holds = ORDERS[self.sign]
        values = read_as(self.field, self.quantity, row)
        return any(holds(value, self.quantity.value) for value in values)

    def __str__(self) -> str:
        return f"{self.field.name}{self.sign}{self.quantity}"


@dataclass(frozen=True, slots=True)
class IsUnknown:
    field: Field

    def matches(self, row: Row) -> bool:
        return not self.field.read(row)

    def __str__(self) -> str:
        return f"{self.field.name}=?"


@dataclass(frozen=True, slots=True)
class Not:
    part: Expression

    def matches(self, row: Row) -> bool:
        return not self.part.matches(row)

    def __str__(self) -> str:
        return f"!{_bracketed(self.part, (And, Or))}"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Expression, ...]

    def matches(self, row: Row) -> bool:
        return all(part.matches(row) for part in self.parts)

    def __str__(self) -> str:
        return " & ".join(_bracketed(part, (And, Or)) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Expression, ...]

    def matches(self, row: Row) -> bool:
        return any(part.matches(row) for part in self.parts)

    def __str__(self) -> str:
        return " | ".join(_bracketed(part, (Or,)) for part in self.parts)


Expression: TypeAlias = Word | Says | Within | Compares | IsUnknown | Not | And | Or


@dataclass(frozen=True, slots=True)
class Filter:
    expression: Expression

    def matches(self, row: Row) -> bool:
        return self.expression.matches(row)

    def __str__(self) -> str:
        return str(self.expression)


def all_of(filters: Iterable[Filter]) -> Filter | None:
    """What matches all of them; None: there is none."""
    parts = tuple(one.expression for one in filters)
    return Filter(parts[0] if len(parts) == 1 else And(parts)) if parts else None


def read_as(field: NumberField, quantity: Quantity, row: Row) -> Numbers:
    """The field's values, in what `quantity` is a number of."""
    read = field.share if quantity.unit.is_share and field.share else field.read
    return read(row)


def quoted(text: str) -> str:
    """`text` as it is typed. It holds one kind of quotes at most."""
    bare = not (set(text) & {*MEANING, "'"}) and not any(map(str.isspace, text))
    if text and bare and text.casefold() not in (*WORDS, *UNKNOWN):
        return text
    mark = "'" if '"' in text else '"'
    return f"{mark}{text}{mark}"


def _bracketed(part: Expression, kinds: tuple[type, ...]) -> str:
    return f"({part})" if isinstance(part, kinds) else str(part)
