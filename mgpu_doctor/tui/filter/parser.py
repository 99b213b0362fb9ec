"""A filter's text as an expression. Nothing that can be typed raises anything but FilterError."""

from __future__ import annotations

import re
from difflib import get_close_matches

from mgpu_doctor.tui.filter.errors import FilterError, plain
from mgpu_doctor.tui.filter.fields import ALIASES, FIELDS, Field, NumberField, TextField, named
from mgpu_doctor.tui.filter.lexer import Token, tokens
from mgpu_doctor.tui.filter.syntax import (
    ORDERS,
    UNKNOWN,
    And,
    Compares,
    Expression,
    Filter,
    IsUnknown,
    Not,
    Or,
    Range,
    Says,
    Within,
    Word,
)
from mgpu_doctor.tui.filter.units import Quantity, quantity

MOST_CHARACTERS = 1000
DEEPEST = 32
"""Brackets and negations inside each other."""
_ENDS = re.compile(r"([^-]+)-([^-]+)")


def parse(typed: str) -> Filter:
    """Raises `FilterError`, which points at the column."""
    if len(typed) > MOST_CHARACTERS:
        raise FilterError(f"expected at most {MOST_CHARACTERS} characters", MOST_CHARACTERS)
    return Filter(_Parser(tokens(typed)).whole())


class _Parser:
    """or := and {| and};  and := part {[&] part};  part := !part | (or) | term"""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._place = 0
        self._depth = 0

    def whole(self) -> Expression:
        made = self._or()
        if self._now.kind != "end":
            raise FilterError(f"expected the end or &, not {_told(self._now)}", self._now.column)
        return made

    @property
    def _now(self) -> Token:
        return self._tokens[self._place]

    def _take(self) -> Token:
        token = self._now
        self._place = min(self._place + 1, len(self._tokens) - 1)
        return token

    def _or(self) -> Expression:
        parts = [self._and()]
        while self._now.kind == "|":
            self._take()
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Expression:
        parts = [self._part()]
        while self._now.kind not in ("|", ")", "end"):
            if self._now.kind == "&":
                self._take()
            parts.append(self._part())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _part(self) -> Expression:
        token = self._take()
        if token.kind in ("!", "("):
            self._depth += 1
            if self._depth > DEEPEST:
                raise FilterError(
                    f"expected at most {DEEPEST} brackets inside each other", token.column
                )
            made = Not(self._part()) if token.kind == "!" else self._bracket(token)
            self._depth -= 1
            return made
        if token.kind == "quoted":
            return self._word(token)
        if token.kind != "word":
            raise FilterError(f"expected a filter such as util<5, not {_told(token)}", token.column)
        if self._now.kind == "compare":
            return self._comparison(token, self._take())
        if (field := named(token.text)) is not None:
            sign = ":" if isinstance(field, TextField) else ">"
            message = f"expected a comparison such as {field.name}{sign}…, or quotes round a text"
            raise FilterError(message, token.column + len(token.text))
        return self._word(token)

    def _bracket(self, opened: Token) -> Expression:
        made = self._or()
        if self._take().kind != ")":
            raise FilterError("expected this bracket to be closed", opened.column)
        return made

    def _word(self, token: Token) -> Word:
        if not token.text.strip():
            raise FilterError("expected text in the quotes", token.column)
        return Word(token.text)

    def _comparison(self, name: Token, compare: Token) -> Expression:
        field = named(name.text)
        if field is None:
            raise FilterError(_no_field(name.text), name.column)
        values = self._values(field, compare)
        first = values[0]
        if first.kind == "value" and first.text.casefold() in UNKNOWN and len(values) == 1:
            if compare.text in ORDERS:
                message = f"expected {field.name}=? to find what is not known"
                raise FilterError(message, compare.column)
            return Not(IsUnknown(field)) if compare.text == "!=" else IsUnknown(field)
        if isinstance(field, TextField):
            return _says(field, compare, values)
        if compare.text not in ORDERS:
            ranges = tuple(_range(field, value) for value in values)
            return Within(field, ranges, differs=compare.text == "!=")
        if len(values) > 1:
            message = f"expected one number after {compare.text}"
            raise FilterError(message, values[1].column)
        return Compares(field, compare.text, _quantity(field, first, first.text))

    def _values(self, field: Field, compare: Token) -> list[Token]:
        values: list[Token] = []
        while True:
            token = self._now
            if token.kind not in ("value", "quoted") or not token.text:
                kind = "text" if isinstance(field, TextField) else "a number"
                message = f"expected {kind} after {field.name}{compare.text}"
                raise FilterError(message, token.column)
            values.append(self._take())
            if self._now.kind != ",":
                return values
            self._take()


def _says(field: TextField, compare: Token, values: list[Token]) -> Says:
    if compare.text in ORDERS:
        raise FilterError(f"expected : or = as {field.name} is text", compare.column)
    texts = tuple(value.text for value in values)
    return Says(field, texts, exact=compare.text != ":", differs=compare.text == "!=")


def _range(field: NumberField, value: Token) -> Range:
    ends = _ENDS.fullmatch(value.text)
    if ends is None:
        one = _quantity(field, value, value.text)
        return Range(one, one)
    high = _quantity(field, value, ends[2])
    # `60-80%`: a unit that only the end has is meant for both.
    bare = ends[1].replace(".", "").isdecimal()
    low = _quantity(field, value, ends[1] + high.unit.sign if bare else ends[1])
    if low.unit.is_share != high.unit.is_share:
        raise FilterError("expected both ends of the range in the same unit", value.column)
    if low.value > high.value:
        raise FilterError("expected the smaller end of the range first", value.column)
    return Range(low, high)


def _quantity(field: NumberField, token: Token, written: str) -> Quantity:
    made = quantity(written, field.units)
    if isinstance(made, str):
        told = f"{made} for {field.name}, not {_told(token)}"
        raise FilterError(told, token.column)
    if field.whole and "." in made.digits:
        raise FilterError(f"expected a whole number for {field.name}", token.column)
    return made


def _no_field(name: str) -> str:
    near = get_close_matches(name.casefold(), [*FIELDS, *ALIASES], 2)
    if near:
        meant = " or ".join(dict.fromkeys(ALIASES.get(one, one) for one in near))
        return f"expected the name of a field: did you mean {meant}?"
    return f"expected the name of a field: {', '.join(FIELDS)}"


def _told(token: Token) -> str:
    return "nothing" if token.kind == "end" else plain(token.text[:40])
