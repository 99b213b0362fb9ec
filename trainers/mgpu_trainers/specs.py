"""Reads `KIND:KEY=VALUE,KEY=VALUE; KIND…` into dataclasses, and says where it makes no sense.

A kind is a frozen dataclass with a `kind` of its own; its fields are the keys, made by `key`.
"""

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, ClassVar, Protocol, TypeVar

ALL = -1
"""The rank of a fault that every rank has; spelled `rank=all`."""


class SpecError(ValueError):
    """A text that cannot be read or a fault that cannot be; the message is one clear sentence."""


class Kind(Protocol):
    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


K = TypeVar("K", bound=Kind)


def key(read: Callable[[str], Any], default: Any, name: str = "") -> Any:
    """A key: how its value is read, what it is when not given, how it is spelled if not as is."""
    return field(default=default, metadata={"read": read, "name": name})


def keys(kind: type[Kind]) -> dict[str, str]:
    """The fields of a kind by the names they have in a text."""
    return {each.metadata["name"] or each.name: each.name for each in fields(kind)}


def defaults(kind: type[Kind]) -> dict[str, str]:
    """What the keys are when not given, as a text spells it; empty: nothing."""
    return {
        each.metadata["name"] or each.name: "" if each.default is None else _text(each.default)
        for each in fields(kind)
    }


def read(text: str, kinds: Mapping[str, type[K]]) -> tuple[K, ...]:
    """What `text` asks for, in its order.

    Raises SpecError, which names the position (from 1) where the text stops making sense.
    """
    found: list[K] = []
    position = 1
    for part in text.split(";"):
        start = position + len(part) - len(part.lstrip())
        found.append(_one(text, part.strip(), start, kinds))
        position += len(part) + 1
    return tuple(found)


def write(spec: Kind) -> str:
    """The text that reads back as `spec`."""
    given = ((name, getattr(spec, own)) for name, own in keys(type(spec)).items())
    pairs = (f"{name}={_text(value)}" for name, value in given if value is not None)
    return f"{spec.kind}:{','.join(pairs)}"


def _one(text: str, part: str, start: int, kinds: Mapping[str, type[K]]) -> K:
    def refuse(at: int, why: str) -> SpecError:
        return SpecError(f"--fault {text!r}, position {at}: {why}")

    name, colon, rest = part.partition(":")
    if name not in kinds:
        raise refuse(start, f"there is no fault {name!r}, only {', '.join(kinds)}")
    known = keys(kinds[name])
    readers = {each.name: each.metadata["read"] for each in fields(kinds[name])}
    given: dict[str, Any] = {}
    at = start + len(name) + 1
    for pair in rest.split(",") if colon else ():
        spelled, equals, value = pair.partition("=")
        if spelled not in known:
            raise refuse(at, f"{name} has no key {spelled!r}, only {', '.join(known)}")
        if not equals:
            raise refuse(at + len(spelled), f"'=' and a value must follow {spelled}")
        own = known[spelled]
        if own in given:
            raise refuse(at, f"{spelled} is there twice")
        try:
            given[own] = readers[own](value)
        except SpecError as wanted:
            why = f"{spelled} must be {wanted}, not {value!r}"
            raise refuse(at + len(spelled) + 1, why) from None
        at += len(pair) + 1
    try:
        return kinds[name](**given)
    except SpecError as error:
        raise refuse(start, str(error)) from None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return "all" if value == ALL else str(value)


# How a value is read: what each raises completes the sentence "KEY must be …".


def whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise SpecError("a whole number")
    return int(text)


def positive(text: str) -> int:
    if whole(text) < 1:
        raise SpecError("1 or more")
    return int(text)


def rank(text: str) -> int:
    return ALL if text == "all" else whole(text)


def number(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII):
        raise SpecError("a number such as 20 or 1.5")
    return float(text)


def factor(text: str) -> float:
    if number(text) < 1:
        raise SpecError("1 or more")
    return float(text)


def flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise SpecError("0 or 1")
    return text == "1"


def one_of(*words: str) -> Callable[[str], str]:
    def read_word(text: str) -> str:
        if text not in words:
            raise SpecError(f"one of {', '.join(words)}")
        return text

    return read_word


def signal_name(text: str) -> str:
    if f"SIG{text}" not in signal.Signals.__members__:
        raise SpecError("the name of a signal, such as KILL or SEGV")
    return text


def exit_code(text: str) -> int:
    if whole(text) > 255:
        raise SpecError("an exit code, 0 to 255")
    return int(text)
