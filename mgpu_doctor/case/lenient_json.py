"""Reads other people's JSON into msgspec types and keeps what is right: a value of a wrong type or
out of bounds makes its own field unknown, never the whole object. msgspec's own decoders refuse
the object."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from mgpu_probes.outside.terminal_text import clean
from msgspec import inspect

T = TypeVar("T")
Json = Any
LONGEST_TEXT = 500
"""Characters of a text whose type names no limit."""
LONGEST_LIST = 1024
"""Items of a list whose type names no limit."""
_WRONG: Final = object()
_Reader = Callable[[Json], Any]


def reader(kind: type[T]) -> Callable[[Json], T | None]:
    """A function from parsed JSON to a `kind`; it returns None where a required field is missing
    or wrong. Texts are made harmless and cut, lists are cut, wrong items of
    lists are dropped (texts become empty)."""
    read = _reader(inspect.type_info(kind))

    def read_or_none(value: Json) -> T | None:
        found = read(value)
        return None if found is _WRONG else cast(T, found)

    return read_or_none


def _reader(kind: inspect.Type) -> _Reader:  # noqa: PLR0911 - one return per kind of type
    match kind:
        case inspect.IntType():
            return _whole(kind)
        case inspect.FloatType():
            return _number(kind)
        case inspect.BoolType():
            return lambda value: value if value is True or value is False else _WRONG
        case inspect.StrType():
            return _text(kind.max_length or LONGEST_TEXT, may_be_empty=kind.min_length == 0)
        case inspect.EnumType():
            return _member({member.value: member for member in kind.cls})
        case inspect.VarTupleType():
            keep_places = isinstance(kind.item_type, inspect.StrType)
            read = _reader(kind.item_type)
            longest = kind.max_length or LONGEST_LIST
            return _texts(read, longest) if keep_places else _list(read, longest)
        case inspect.TupleType():
            return _fixed([_reader(item) for item in kind.item_types])
        case inspect.StructType(array_like=True):
            return _row(kind.cls, [_reader(field.type) for field in kind.fields])
        case inspect.StructType():
            return _object(
                kind.cls,
                {field.encode_name: (field.name, _reader(field.type)) for field in kind.fields},
            )
        case inspect.UnionType():
            (other,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
            return _reader(other)
        case _:
            raise TypeError(f"no reader for {kind}")


def _whole(kind: inspect.IntType) -> _Reader:
    least = 0 if kind.ge is None else kind.ge
    most = (1 << 63) - 1 if kind.le is None else kind.le
    return lambda value: value if type(value) is int and least <= value <= most else _WRONG


def _number(kind: inspect.FloatType) -> _Reader:
    least = -math.inf if kind.ge is None else kind.ge
    most = math.inf if kind.le is None else kind.le

    def read(value: Json) -> Any:
        if type(value) is int:
            value = float(value) if abs(value) < 1 << 1000 else math.inf
        usable = type(value) is float and math.isfinite(value) and least <= value <= most
        return value if usable else _WRONG

    return read


def _text(longest: int, *, may_be_empty: bool) -> _Reader:
    """An empty text is wrong unless the type says `min_length=0`."""

    def read(value: Json) -> Any:
        text = clean(value, longest) if isinstance(value, str) else None
        return text if text or (text is not None and may_be_empty) else _WRONG

    return read


def _member(members: Mapping[Any, Any]) -> _Reader:
    return lambda value: members.get(value, _WRONG) if isinstance(value, str) else _WRONG


def _list(read: _Reader, longest: int) -> _Reader:
    def read_all(value: Json) -> Any:
        if not isinstance(value, list):
            return _WRONG
        return tuple(fact for item in value[:longest] if (fact := read(item)) is not _WRONG)

    return read_all


def _texts(read: _Reader, longest: int) -> _Reader:
    """Of a list whose places count, such as a command line: what is no text is an empty one."""

    def read_all(value: Json) -> Any:
        if not isinstance(value, list):
            return _WRONG
        facts = map(read, value[:longest])
        return tuple("" if fact is _WRONG else fact for fact in facts)

    return read_all


def _fixed(readers: list[_Reader]) -> _Reader:
    def read_all(value: Json) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            return _WRONG
        facts = tuple(read(item) for read, item in zip(readers, value, strict=True))
        return _WRONG if _WRONG in facts else facts

    return read_all


def _row(kind: type[Any], readers: list[_Reader]) -> _Reader:
    read_all = _fixed(readers)

    def read(value: Json) -> Any:
        facts = read_all(value)
        return facts if facts is _WRONG else _made(kind, facts, {})

    return read


def _object(kind: type[Any], fields: Mapping[str, tuple[str, _Reader]]) -> _Reader:
    def read(value: Json) -> Any:
        if not isinstance(value, dict):
            return _WRONG
        facts = {}
        for key, item in value.items():
            if item is not None and (known := fields.get(key)) is not None:
                name, read_item = known
                if (fact := read_item(item)) is not _WRONG:
                    facts[name] = fact
        return _made(kind, (), facts)

    return read


def _made(kind: type[Any], values: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        return kind(*values, **named)
    except (TypeError, ValueError):  # a required field is missing, or `__post_init__` refuses
        return _WRONG
