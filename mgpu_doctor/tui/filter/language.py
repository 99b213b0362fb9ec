"""The filter language: from a text to an expression that matches rows. Pure.

Parsing raises only `FilterError`, whatever is typed. `str` of an expression is its text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

from rich.cells import cell_len

from mgpu_doctor.tui.filter.fields import (
    ALIASES,
    FIELDS,
    TEXTS,
    Field,
    NumberField,
    Numbers,
    Quantity,
    TextField,
    named,
    quantity,
)
from mgpu_doctor.tui.view import Row


class FilterError(ValueError):
    """Text that is no filter. `message`: what was expected, one sentence. `column`: where, from
    0."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"column {column + 1}: {message}")
        self.message = message
        self.column = column


def plain(typed: str) -> str:
    """Returns `typed` with each unprintable character replaced by a question mark."""
    return "".join(char if char.isprintable() else "?" for char in typed)


def caret(typed: str, column: int) -> str:
    """Returns a line with a caret at `column`, to print under `plain(typed)`."""
    return " " * cell_len(plain(typed[:column])) + "^"


def pointed(typed: str, error: FilterError) -> str:
    """Returns three lines: the text, a caret under the mistake, and the message."""
    return f"{plain(typed)}\n{caret(typed, error.column)}\n{error}"


MEANING = '()!&|:=<>,"'
"""Special characters. Text with one of them, or with a quote, is written in quotes."""
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
    """Matches if any text field contains it."""

    text: str

    def matches(self, row: Row) -> bool:
        wanted = self.text.casefold()
        return any(wanted in value.casefold() for field in TEXTS for value in field.read(row))

    def __str__(self) -> str:
        return quoted(self.text)


@dataclass(frozen=True, slots=True)
class Says:
    """Matches if the text field contains one of the texts. `exact`: if it equals one. `differs`: if
    it does not."""

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
    """A range, both ends included. `low` equal to `high` is one number, as typed."""

    low: Quantity
    high: Quantity

    def holds(self, values: Numbers) -> bool:
        slack = self.low.slack if self.low == self.high else 0.0
        return any(self.low.value - slack <= value <= self.high.value + slack for value in values)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Within:
    """Matches if the number is in one of the ranges. `differs`: if it is known and outside all of
    them."""

    field: NumberField
    ranges: tuple[Range, ...]
    differs: bool = False

    def matches(self, row: Row) -> bool:
        known = [(bounds, read_as(self.field, bounds.low, row)) for bounds in self.ranges]
        if not all(values for _, values in known):
            return not self.differs and any(name.holds(values) for name, values in known)
        return any(name.holds(values) for name, values in known) is not self.differs

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
    """Returns an expression that requires all of these; None if there are none."""
    parts = tuple(given.expression for given in filters)
    return Filter(parts[0] if len(parts) == 1 else And(parts)) if parts else None


def read_as(field: NumberField, quantity: Quantity, row: Row) -> Numbers:
    """Returns the field's values in the dimension of `quantity`."""
    read = field.share if quantity.unit.is_share and field.share else field.read
    return read(row)


def quoted(text: str) -> str:
    """Returns `text` as it is typed, quoted if needed. It contains at most one kind of quotes."""
    bare = not (set(text) & {*MEANING, "'"}) and not any(map(str.isspace, text))
    if text and bare and text.casefold() not in (*WORDS, *UNKNOWN):
        return text
    mark = "'" if '"' in text else '"'
    return f"{mark}{text}{mark}"


def _bracketed(part: Expression, kinds: tuple[type, ...]) -> str:
    return f"({part})" if isinstance(part, kinds) else str(part)


SIGNS = {"&&": "&", "||": "|", "and": "&", "or": "|", "not": "!"}
"""Synonyms."""
_COMPARISON = re.compile(r"<=|>=|!=|==?|[<>:]")
_JOINT = re.compile(r"&&|\|\||[()&|!]")
_BLANK = re.compile(r"\s*")
_WORD = re.compile(rf"[^\s'{re.escape(MEANING)}]+")
_VALUE = re.compile(r"[^\s()&|,\"']+")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")


