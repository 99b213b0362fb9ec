"""Hostile pickles: of changed values, and of opcodes that no pickler writes."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.byte_damage import damaged
from tests.fuzz.compressed_files import packed
from tests.fuzz.hostile_values import Hostile, dumps, is_small
from tests.fuzz.json_changes import changed
from tests.fuzz.mutation_context import Scene

_GZIP = b"\x1f\x8b"
_RUNS = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."
_OPCODES = bytes(range(0x28, 0x7F)) + bytes(range(0x80, 0x99))


def changed_dump(scene: Scene) -> str:
    """One dump, or all of them, hold changed values; now and then they are JSON."""
    rng = scene.rng
    files = scene.files()
    if not files:
        return "no file"
    chosen = files if rng.random() < 0.2 else [rng.choice(files)]
    for path in chosen:
        tree = tree_of(path.read_bytes())
        if tree is None:
            path.write_bytes(damaged(path.read_bytes(), rng))
            continue
        tree = changed(_to_lists(tree), scene.hostile)
        raw = _written(tree, rng)
        path.write_bytes(packed(raw, rng) if rng.random() < 0.1 else raw)
    return f"changed values in {len(chosen)} dumps"


def damaged_dump(scene: Scene) -> str:
    """Bytes of a dump are damaged, those within its compression, too."""
    rng = scene.rng
    path = scene.file()
    if path is None:
        return "no file"
    raw = path.read_bytes()
    if raw.startswith(_GZIP) and rng.random() < 0.7:
        path.write_bytes(gzip.compress(damaged(gzip.decompress(raw), rng), 1))
    else:
        path.write_bytes(damaged(raw, rng))
    return f"{path.name} damaged"


def strange_opcodes(scene: Scene) -> str:
    """A dump whose opcodes grow, share, nest, lie or would run something."""
    rng = scene.rng
    path = scene.file()
    if path is None:
        return "no file"
    tree = tree_of(path.read_bytes())
    change = rng.choice(_STRANGE)
    path.write_bytes(change(tree if isinstance(tree, dict) else {}, scene.hostile))
    return f"{path.name}: {change.__name__}"


def tree_of(raw: bytes) -> Any:
    """What one of the tests' own dumps holds; None where it cannot be read any more."""
    try:
        if raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
        return json.loads(raw) if raw[:1] in (b"{", b"[") else pickle.loads(raw)
    except Exception:  # damaged by a mutation before this one
        return None


def _written(tree: Any, rng: Random) -> bytes:
    if rng.random() < 0.7 or not is_small(tree, 500_000):  # JSON writes what is shared again
        try:
            return pickle.dumps(tree, protocol=rng.choice((2, 2, 4, 5)))
        except (RecursionError, UnicodeError, ValueError):
            pass
    raw = dumps(tree if is_small(tree, 500_000) else {}).encode("utf-8", "surrogatepass")
    return gzip.compress(raw, 1) if rng.random() < 0.3 else raw


def _to_lists(tree: Any) -> Any:
    """With lists for tuples: changes are made in place. What is shared stays so."""
    known: dict[int, Any] = {}

    def copied(node: Any) -> Any:
        if not isinstance(node, (dict, list, tuple)):
            return node
        if id(node) not in known:
            known[id(node)] = (
                {key: copied(value) for key, value in node.items()}
                if isinstance(node, dict)
                else [copied(one) for one in node]
            )
        return known[id(node)]

    return copied(tree)


