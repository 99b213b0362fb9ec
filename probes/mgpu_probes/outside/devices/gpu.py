"""One GPU that NVML shows: what is asked of it, and what is known of it now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from mgpu_probes.outside.devices import health, identity, links, mig, processes, readings
from mgpu_probes.outside.devices.asleep import Sleep
from mgpu_probes.outside.devices.empty import IDENTITY, PARTS, empty, part
from mgpu_probes.outside.devices.errors import GONE, Json, LostError, sentence
from mgpu_probes.outside.devices.questions import ONCE, Question

ASLEEP = "asleep: it is not asked, so that it stays so"
MANY = 32
"""Devices from which on what a second hardly changes is asked every `UNHURRIED` seconds."""
UNHURRIED = 3.0


def questions(slowly: float, among: int = 1, *, details: bool = True) -> list[Question]:
    """Of one device `among` so many. `slowly`: seconds between questions of what changes slowly.
    Of many devices all but the load is asked at every third second: it takes most of the calls."""
    soon = UNHURRIED if among >= MANY else 0.0
    nvlinks = links.NvLinks(remotes=details)
    asked = [
        Question("name", identity.name, ONCE, loud=True),
        Question("uuid", identity.uuid, ONCE, loud=True),
        Question("PCI address", identity.bus_id, ONCE),
        Question("utilization", readings.utilization, loud=True),
        Question("memory", readings.memory, loud=True),
        Question("power", readings.power, loud=True),
        Question("power limit", readings.power_limit, slowly, loud=True),
        Question("temperature", readings.temperature, soon, loud=True),
        Question("clock", readings.clock, soon, loud=True),
        Question("maximum clock", identity.max_clock, ONCE, loud=True),
        Question("clock event reasons", readings.clock_reasons, soon, loud=True),
        Question("processes", processes.processes, soon, loud=True),
        Question("fan", readings.fan, slowly),
        Question("PCIe link", links.pcie_now, slowly),
        Question("greatest PCIe link", links.pcie_most, ONCE),
        Question("ECC errors", health.errors, slowly),
        Question("repaired memory", health.repairs, slowly),
        Question("NVLinks", nvlinks.states, slowly),
        Question("MIG", mig.mode, slowly),
    ]
    more = [
        Question("memory clock", readings.memory_clock, soon),
        Question("NVLink traffic", nvlinks.traffic, soon),
        Question("PCIe replays", links.pcie_replays, slowly),
        Question("PCIe traffic", links.pcie_traffic, soon, slow=True),
        Question("NVLink errors", nvlinks.errors, slowly),
        Question("memory affinity", identity.numa_node, ONCE),
        Question("CPU affinity", identity.cores, ONCE),
    ]
    return asked + more if details else asked


class _Found(NamedTuple):
    """A device from when it was found until it is lost: what was learned before may be wrong."""

    handle: Any
    questions: tuple[Question, ...]


class Gpu:
    """For several threads: each keeps to its own questions."""

    def __init__(
        self, index: int, make: Callable[[], list[Question]], sleep: Callable[[str], Sleep] = Sleep
    ) -> None:
        self._index = index
        self._make = make
        self._sleep_of = sleep
        self._sleep: Sleep | None = None
        self._found: _Found | None = None
        self._lost = "not read yet: the driver is slow"
        self._identity: Json = {}
        self._links = _Links()
        self._asleep = False

    @property
    def handle(self) -> Any:
        """None: it cannot be asked now."""
        return self._found.handle if self._found else None

    def wake(self) -> bool:
        """Find the device where that is needed. False: it is not to be asked."""
        self._asleep = self._sleep is not None and self._sleep.now()
        if self._asleep:
            return False
        if self._found is None:
            self._find()
        return self._found is not None

    def put(self, now: float, wanted: Callable[[Question], bool]) -> None:
        """The questions that are due, of those wanted."""
        found = self._found
        if found is None or self._asleep:
            return
        try:
            for question in found.questions:
                if wanted(question) and question.due(now):
                    question.put(found.handle)
        except LostError as lost:
            self._remember(found)
            if self._found is found:
                self._found, self._lost = None, str(lost)

    def reading(self, now: float) -> Json:
        """All fields of the device, ready for JSON."""
        told = {**empty(self._index), **self._identity}
        found = self._found
        if found is None or self._asleep:
            return {**told, "trouble": ASLEEP if found else self._lost}
        troubles: dict[str, list[str]] = {}
        parts: dict[str, list[Json]] = {name: [] for name in PARTS}
        for question in found.questions:
            fields, trouble = question.told(now)
            for name, value in fields.items():
                if name in parts:
                    parts[name].append(value)
                else:
                    told[name] = value
            if trouble is not None:
                troubles.setdefault(trouble, []).append(question.what)
        self._remember(found)
        told.update({name: part(name, *known) for name, known in parts.items()})
        told["nvlinks"] = self._links.joined(told["nvlinks"], told.pop("nvlink_errors", None))
        return _finished(told, troubles)

    def _find(self) -> None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        except pynvml.NVMLError as error:
            told = sentence(error)
            self._lost = told if error.value in GONE else f"out of reach: {told}"
            return
        self._found = _Found(handle, tuple(self._make()))

    def _remember(self, found: _Found) -> None:
        """Who it is, for when it is lost."""
        for question in found.questions:
            if question.every == ONCE and question.answer is not None:
                known = question.answer.fields
                self._identity.update({name: known[name] for name in IDENTITY if name in known})
        if self._sleep is None and "bus_id" in self._identity:
            self._sleep = self._sleep_of(self._identity["bus_id"])


class _Links:
    """The NVLinks with their errors, which are asked for apart and seldom: joined when one of the
    answers is new."""

    def __init__(self) -> None:
        self._of: tuple[Any, Any] = (None, None)
        self._joined: list[Json] = []

    def joined(self, links: list[Json] | None, errors: Json | None) -> list[Json]:
        if self._of[0] is not links or self._of[1] is not errors:
            told = errors or {}
            self._of = links, errors
            self._joined = [{**one, "errors": told.get(one["link"], [])} for one in links or []]
        return self._joined


def _finished(told: Json, troubles: dict[str, list[str]]) -> Json:
    """What only shows when all answers lie together."""
    if told.pop("lacks_memory", False):
        if told["utilization"] is None:
            troubles.setdefault("not supported", []).append("memory")
        else:
            told["unified_memory"] = True
    trouble = "; ".join(f"{why}: {', '.join(what)}" for why, what in troubles.items()) or None
    return {**told, "trouble": f"MIG mode; {trouble}" if trouble and told["mig"] else trouble}
