"""Making text from strangers harmless: bounded, printable, without terminal escapes."""

from __future__ import annotations

import re

_ESCAPES = (
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
"""ECMA-48 control sequences, operating-system commands and single escapes."""
_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
"""Control characters but tab and newline, and marks that turn the direction of text around."""


def clean(text: str, limit: int) -> str:
    """`text` without escape sequences and control characters, of `limit` characters at most.

    Tabs and newlines stay; lone surrogates become `?`.
    """
    cut = text[: 4 * limit]
    if cut.isprintable():  # as nearly always: nothing of the below is
        return cut[:limit]
    kept = re.sub(_CONTROLS, "", re.sub(_ESCAPES, "", cut))[:limit]
    return kept.encode("utf-8", "replace").decode("utf-8")


def clean_line(text: str, limit: int) -> str:
    """One line as a terminal would show it: what stands after its last carriage return."""
    shown = text.rstrip("\r\n").rpartition("\r")[2]
    return clean(shown, limit).replace("\n", " ")
