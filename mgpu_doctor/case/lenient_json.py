"""Reads untrusted JSON into typed facts and keeps what is valid: a value of a wrong type or out of
bounds makes only its own field unknown. msgspec's decoders would reject the whole object; they
read the valid lines, which are nearly all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from mgpu_probes.outside.terminal_text import clean
from msgspec import Meta, inspect

from mgpu_doctor.case.untrusted_json import LAST_MOMENT, parse_json

T = TypeVar("T")
Json = Any
Whole = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Positive = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Moment = Annotated[float, Meta(ge=0, le=LAST_MOMENT)]
"""Seconds since the epoch that a clock can have shown."""
Share = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(max_length=500)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
"""Marks a list from which items that are not texts are dropped."""
Pid = Annotated[int, Meta(ge=1, le=1 << 22)]
LONGEST_TEXT = 500
"""Most characters of a text whose type has no limit."""
LONGEST_LIST = 1024
"""Most items of a list or object whose type has no limit."""
LONGEST_NUMBER = 12
"""Most digits of a key that is an integer."""
_WRONG: Final = object()
_Reader = Callable[[Json], Any]


def line_decoder(kind: type[T]) -> Callable[[bytes], T | None]:
    """A function from a line of JSON to a `kind`, which means what `reader` means. msgspec reads
    what is plain ASCII and in bounds, at once; `reader` takes the rest."""
    read = reader(kind)

    def decode(line: bytes) -> T | None:
        # In such a line no text is empty or needs control characters removed.
        if line.isascii() and not any(mark in line for mark in (b"\\", b"\x7f", b'""')):
            try:
                return cast(T, _decoder_of(kind).decode(line))
            except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
                pass
        try:
            return read(parse_json(line))
        except ValueError:
            return None

    return decode


def _from_json(kind: type[Any], value: Json) -> Any:
    """A type that msgspec does not know, by its `from_json`, which raises ValueError."""
    return kind.from_json(value)


def reader(kind: type[T]) -> Callable[[Json], T | None]:
    """A function from parsed JSON to a `kind`; it returns None where a required field is missing
    or wrong. Texts are made harmless and cut, lists are cut, wrong items of
    lists are dropped (texts become empty, unless their type has a `min_length`)."""

    def read_or_none(value: Json) -> T | None:
        decoded = _reader_of(kind)(value)
        return None if decoded is _WRONG else cast(T, decoded)

    return read_or_none


_readers: dict[type[Any], _Reader] = {}
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
"""Made at the first value, not when a module is imported: evaluating the annotations of its types
took a tenth of the time to the first frame of `top`."""


def _reader_of(kind: type[Any]) -> _Reader:
    if kind not in _readers:
        _readers[kind] = _reader(inspect.type_info(kind))
    return _readers[kind]


def _decoder_of(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=_from_json)
    return _decoders[kind]


def _reader(kind: inspect.Type) -> _Reader:  # noqa: PLR0911, PLR0912 - one per kind of type
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
            keep_places = (
                isinstance(kind.item_type, inspect.StrType) and not kind.item_type.min_length
            )
            read = _reader(kind.item_type)
            longest = kind.max_length or LONGEST_LIST
            return _texts(read, longest) if keep_places else _list(read, longest)
        case inspect.TupleType():
            return _fixed([_item(item) for item in kind.item_types])
        case inspect.StructType(array_like=True):
            return _row(kind.cls, [_reader(field.type) for field in kind.fields])
        case inspect.StructType() | inspect.DataclassType():
            return _object(
                kind.cls,
                {field.encode_name: (field.name, _reader(field.type)) for field in kind.fields},
            )
        case inspect.LiteralType():
            return _member({value: value for value in kind.values})
        case inspect.NamedTupleType():
            return _named_row(kind)
        case inspect.DictType():
            return _mapping(
                _key(kind.key_type), _reader(kind.value_type), kind.max_length or LONGEST_LIST
            )
        case inspect.CustomType():
            return _custom(kind.cls)
        case inspect.UnionType():
            (other,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
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


def _mapping(read_key: _Reader, read: _Reader, longest: int) -> _Reader:
    def read_all(value: Json) -> Any:
        if not isinstance(value, dict):
            return _WRONG
        facts = {}
        for key, item in islice(value.items(), longest):
            known = read_key(key)
            if known is not _WRONG and (fact := read(item)) is not _WRONG:
                facts[known] = fact
        return facts

    return read_all


def _key(kind: inspect.Type) -> _Reader:
    """Reads keys of JSON objects, which are texts even if they are integers."""
    read = _reader(kind)
    if not isinstance(kind, inspect.IntType):
        return read

    def read_number(key: str) -> Any:
        usual = key.isascii() and key.isdigit() and len(key) < LONGEST_NUMBER
        return read(int(key)) if usual else _WRONG

    return read_number


def _custom(kind: type[Any]) -> _Reader:
    def read(value: Json) -> Any:
        try:
            return kind.from_json(value)
        except ValueError:
            return _WRONG

    return read


def _list(read: _Reader, longest: int) -> _Reader:
    def read_all(value: Json) -> Any:
        if not isinstance(value, list):
            return _WRONG
        return tuple(fact for item in value[:longest] if (fact := read(item)) is not _WRONG)

    return read_all


def _texts(read: _Reader, longest: int) -> _Reader:
    """Reads a list whose positions matter, as in a command line: other items become empty."""

    def read_all(value: Json) -> Any:
        if not isinstance(value, list):
            return _WRONG
        facts = map(read, value[:longest])
        return tuple("" if fact is _WRONG else fact for fact in facts)

    return read_all


def _item(kind: inspect.Type) -> _Reader:
    """Reads a row: a wrong item becomes unknown if its type permits it."""
    read = _reader(kind)
    if not isinstance(kind, inspect.UnionType):
        return read

    def read_or_none(value: Json) -> Any:
        fact = read(value)
        return None if fact is _WRONG else fact

    return read_or_none


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


def _named_row(kind: inspect.NamedTupleType) -> _Reader:
    """A wrong item of a row of the right length is what the type has in its place."""
    readers = [_reader(field.type) for field in kind.fields]
    defaults = [
        _WRONG if field.default is msgspec.NODEFAULT else field.default for field in kind.fields
    ]

    def read(value: Json) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            return _WRONG
        facts = [
            default if (fact := read_item(item)) is _WRONG else fact
            for read_item, item, default in zip(readers, value, defaults, strict=True)
        ]
        return _WRONG if _WRONG in facts else kind.cls(*facts)

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
