"""Hostile changes to JSON: to the tree that it says, and to the text that says it."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.byte_damage import damaged
from tests.fuzz.hostile_values import Hostile, dumps, is_small

READERS = ("case", "recording", "analysis", "live", "report")
"""Rooms of the doctor that read what JSON says."""
_PAIR = re.compile(r'"([^"\\]{1,40})"\s*:\s*("[^"\\]{0,80}"|-?[\d.]+|true|false|null)')


def change(tree: Any, hostile: Hostile) -> Any:
    """The tree after one change; lists and dictionaries in it are changed where they are."""
    rng = hostile.rng
    holder, key = _spot(tree, rng)
    if holder is None:
        return hostile.value()
    kind = rng.randrange(12)
    if kind < 6:
        holder[key] = hostile.like(holder[key])
    elif kind == 6:
        del holder[key]
    elif kind == 7 and isinstance(holder, dict):
        holder[rng.choice((*known_keys(), hostile.text()))] = holder.pop(key)
    elif kind <= 9 and isinstance(holder, dict):
        holder[rng.choice(known_keys())] = hostile.value()
    elif isinstance(holder, list):
        holder[key:key] = [holder[key]] * rng.choice((1, 3, 200 if is_small(holder[key]) else 1))
    else:
        other, place = _spot(tree, rng)
        if other is not None and not isinstance(other[place], (dict, list)):
            holder[key] = other[place]
    return tree


def changed(tree: Any, hostile: Hostile) -> Any:
    """The tree after one to six changes."""
    for _ in range(hostile.rng.choice((1, 1, 2, 3, 6))):
        tree = change(tree, hostile)
    return tree


def changed_text(text: str, hostile: Hostile) -> bytes:
    """A JSON text after changes to its tree, now and then to the text itself."""
    rng = hostile.rng
    try:
        tree = json.loads(text)
    except ValueError:
        return damaged(text.encode("utf-8", "surrogatepass"), rng)
    words = dumps(changed(tree, hostile), indent=rng.choice((None, 1)))
    if rng.random() < 0.15:
        words = _with_pair_twice(words, hostile)
    raw = words.encode("utf-8", "surrogatepass")
    return damaged(raw, rng) if rng.random() < 0.1 else raw


def changed_lines(text: str, hostile: Hostile) -> bytes:
    """A text of JSON lines after changes to some of them, or to their order."""
    rng = hostile.rng
    lines = [line.encode() for line in text.splitlines()] or [b"{}"]
    kind = rng.randrange(6)
    if kind < 3:
        share = rng.choice((0.0, 0.3, 1.0))
        chosen = rng.randrange(len(lines))
        lines = [
            changed_text(line.decode(), hostile).replace(b"\n", b"")
            if at == chosen or rng.random() < share
            else line
            for at, line in enumerate(lines)
        ]
    elif kind == 3:
        lines = _same_change(lines, hostile)
    elif kind == 4:
        rng.shuffle(lines)
        lines *= rng.choice((1, 2, 30))
    else:
        return damaged(b"\n".join(lines) + b"\n", rng)
    return b"\n".join(lines) + rng.choice((b"\n", b""))


@cache
def known_keys() -> tuple[str, ...]:
    """The names that the doctor's readers ask for: `x.get("name")` and `x["name"]`."""
    package = Path(__file__).parents[2] / "mgpu_doctor"
    found = {
        name
        for room in READERS
        for path in (package / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (name := _asked_for(node)) is not None
    }
    return tuple(sorted(found))


def _asked_for(node: ast.AST) -> str | None:
    asked: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        asked = node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        asked = node.args[0] if node.func.attr == "get" else None
    if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
        return asked.value
    return None


def _spot(tree: Any, rng: Random) -> tuple[Any, Any]:
    """A list or dictionary and a place in it; (None, None) where there is none."""
    holder: Any = None
    key: Any = None
    node = tree
    while isinstance(node, (dict, list)) and node:
        if holder is not None and rng.random() < 0.2:
            break
        holder = node
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = holder[key]
    return holder, key


def _same_change(lines: list[bytes], hostile: Hostile) -> list[bytes]:
    """One value under one key in all lines."""
    name, value = hostile.rng.choice(known_keys()), hostile.value()
    trees = [json.loads(line) for line in lines]
    names = [key for key in trees[0] if isinstance(trees[0], dict)]
    if names and hostile.rng.random() < 0.7:
        name = hostile.rng.choice(names)
    return [
        dumps({**tree, name: value}).encode("utf-8", "surrogatepass")
        for tree in trees
        if isinstance(tree, dict)
    ]


def _with_pair_twice(text: str, hostile: Hostile) -> str:
    pairs = list(_PAIR.finditer(text))
    if not pairs:
        return text
    pair = hostile.rng.choice(pairs)
    again = f'"{pair[1]}": {dumps(hostile.value())}, '
    return text[: pair.start()] + again * hostile.rng.choice((1, 2)) + text[pair.start() :]
