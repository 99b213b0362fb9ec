"""Reads a pickle of plain values without Python's `pickle`: there is nothing in it that could run.

torch writes its flight recorder with an own pickler (torch/csrc/jit/serialization/pickler.cpp)
that needs two dozen opcodes of protocol 2. These and the plain ones that Python's pickler uses for
the same values are understood. What would import, call or build an object ends the reading, and so
does whatever is cut short or makes no sense. The memory taken is bounded by the input's length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MOST_BYTES = 256 << 20
MOST_INT_BYTES = 16
"""The longest integer that torch writes takes 8."""
MOST_DIGITS = 40


class NotAFlightError(Exception):
    """What was read is no dump of a flight recorder; the message says why in a sentence."""


class _Mark:
    """Where a list, tuple or dictionary begins on the stack."""


_MARK = _Mark()


def unpickle(raw: bytes) -> Any:
    """The plain value that a pickle holds: dictionaries, lists, tuples, texts, numbers, None.

    Raises NotAFlightError.
    """
    if len(raw) > MOST_BYTES:
        raise NotAFlightError(f"it is longer than {MOST_BYTES >> 20} MiB")
    try:
        return _Reader(raw).read()
    except (IndexError, struct.error):
        raise NotAFlightError("it is cut short or damaged") from None
    except (KeyError, TypeError, ValueError, UnicodeError, AttributeError):
        raise NotAFlightError("it is no pickle, or a damaged one") from None


class _Reader:
    """A stack machine for the opcodes that plain values need (see Python's pickletools)."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self) -> Any:
        raw, operations = self.raw, _OPERATIONS
        while True:
            code = raw[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                break
            operation = operations.get(code)
            if operation is None:
                raise NotAFlightError(_refusal(code))
            operation(self)
        value = self.stack.pop()
        if self.stack or value is _MARK:
            raise NotAFlightError("it is a damaged pickle")
        return value

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

    def since_mark(self) -> list[Any]:
        stack = self.stack
        position = len(stack) - 1
        while stack[position] is not _MARK:
            position -= 1
            if position < 0:
                raise NotAFlightError("it is a damaged pickle")
        items = stack[position + 1 :]
        del stack[position:]
        return items

    def put(self, key: int) -> None:
        self.memo[key] = self.top()

    def top(self) -> Any:
        value = self.stack[-1]
        if value is _MARK:
            raise NotAFlightError("it is a damaged pickle")
        return value

    def pop(self) -> Any:
        value = self.top()
        self.stack.pop()
        return value


def _refusal(code: int) -> str:
    if code in _DANGEROUS:
        return "it is a pickle that wants to load or call code, which plain data never does"
    return "it is no pickle of plain values"


_DANGEROUS = frozenset(b"cRoi\x81\x92\x93PQb\x82\x83\x84\x97\x98")
"""GLOBAL, REDUCE, OBJ, INST, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, PERSID, BINPERSID, BUILD, EXT1-4,
NEXT_BUFFER, READONLY_BUFFER."""


def _append(reader: _Reader) -> None:
    value = reader.pop()
    _list(reader.top()).append(value)


def _appends(reader: _Reader) -> None:
    items = reader.since_mark()
    _list(reader.top()).extend(items)


def _set_item(reader: _Reader) -> None:
    value, key = reader.pop(), reader.pop()
    _dict(reader.top())[_key(key)] = value


def _set_items(reader: _Reader) -> None:
    items = reader.since_mark()
    if len(items) % 2:
        raise NotAFlightError("it is a damaged pickle")
    target = _dict(reader.top())
    for index in range(0, len(items), 2):
        target[_key(items[index])] = items[index + 1]


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise NotAFlightError("it is a damaged pickle")
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if type(value) is not dict:
        raise NotAFlightError("it is a damaged pickle")
    return value


def _key(value: Any) -> str:
    """torch writes no other keys; hashing what a stranger nests or chooses might not end."""
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
    return tuple(reversed([reader.pop() for _ in range(size)]))


def _pushes(make: Callable[[_Reader], Any]) -> Callable[[_Reader], None]:
    def operation(reader: _Reader) -> None:
        reader.stack.append(make(reader))

    return operation


_VALUES: dict[int, Callable[[_Reader], Any]] = {
    ord("("): lambda _: _MARK,
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
    ord("K"): lambda r: r.unsigned(1),
    ord("M"): lambda r: r.unsigned(2),
    ord("J"): lambda r: int.from_bytes(r.take(4), "little", signed=True),
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
    ord("h"): lambda r: r.memo[r.unsigned(1)],
    ord("j"): lambda r: r.memo[r.unsigned(4)],
    ord("g"): lambda r: r.memo[int(r.line())],
}


def _paired(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise NotAFlightError("it is a damaged pickle")
    return {_key(items[i]): items[i + 1] for i in range(0, len(items), 2)}


_OPERATIONS: dict[int, Callable[[_Reader], None]] = {
    **{code: _pushes(make) for code, make in _VALUES.items()},
    0x80: lambda r: _nothing(r.unsigned(1)),  # PROTO
    0x95: lambda r: _nothing(r.unsigned(8)),  # FRAME
    ord("q"): lambda r: r.put(r.unsigned(1)),
    ord("r"): lambda r: r.put(r.unsigned(4)),
    ord("p"): lambda r: r.put(int(r.line())),
    0x94: lambda r: r.put(len(r.memo)),
    ord("a"): _append,
    ord("e"): _appends,
    ord("s"): _set_item,
    ord("u"): _set_items,
}


def _nothing(_: int) -> None:
    """The protocol's number and frame lengths tell nothing that is needed."""
