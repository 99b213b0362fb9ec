"""Makes untrusted text harmless: no terminal escapes, no control or invisible characters.

`clean` is for one value: the text that a complete escape sequence carries (a title, a link) is
removed with it. `harmless` is for a whole sentence that contains such values: a sequence that a
file name leaves open must not swallow the words behind it, so the text that it carries stays."""

from __future__ import annotations

import re

_SEQUENCES = r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,4}[@-~]|\x1b[ -/]{0,4}[0-~]?"
"""ECMA-48: control sequences, and the beginnings of other sequences."""
# Compiled at the first harmful text, by `re` itself: compiling them delays whatever imports this.
_STRINGS = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,300}(?:\x07|\x1b\\|\x9c)"
"""ECMA-48: complete titles, hyperlinks and device strings."""
_CONTROLS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
"""Control characters except tab and newline."""
_INVISIBLE = (
    r"[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)
"""Invisible characters, including marks that change the direction of text."""
_HARMFUL = f"{_SEQUENCES}|{_CONTROLS}|{_INVISIBLE}"
_SURROGATES = r"[\ud800-\udfff]"


def harmless(words: str) -> str:
    """`words` without escape sequences, control characters and invisible marks, but with tabs and
    newlines. Bytes of a file name that are not text become U+FFFD."""
    if words.replace("\n", "").replace("\t", "").isprintable():  # as nearly always
        return words
    return re.sub(_SURROGATES, "\ufffd", re.sub(_HARMFUL, "", words))


def clean(text: str, limit: int | None = None) -> str:
    """`harmless(text)` without the text inside escape sequences, cut to `limit` characters."""
    cut = text if limit is None else text[: 4 * limit]
    if cut.isprintable():  # nearly always: nothing else is left to do
        return cut[:limit]
    return harmless(re.sub(_STRINGS, "", cut))[:limit]


def clean_line(text: str, limit: int) -> str:
    """One line as a terminal shows it: the text after its last carriage return."""
    shown = text.rstrip("\r\n").rpartition("\r")[2]
    return clean(shown, limit).replace("\n", " ")