def _laughs(tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """One value is a list of lists of lists, all shared: few bytes, 10^30 values."""
    rng = hostile.rng
    nested: Any = rng.choice(("x" * 1000, 1, [], {}))
    for _ in range(rng.choice((5, 30, 200))):
        nested = [nested] * 10 if rng.random() < 0.8 else {f"{at}": nested for at in range(10)}
    return _with(tree, nested, rng)


def _shared_entries(tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """One list stands everywhere, one entry a hundred thousand times."""
    rng = hostile.rng
    lists = [value for value in tree.values() if isinstance(value, list) and value]
    if lists:
        chosen = rng.choice(lists)
        chosen[:] = chosen * (rng.choice((1000, 100_000)) // len(chosen) + 1)
        if isinstance(chosen[0], dict):
            shared = [chosen[0]] * 1000
            names = list(chosen[0])
            chosen[0][rng.choice(names)] = [[1] * 500] * 500 if rng.random() < 0.5 else shared
    return pickle.dumps(tree, protocol=rng.choice((2, 4)))


def _deep(_tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """Lists in lists, deeper than any stack."""
    rng = hostile.rng
    depth = rng.choice((100, 990, 20_000, 500_000))
    opened, closed = rng.choice(((b"]", b"a"), (b"(", b"l"), (b"(", b"t"), (b"", b"\x85")))
    return b"\x80\x02}U\x07entries" + opened * depth + b"N" + closed * depth + b"s."


def _lies(_tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """Lengths beyond the end."""
    rng = hostile.rng
    length = rng.choice((2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 100_000))
    code, form = rng.choice(
        (
            (b"X", "<I"),
            (b"\x8d", "<Q"),
            (b"T", "<I"),
            (b"B", "<I"),
            (b"\x8e", "<Q"),
            (b"\x8b", "<I"),
        )
    )
    most = (1 << 8 * struct.calcsize(form)) - 1
    told = struct.pack(form, length & most)
    frame = b"\x95" + struct.pack("<Q", length) if rng.random() < 0.3 else b""
    return (
        b"\x80\x04" + frame + b"}\x94(" + _names(rng) + code + told + b"abc" * rng.choice((1, 999))
    )


def _memo(_tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """Puts and gets of numbers that are far apart, or were never put."""
    rng = hostile.rng
    number = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1)))
    several = (b"]r" + number + b"j" + number + b"a") * rng.choice((1, 5000))
    return b"\x80\x02}" + _names(rng) + several + b"s."


def _runs_something(tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """What would run a command in Python's own unpickler."""
    rng = hostile.rng
    whole = pickle.dumps(tree, protocol=2)
    return rng.choice((_RUNS, whole[:-1] + _RUNS, whole[:-1] + b"0" + _RUNS, b"\x80\x02" + _RUNS))


def _random_opcodes(_tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """A valid beginning, then opcodes by chance."""
    rng = hostile.rng
    some = bytes(rng.choice(_OPCODES) for _ in range(rng.choice((3, 30, 3000))))
    return b"\x80\x02}" + _names(rng) + some + b"s."


def _numbers(tree: dict[Any, Any], hostile: Hostile) -> bytes:
    """Integers of thousands of digits, and texts as numbers."""
    rng = hostile.rng
    size = rng.choice((9, 17, 255))
    kinds = (
        b"\x8a" + bytes((size,)) + b"\x7f" * size,
        b"\x8b" + struct.pack("<i", 5000) + b"\x7f" * 5000,
        b"\x8b" + struct.pack("<i", -1),
        b"I" + b"9" * rng.choice((30, 5000)) + b"\n",
        b"L" + b"9" * 5000 + b"L\n",
        b"F1e999\n",
        b"G\x7f\xf8" + bytes(6),
    )
    return _spliced(tree, rng.choice(kinds), rng)


def _with(tree: dict[Any, Any], value: Any, rng: Random) -> bytes:
    """The tree with a value in some place of it, as a pickle."""
    holder: Any = tree
    while True:
        inner = [child for child in _children(holder) if isinstance(child, (dict, list)) and child]
        if not inner or rng.random() < 0.2:
            break
        holder = rng.choice(inner)
    if isinstance(holder, dict):
        names = [*holder, "entries", "segments"]
        holder[rng.choice(names)] = value
    else:
        holder[rng.randrange(len(holder))] = value
    return pickle.dumps(tree, protocol=rng.choice((2, 4)))


def _children(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else list(node[:50])


_PLACE = "the place of another value"


def _spliced(tree: dict[Any, Any], opcodes: bytes, rng: Random) -> bytes:
    """The tree with opcodes in the place of some value."""
    raw = _with(tree, _PLACE, rng)
    for written in (pickle.dumps(_PLACE, protocol=2)[2:-3], pickle.dumps(_PLACE, 4)[11:-2]):
        raw = raw.replace(written, opcodes)
    return raw


def _names(rng: Random) -> bytes:
    return rng.choice((b"U\x07entries", b"U\x08segments", b"U\x09pg_config"))


_STRANGE: tuple[Callable[[dict[Any, Any], Hostile], bytes], ...] = (
    _laughs,
    _laughs,
    _shared_entries,
    _deep,
    _lies,
    _memo,
    _runs_something,
    _random_opcodes,
    _numbers,
)


def repickled(source: Path, target: Path, protocol: int) -> None:
    """The same dump by another pickler."""
    target.write_bytes(pickle.dumps(tree_of(source.read_bytes()), protocol=protocol))
