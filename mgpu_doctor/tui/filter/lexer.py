"""A filter's text as tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mgpu_doctor.tui.filter.errors import FilterError
from mgpu_doctor.tui.filter.syntax import MEANING, WORDS

SIGNS = {"&&": "&", "||": "|", "and": "&", "or": "|", "not": "!"}
"""Other ways to write the same."""
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
    """Raises `FilterError`. What follows a comparison is a value: signs are text in it, so that
    `device:cuda:0` needs no quotes."""
    found: list[Token] = []
    at = _skip(typed, 0)
    while at < len(typed):
        token, after = _next(typed, at, found[-1].kind if found else "")
        found.append(token)
        at = _skip(typed, after)
    return [*found, Token("end", "", len(typed))]


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
