"""The fields and units of the filter language, and how to read them from a row. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.report import text
from mgpu_doctor.report.rank_rows import state
from mgpu_doctor.tui.view import Row

MOST_DIGITS = 18
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([^0-9.]*)")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit. `scale`: one of it in the field's own unit (SI; MHz, °C, shares 0..1)."""

    sign: str
    scale: float
    is_share: bool = False
    """Compared with the field's share, if it has one."""


COUNT = (Unit("", 1),)
SHARE = (Unit("%", 0.01), Unit("", 0.01))
POWER = (Unit("W", 1), Unit("kW", 1000), Unit("", 1))
TEMPERATURE = (Unit("C", 1), Unit("°C", 1), Unit("", 1))
CLOCK = (Unit("MHz", 1), Unit("GHz", 1000), Unit("", 1))
SECONDS = (Unit("ms", 1e-3), Unit("s", 1), Unit("us", 1e-6), Unit("%", 0.01, is_share=True))
SIZE = (
    Unit("%", 0.01, is_share=True),
    *(Unit(f"{sign}iB", 1 << power) for sign, power in zip("KMGT", (10, 20, 30, 40), strict=True)),
    *(Unit(sign, 1 << power) for sign, power in zip("KMGT", (10, 20, 30, 40), strict=True)),
    *(Unit(f"{sign}B", 10**power) for sign, power in zip("KMGT", (3, 6, 9, 12), strict=True)),
    Unit("B", 1),
)
"""Memory needs a unit: `mem>80` could mean a share or gibibytes."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as typed, and its unit."""

    digits: str
    unit: Unit

    @property
    def value(self) -> float:
        return float(self.digits) * self.unit.scale

    @property
    def slack(self) -> float:
        """Half a unit of the last digit typed."""
        places = len(self.digits.partition(".")[2])
        return 0.5 * 10.0**-places * self.unit.scale

    def __str__(self) -> str:
        return f"{self.digits}{self.unit.sign}"


def quantity(written: str, units: Sequence[Unit]) -> Quantity | str:
    """Returns the number, or what is wrong with it as the end of a sentence."""
    match = _NUMBER.fullmatch(written)
    if match is None or len(match[1]) > MOST_DIGITS:
        return "expected a number"
    sign = match[2].casefold()
    for unit in units:
        if unit.sign.casefold() == sign:
            return Quantity(match[1], unit)
    known = [unit.sign for unit in units if unit.sign]
    if not known:
        return "expected a number without a unit"
    return f"expected a number with a unit: {', '.join(known)}"


Texts = Sequence[str]
Numbers = Sequence[float]
NOT_WORK = ("wait", "communication")
"""Phases of a step in which a rank does no work of its own."""


@dataclass(frozen=True, slots=True)
class TextField:
    name: str
    read: Callable[[Row], Texts]
    """Returns its values in a row; empty if unknown."""


@dataclass(frozen=True, slots=True)
class NumberField:
    name: str
    read: Callable[[Row], Numbers]
    units: tuple[Unit, ...]
    share: Callable[[Row], Numbers] | None = None
    """Returns the values that a number with `%` is compared with, if not those of `read`."""
    whole: bool = False


Field: TypeAlias = TextField | NumberField


def _texts(*values: str | None) -> Texts:
    return [value_text for value in values if value and (value_text := text.line(value))]


def _numbers(*values: float | None) -> Numbers:
    return [value for value in values if value is not None and math.isfinite(value)]


def _of_device(name: str) -> Callable[[Row], Numbers]:
    return lambda row: _numbers(getattr(row.device, name)) if row.device else ()


def _of_rank(name: str) -> Callable[[Row], Numbers]:
    return lambda row: _numbers(getattr(row.rank, name)) if row.rank else ()


def _run_ahead(row: Row) -> Numbers:
    lead = row.rank.run_ahead if row.rank else None
    return () if lead is None else (lead.least,)


def _memory_share(row: Row) -> Numbers:
    if row.device is None or row.device.memory_used is None or not row.device.memory_total:
        return ()
    return (row.device.memory_used / row.device.memory_total,)


def _seconds(names: Sequence[str]) -> Callable[[Row], Numbers]:
    """Returns the seconds per step spent in these phases, as far as measured."""

    def read(row: Row) -> Numbers:
        measured = _numbers(*(row.rank.phases.get(name) for name in names)) if row.rank else ()
        return (sum(measured),) if measured else ()

    return read


def _share(names: Sequence[str]) -> Callable[[Row], Numbers]:
    """Returns the time in these phases as a share of the step, 0..1."""
    part, all_phases = _seconds(names), _seconds(PHASES)

    def read(row: Row) -> Numbers:
        whole = all_phases(row)
        return [seconds / whole[0] for seconds in part(row)] if whole and whole[0] > 0 else ()

    return read


def _phases(name: str, names: Sequence[str]) -> NumberField:
    return NumberField(name, _seconds(names), SECONDS, share=_share(names))


_ALL: tuple[Field, ...] = (
    NumberField("gpu", _of_device("index"), COUNT, whole=True),
    TextField("name", lambda row: _texts(row.device.name) if row.device else ()),
    TextField("uuid", lambda row: _texts(row.device.uuid) if row.device else ()),
    TextField("vendor", lambda row: _texts(row.device.vendor) if row.device else ()),
    NumberField("util", _of_device("utilization"), SHARE),
    NumberField("mem", _of_device("memory_used"), SIZE, share=_memory_share),
    NumberField("power", _of_device("power_watts"), POWER),
    NumberField("temp", _of_device("temperature"), TEMPERATURE),
    NumberField("clock", _of_device("sm_clock_mhz"), CLOCK),
    NumberField("fan", _of_device("fan"), SHARE),
    NumberField("pid", lambda row: row.pids, COUNT, whole=True),
    NumberField("rank", _of_rank("rank"), COUNT, whole=True),
    TextField("host", lambda row: _texts(row.host)),
    TextField("user", lambda row: _texts(row.user)),
    TextField("command", lambda row: _texts(row.command)),
    TextField("state", lambda row: _texts(row.rank.state, state(row.rank)) if row.rank else ()),
    TextField("device", lambda row: _texts(row.rank.device) if row.rank else ()),
    TextField("where", lambda row: _texts(row.rank.where) if row.rank else ()),
    NumberField("step", _of_rank("last_step"), COUNT, whole=True),
    TextField("bound", lambda row: _texts(row.rank.bound_by) if row.rank else ()),
    NumberField("ahead", _run_ahead, SECONDS[:-1]),
    NumberField("time", _of_rank("step_seconds_median"), SECONDS[:-1]),
    _phases("own", [name for name in PHASES if name not in NOT_WORK]),
    *(_phases(name, [name]) for name in PHASES),
)
FIELDS: Mapping[str, Field] = {field.name: field for field in _ALL}
ALIASES: Mapping[str, str] = {
    "gpus": "gpu",
    "ranks": "rank",
    "pids": "pid",
    "utilization": "util",
    "memory": "mem",
    "temperature": "temp",
}
TEXTS: tuple[TextField, ...] = tuple(field for field in _ALL if isinstance(field, TextField))


def named(name: str) -> Field | None:
    known = name.casefold()
    return FIELDS.get(ALIASES.get(known, known))
