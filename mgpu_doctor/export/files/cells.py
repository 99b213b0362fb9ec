"""Foreign words as cells of a table: none is taken for a formula by the program that opens it."""

from __future__ import annotations

import re

from mgpu_doctor.report import text

STARTS = "=+\\-@＝＋－＠﹦﹢﹣﹫⁼⁺⁻−"
"""What a formula begins with (OWASP, CSV injection), also full-width, small and raised; tab and
carriage return are no part of a cell. Inside of a regular expression's brackets."""
_RISKY = re.compile(rf"(^|[,;|])(?=[^\w,;|{STARTS}]*[{STARTS}])")
"""A place where a cell begins, or begins for a program that splits at other separators than ours,
if what comes there first, but for white space, quotes and other marks, starts a formula."""


def cell(words: str | None) -> str | None:
    """`words` on one line without control characters, with `'` before what starts a formula."""
    return None if words is None else _RISKY.sub(r"\1'", text.line(words))
