"""Pickles that torch writes (flight recorder dumps, memory snapshots), read without running
code.

torch writes them with its own pickler (torch/csrc/jit/serialization/pickler.cpp), which needs
two dozen opcodes of protocol 2. This reader understands these and the plain ones that Python's
pickler uses for the same values. Any opcode that would import, call or build an object ends the
reading, and so does input that is cut short or invalid. Memory use is bounded by the length of
the input."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mgpu_probes.outside.untrusted_files import OverBudgetError, open_named, within_budget

MOST_BYTES = 256 << 20
MOST_INT_BYTES = 16
"""Most bytes of an integer; torch writes at most 8."""
MOST_DIGITS = 40


class NotAFlightError(Exception):
    """The input is not a flight-recorder dump; the message says why in a sentence."""


def unpickle(raw: bytes, *, later: bool = False) -> Any:
    """The plain value that a pickle holds: dictionaries, lists, tuples, texts, numbers, None.

    `later`: lists of at most 512 values that were all written before are `Later`.
    Raises NotAFlightError.
    """
    if len(raw) > MOST_BYTES:
        raise NotAFlightError(f"it is longer than {MOST_BYTES >> 20} MiB")
    try:
        with within_budget() as budget:
            # Lists, dictionaries, tuples, marks and memoized values: 1 byte of the file takes 100
            # bytes of memory. Other values take a few bytes per byte of the file.
            budget.take(sum(map(raw.count, _MAKING)) + len(raw) / _PLAIN)
            return _Reader(raw, later).read()
    except OverBudgetError as error:
        raise NotAFlightError(error.strerror) from None
    except (IndexError, struct.error):
        raise NotAFlightError("it is cut short or damaged") from None
    except (KeyError, TypeError, ValueError, UnicodeError, AttributeError):
        raise NotAFlightError("it is not a pickle, or it is damaged") from None


class Later:
    """A list that is built on demand. Call stacks are most of a memory snapshot, and hardly any of
    them is read."""

    __slots__ = ("_at", "_end", "_reader")

    def __init__(self, reader: _Reader, at: int, end: int) -> None:
        self._reader, self._at, self._end = reader, at, end

    def items(self) -> list[Any]:
        """The list's items; empty if it is damaged."""
        try:
            return list(self._reader.values(self._at, self._end))
        except KeyError:
            return []


_PLAIN = 12
_MAKING = (b"]", b"}", b")", b"(", b"\x85", b"\x86", b"\x87", b"\x94")
_VALUE = rb"h.|j.{4}|J.{4}|K.|M..|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8})"
_EACH = re.compile(_VALUE, re.DOTALL)
_SEVERAL = re.compile(rb"(?:" + _VALUE + rb"){1,512}", re.DOTALL)
_STACK = re.compile(rb"\]\x94\(((?:h.|j.{4}){1,512})e", re.DOTALL)
"""`_VALUE` is BINGET, LONG_BINGET, BININT, BININT1, BININT2 or LONG1, the opcodes that make up a
memory snapshot. Its call stacks are lists of frames that were written before: EMPTY_LIST, MEMOIZE,
MARK, `_VALUE`s of the first two kinds, APPENDS. The bounds keep the matcher's own memory small."""


class _Known(dict[bytes, Any]):
    """The value of each `_VALUE` opcode with its argument; frequent ones are cached."""

    def __init__(self, memo: dict[int, Any]) -> None:
        self.memo = memo

    def __missing__(self, opcode: bytes) -> Any:
        kind = opcode[0]
        if kind == 0x8A:
            return int.from_bytes(opcode[2:], "little", signed=True)
        if kind == 0x4A:
            return int.from_bytes(opcode[1:], "little", signed=True)
        value = int.from_bytes(opcode[1:], "little")
        if kind in b"hj":
            value = self.memo[value]
        self[opcode] = value
        return value


