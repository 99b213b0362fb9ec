"""Encodes facts of a training process as JSON of a bounded size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

DEEPEST = 6
"""Levels of nesting that are kept; deeper values become their type's name."""
LONGEST = 1024
"""Items of one list or dict that are kept."""
LONGEST_TEXT = 1 << 16
"""Characters; `fitted` cuts further where the area is smaller."""
TRUNCATED = "truncated"
"""The key under which `fitted` lists the keys that it cut or dropped."""


def plain(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one return a kind of value
    """`value` as JSON can hold it: NaN becomes None, and other objects become their type's name."""
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, str):
        return cut_middle(value, LONGEST_TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return int(value)
    if depth < DEEPEST and isinstance(value, Mapping):
        items = list(value.items())[:LONGEST]
        return {str(key): plain(item, depth + 1) for key, item in items}
    if depth < DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in list(value)[:LONGEST]]
    return f"<{type(value).__name__}>"


def cut_middle(text: str, length: int) -> str:
    """`text`, shortened in its middle to about `length` characters."""
    if len(text) <= length:
        return text
    half = max(length // 2, 1)
    return f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"


def utf8(text: str, limit: int) -> bytes:
    """`text` as at most `limit` bytes of UTF-8, never cut within a character."""
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw
    return raw[:limit].decode("utf-8", "ignore").encode()


def encoded(value: Any) -> bytes:
    # ASCII: a lone surrogate (undecodable argv) stays writable and readable.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def fitted(facts: Mapping[str, Any], limit: int) -> bytes:
    """`facts` as JSON of at most `limit` bytes.

    While they are too large, the largest is shortened if it is a text, and dropped otherwise; its
    key is listed under `truncated`.
    """
    fitting = {str(key): plain(value) for key, value in facts.items()}
    fitting.pop(TRUNCATED, None)
    cut: list[str] = []
    while len(raw := encoded({**fitting, TRUNCATED: cut} if cut else fitting)) > limit:
        sizes = {key: len(encoded(key)) + len(encoded(value)) for key, value in fitting.items()}
        if not sizes:
            return b"{}"
        largest = max(sizes, key=sizes.__getitem__)
        value = fitting[largest]
        if isinstance(value, str) and len(value) > 256:
            fitting[largest] = cut_middle(value, len(value) // 2)
        else:
            del fitting[largest]
        name = largest[:64]
        if name not in cut and len(cut) < 64:
            cut.append(name)
    return raw