@dataclass(frozen=True, slots=True)
class Token:
    """`kind`: `word`, `quoted`, `compare`, `value`, `,`, `(`, `)`, `&`, `|`, `!` or `end`."""

    kind: str
    text: str
    column: int


def tokens(typed: str) -> list[Token]:
    """Returns the tokens. Raises `FilterError`. After a comparison comes a value, in which special
    characters are text, so `device:cuda:0` needs no quotes."""
    result: list[Token] = []
    at = _skip(typed, 0)
    while at < len(typed):
        token, after = _next(typed, at, result[-1].kind if result else "")
        result.append(token)
        at = _skip(typed, after)
    return [*result, Token("end", "", len(typed))]


def _next(typed: str, at: int, before: str) -> tuple[Token, int]:
    char = typed[at]
    if char in "\"'":
        quoted = _QUOTED.match(typed, at)
        if quoted is None:
            raise FilterError(f"expected the quote to be closed by another {char}", at)
        return Token("quoted", quoted[0][1:-1], at), quoted.end()
    if before in ("compare", ",") and (value := _VALUE.match(typed, at)):
        return Token("value", value[0], at), value.end()
    if before == "word" and (compare := _COMPARISON.match(typed, at)):
        return Token("compare", "=" if compare[0] == "==" else compare[0], at), compare.end()
    if joint := _JOINT.match(typed, at):
        sign = SIGNS.get(joint[0], joint[0])
        return Token(sign, joint[0], at), joint.end()
    if word := _WORD.match(typed, at):
        known = word[0].casefold()
        return Token(SIGNS[known] if known in WORDS else "word", word[0], at), word.end()
    if char == ",":
        return Token(",", char, at), at + 1
    raise FilterError(f"expected the name of a field before {char}", at)


def _skip(typed: str, at: int) -> int:
    blank = _BLANK.match(typed, at)
    return blank.end() if blank else at


MOST_CHARACTERS = 1000
DEEPEST = 32
"""The deepest nesting of brackets and negations."""
_ENDS = re.compile(r"([^-]+)-([^-]+)")


def parse(typed: str) -> Filter:
    """Returns the expression. Raises `FilterError` with the column of the mistake."""
    if len(typed) > MOST_CHARACTERS:
        raise FilterError(f"expected at most {MOST_CHARACTERS} characters", MOST_CHARACTERS)
    return Filter(_Parser(tokens(typed)).whole())


class _Parser:
    """or := and {| and};  and := part {[&] part};  part := !part | (or) | term"""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def whole(self) -> Expression:
        made = self._or()
        if self._now.kind != "end":
            raise FilterError(
                f"expected the end or &, not {_show_token(self._now)}", self._now.column
            )
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
            raise FilterError(
                f"expected a filter such as util<5, not {_show_token(token)}", token.column
            )
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
                message = f"expected {field.name}=? to find unknown values"
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
        quantity = _quantity(field, value, value.text)
        return Range(quantity, quantity)
    high = _quantity(field, value, ends[2])
    # `60-80%`: a unit on the end applies to both.
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
        shown = f"{made} for {field.name}, not {_show_token(token)}"
        raise FilterError(shown, token.column)
    if field.whole and "." in made.digits:
        raise FilterError(f"expected a whole number for {field.name}", token.column)
    return made


def _no_field(name: str) -> str:
    near = get_close_matches(name.casefold(), [*FIELDS, *ALIASES], 2)
    if near:
        meant = " or ".join(dict.fromkeys(ALIASES.get(part, part) for part in near))
        return f"expected the name of a field: did you mean {meant}?"
    return f"expected the name of a field: {', '.join(FIELDS)}"


def _show_token(token: Token) -> str:
    return "nothing" if token.kind == "end" else plain(token.text[:40])