class _Reader:
    """A stack machine for the opcodes that plain values need (see Python's pickletools)."""

    def __init__(self, raw: bytes, later: bool) -> None:
        self.raw = raw
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        """The stacks saved by marks: each list, tuple or dictionary begins on a new stack."""
        self.memo: dict[int, Any] = {}
        self.known = _Known(self.memo).__getitem__
        self.later = later

    def read(self) -> Any:
        """The pickled value. A large snapshot has 30 million opcodes, so this loop reads most."""
        raw, operations, later = self.raw, _OPERATIONS, self.later
        several, stack = _SEVERAL.match, _STACK.match
        at = 0
        while True:
            while (run := several(raw, at)) is not None:
                self.stack += self.values(at, run.end())
                at = run.end()
            code = raw[at]
            if later and code == 0x5D and (run := stack(raw, at)):  # EMPTY_LIST
                self.stack.append(Later(self, *run.span(1)))
                at = run.end()
                code = 0x94
            else:
                at += 1
            if code == 0x94:  # MEMOIZE
                self.put(len(self.memo))
            elif code == 0x2E:  # STOP
                break
            else:
                operation = operations.get(code)
                if operation is None:
                    raise NotAFlightError(_refusal(code))
                self.at = at
                operation(self)
                at = self.at
        value = self.stack.pop()
        if self.stack or self.below:
            raise NotAFlightError("it is a damaged pickle")
        return value

    def values(self, at: int, end: int) -> Iterator[Any]:
        """The values of the opcodes between two positions, all of them `_VALUE`s."""
        return map(self.known, _EACH.findall(self.raw, at, end))

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.raw):
            raise NotAFlightError("it is cut short")
        piece = self.raw[self.at : end]
        self.at = end
        return piece

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        end = self.raw.index(b"\n", self.at, self.at + 4096)
        piece = self.raw[self.at : end]
        self.at = end + 1
        return piece

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.below.pop()
        return items

    def put(self, key: int) -> None:
        if key in self.memo:
            raise NotAFlightError("it is a damaged pickle")
        self.memo[key] = self.stack[-1]


def _refusal(code: int) -> str:
    if code in _CUT_SHORT:
        return "it is cut short"
    if code in _DANGEROUS:
        return "it is a pickle that wants to load or call code, which plain data never does"
    return "it is not a pickle of plain values"


_CUT_SHORT = frozenset(b"hjJKM")
"""Opcodes of `_VALUE`, without their argument."""
_DANGEROUS = frozenset(b"cRoi\x81\x92\x93PQb\x82\x83\x84\x97\x98")
"""GLOBAL, REDUCE, OBJ, INST, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, PERSID, BINPERSID, BUILD, EXT1-4,
NEXT_BUFFER, READONLY_BUFFER."""


def _append(reader: _Reader) -> None:
    value = reader.stack.pop()
    _list(reader.stack[-1]).append(value)


def _appends(reader: _Reader) -> None:
    items = reader.since_mark()
    _list(reader.stack[-1]).extend(items)


def _set_item(reader: _Reader) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    _dict(reader.stack[-1])[_key(key)] = value


def _set_items(reader: _Reader) -> None:
    items = reader.since_mark()
    _dict(reader.stack[-1]).update(_paired(items))


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise NotAFlightError("it is a damaged pickle")
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise NotAFlightError("it is a damaged pickle")
    return value


def _key(value: Any) -> str:
    """A key as torch writes it. Hashing other, untrusted keys might never end."""
    if type(value) is not str:
        raise NotAFlightError("it is a pickle of something else")
    return value


def _long(reader: _Reader, size: int) -> int:
    if size > MOST_INT_BYTES:
        raise NotAFlightError("it holds an integer of absurd length")
    return int.from_bytes(reader.take(size), "little", signed=True)


def _int_text(reader: _Reader) -> int | bool:
    digits = reader.line()
    if digits in (b"00", b"01"):
        return digits == b"01"
    if len(digits) > MOST_DIGITS:
        raise NotAFlightError("it holds an integer of absurd length")
    return int(digits.rstrip(b"L"))


