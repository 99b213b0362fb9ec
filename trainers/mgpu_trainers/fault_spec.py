"""The text form of faults: `KIND:KEY=VALUE,KEY=VALUE; KIND…` to dataclasses and back.

A kind is a frozen dataclass with a `kind` of its own; its fields are the keys, declared with `key`.
Errors name the position in the text. Imports no framework.
"""

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeVar

from mgpu_trainers.capabilities import suggest

ALL = -1
"""The rank of a fault that every rank has; spelled `rank=all`."""


class SpecError(ValueError):
    """A text that cannot be read, or a fault that is impossible; one clear sentence."""


class Kind(Protocol):
    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


K = TypeVar("K", bound=Kind)


def key(
    read: Callable[[str], Any], default: Any, help: str, *, unit: str = "", name: str = ""
) -> Any:
    """A key of a fault: how its value is read, its default, what it means and in which unit.

    `name`: how the key is spelled, if not as the field.
    """
    return field(default=default, metadata={"read": read, "help": help, "unit": unit, "name": name})


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the documentation and the launch form show it; `default` empty: none."""

    name: str
    default: str
    unit: str
    help: str


def list_keys(kind: type[Kind]) -> tuple[Key, ...]:
    """The keys that a kind takes."""
    return tuple(
        Key(
            _spelling(key_field),
            "" if key_field.default is None else _spell_value(key_field.default),
            key_field.metadata["unit"],
            key_field.metadata["help"],
        )
        for key_field in fields(kind)
    )


def _spelling(key_field: Field[Any]) -> str:
    return key_field.metadata["name"] or key_field.name


def parse_faults(text: str, kinds: Mapping[str, type[K]]) -> tuple[K, ...]:
    """The faults that `text` spells, in its order.

    Raises SpecError, which names the position (from 1) where the text stops making sense.
    """
    faults: list[K] = []
    position = 1
    for part in text.split(";"):
        start = position + len(part) - len(part.lstrip())
        faults.append(_parse_fault(text, part.strip(), start, kinds))
        position += len(part) + 1
    return tuple(faults)


def format_fault(fault: Kind) -> str:
    """The text that reads back as `fault`."""
    values = ((_spelling(key_field), getattr(fault, key_field.name)) for key_field in fields(fault))
    pairs = (f"{name}={_spell_value(value)}" for name, value in values if value is not None)
    return f"{fault.kind}:{','.join(pairs)}"


def _parse_fault(text: str, part: str, start: int, kinds: Mapping[str, type[K]]) -> K:
    def refuse(position: int, why: str) -> SpecError:
        return SpecError(f"--fault {text!r}, position {position}: {why}")

    name, colon, rest = part.partition(":")
    if name not in kinds:
        raise refuse(
            start, f"there is no fault {name!r}, only {', '.join(kinds)}{suggest(name, kinds)}"
        )
    keys = {_spelling(key_field): key_field for key_field in fields(kinds[name])}
    values: dict[str, Any] = {}
    position = start + len(name) + 1
    for pair in rest.split(",") if colon else ():
        spelled, equals, value = pair.partition("=")
        if spelled not in keys:
            raise refuse(position, f"{name} has no key {spelled!r}, only {', '.join(keys)}")
        if not equals:
            raise refuse(position + len(spelled), f"'=' and a value must follow {spelled}")
        wanted = keys[spelled]
        if wanted.name in values:
            raise refuse(position, f"{spelled} is there twice")
        try:
            values[wanted.name] = wanted.metadata["read"](value)
        except SpecError as allowed:
            why = f"{spelled} must be {allowed}, not {value!r}"
            raise refuse(position + len(spelled) + 1, why) from None
        position += len(pair) + 1
    try:
        return kinds[name](**values)
    except SpecError as error:
        raise refuse(start, str(error)) from None


def _spell_value(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return "all" if value == ALL else str(value)


# How a value is read: what each raises completes the sentence "KEY must be …".


def read_whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise SpecError("a whole number")
    return int(text)


def read_positive(text: str) -> int:
    if read_whole(text) < 1:
        raise SpecError("1 or more")
    return int(text)


def read_rank(text: str) -> int:
    return ALL if text == "all" else read_whole(text)


def read_number(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII):
        raise SpecError("a number such as 20 or 1.5")
    return float(text)


def read_factor(text: str) -> float:
    if read_number(text) < 1:
        raise SpecError("1 or more")
    return float(text)


def read_flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise SpecError("0 or 1")
    return text == "1"


def read_choice(*choices: str) -> Callable[[str], str]:
    def read_word(text: str) -> str:
        if text not in choices:
            raise SpecError(f"one of {', '.join(choices)}")
        return text

    return read_word


def read_signal(text: str) -> str:
    if f"SIG{text}" not in signal.Signals.__members__:
        raise SpecError("the name of a signal, such as KILL or SEGV")
    return text


def read_exit_code(text: str) -> int:
    if read_whole(text) > 255:
        raise SpecError("an exit code, 0 to 255")
    return int(text)