def _text(reader: _Reader, size: int) -> str:
    return reader.take(size).decode("utf-8", "replace")


def _old_text(reader: _Reader, size: int) -> str:
    return reader.take(size).decode("latin-1")


def _top_tuple(reader: _Reader, size: int) -> tuple[Any, ...]:
    return tuple(reversed([reader.stack.pop() for _ in range(size)]))


def _pushes(make: Callable[[_Reader], Any]) -> Callable[[_Reader], None]:
    def operation(reader: _Reader) -> None:
        value = make(reader)  # may change which stack is in use
        reader.stack.append(value)

    return operation


_VALUES: dict[int, Callable[[_Reader], Any]] = {
    ord("N"): lambda _: None,
    0x88: lambda _: True,
    0x89: lambda _: False,
    ord("}"): lambda _: {},
    ord("]"): lambda _: [],
    ord(")"): lambda _: (),
    ord("d"): lambda r: _paired(r.since_mark()),
    ord("l"): lambda r: r.since_mark(),
    ord("t"): lambda r: tuple(r.since_mark()),
    0x85: lambda r: _top_tuple(r, 1),
    0x86: lambda r: _top_tuple(r, 2),
    0x87: lambda r: _top_tuple(r, 3),
    ord("I"): _int_text,
    ord("L"): _int_text,
    0x8A: lambda r: _long(r, r.unsigned(1)),
    0x8B: lambda r: _long(r, r.unsigned(4)),
    ord("G"): lambda r: struct.unpack(">d", r.take(8))[0],
    ord("F"): lambda r: float(r.line()),
    ord("X"): lambda r: _text(r, r.unsigned(4)),
    0x8C: lambda r: _text(r, r.unsigned(1)),
    0x8D: lambda r: _text(r, r.unsigned(8)),
    ord("V"): lambda r: r.line().decode("raw-unicode-escape", "replace"),
    ord("T"): lambda r: _old_text(r, r.unsigned(4)),
    ord("U"): lambda r: _old_text(r, r.unsigned(1)),
    ord("g"): lambda r: r.memo[int(r.line())],
}


def _paired(items: list[Any]) -> dict[str, Any]:
    keys, values = items[::2], items[1::2]
    if len(keys) != len(values):
        raise NotAFlightError("it is a damaged pickle")
    for key in keys:
        if type(key) is not str:
            _key(key)
    return dict(zip(keys, values, strict=True))


_OPERATIONS: dict[int, Callable[[_Reader], None]] = {
    **{code: _pushes(make) for code, make in _VALUES.items()},
    0x80: lambda r: _nothing(r.unsigned(1)),  # PROTO
    0x95: lambda r: _nothing(r.unsigned(8)),  # FRAME
    ord("("): _Reader.mark,
    ord("q"): lambda r: r.put(r.unsigned(1)),
    ord("r"): lambda r: r.put(r.unsigned(4)),
    ord("p"): lambda r: r.put(int(r.line())),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
}


def _nothing(_: int) -> None:
    """Ignores the protocol's number and frame lengths: they are not needed."""


class NotASnapshotError(Exception):
    """The input is not a memory snapshot; the message says why in a sentence."""


def read_memory_snapshot(path: Path) -> dict[str, Any]:
    """The file's `segments` and `device_traces`, whose contents are unchecked; call stacks are
    `Later`. Raises NotASnapshotError."""
    try:
        with open(open_named(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise NotASnapshotError(f"{path} is not a file of at most {MOST_BYTES >> 20} MiB")
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotASnapshotError(f"{path} cannot be read ({error.strerror})") from None
    try:
        found = unpickle(raw, later=True)
    except NotAFlightError as error:
        raise NotASnapshotError(f"{path} is not a memory snapshot: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise NotASnapshotError(f"{path} is not a memory snapshot: it holds no segments")
    return found
