"""One GPU of NVML: the queries that are sent to it, and the reading made of their answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from mgpu_probes.outside.devices.device_fields import (
    IDENTITY,
    PARTS,
    join_part,
    make_unknown_device,
)
from mgpu_probes.outside.devices.driver_polling import (
    LOST_ERRORS,
    ONCE,
    Json,
    LostError,
    Question,
    describe_error,
)
from mgpu_probes.outside.devices.gpu_links import (
    NvLinks,
    query_greatest_pcie_link,
    query_pcie_link,
    query_pcie_replays,
    query_pcie_traffic,
)
from mgpu_probes.outside.devices.nvml_queries import (
    query_bus_id,
    query_clock,
    query_clock_reasons,
    query_cpu_affinity,
    query_ecc_errors,
    query_fan,
    query_max_clock,
    query_memory,
    query_memory_clock,
    query_mig,
    query_name,
    query_numa_node,
    query_power,
    query_power_limit,
    query_processes,
    query_repaired_memory,
    query_temperature,
    query_utilization,
    query_uuid,
)

SYSFS = Path("/sys/bus/pci/devices")
ASLEEP = "asleep: it is not queried, because a query would wake it"
MANY_GPUS = 32
"""Number of GPUs from which slower values are queried every `RELAXED_PERIOD` seconds."""
RELAXED_PERIOD = 3.0


class RuntimePower:
    """Whether the kernel has suspended one device. Read once if it cannot be suspended, as on most
    servers. Querying a suspended device would wake it."""

    def __init__(self, bus_id: str, devices: Path = SYSFS) -> None:
        self._power = devices / bus_id / "power"
        self._may = self._read("control") == "auto"

    def now(self) -> bool:
        """Whether the device is suspended now."""
        return self._may and self._read("runtime_status") == "suspended"

    def _read(self, name: str) -> str | None:
        try:
            return (self._power / name).read_text().strip()
        except OSError:
            return None


def list_questions(slowly: float, among: int = 1, *, details: bool = True) -> list[Question]:
    """The queries of one of `among` devices. `slowly`: seconds between queries of slow values.
    With many devices, only the load is queried in every sample."""
    soon = RELAXED_PERIOD if among >= MANY_GPUS else 0.0
    nvlinks = NvLinks()
    asked = [
        Question("name", query_name, ONCE, loud=True),
        Question("uuid", query_uuid, ONCE, loud=True),
        Question("PCI address", query_bus_id, ONCE),
        Question("utilization", query_utilization, loud=True),
        Question("memory", query_memory, loud=True),
        Question("power", query_power, loud=True),
        Question("power limit", query_power_limit, slowly, loud=True),
        Question("temperature", query_temperature, soon, loud=True),
        Question("clock", query_clock, soon, loud=True),
        Question("maximum clock", query_max_clock, ONCE, loud=True),
        Question("clock event reasons", query_clock_reasons, soon, loud=True),
        Question("processes", query_processes, soon, loud=True),
        Question("fan", query_fan, slowly),
        Question("PCIe link", query_pcie_link, slowly),
        Question("greatest PCIe link", query_greatest_pcie_link, ONCE),
        Question("ECC errors", query_ecc_errors, slowly),
        Question("repaired memory", query_repaired_memory, slowly),
        Question("NVLinks", nvlinks.states, slowly),
        Question("MIG", query_mig, slowly),
    ]
    more = [
        Question("memory clock", query_memory_clock, soon),
        Question("NVLink traffic", nvlinks.traffic, soon),
        Question("PCIe replays", query_pcie_replays, slowly),
        Question("PCIe traffic", query_pcie_traffic, soon, slow=True),
        Question("NVLink ends", nvlinks.ends, slowly, later=True),
        Question("NVLink errors", nvlinks.errors, slowly, later=True),
        Question("memory affinity", query_numa_node, ONCE, later=True),
        Question("CPU affinity", query_cpu_affinity, ONCE, later=True),
    ]
    return asked + more if details else asked


class _Attached(NamedTuple):
    """A device from its discovery until it is lost. Values from before may be wrong."""

    handle: Any
    questions: tuple[Question, ...]


class NvmlGpu:
    """One GPU, shared by threads that send different queries."""

    def __init__(
        self,
        index: int,
        make: Callable[[], list[Question]],
        sleep: Callable[[str], RuntimePower] = RuntimePower,
    ) -> None:
        self._index = index
        self._make = make
        self._sleep_of = sleep
        self._sleep: RuntimePower | None = None
        self._attached: _Attached | None = None
        self._lost = "not read yet: the driver is slow"
        self._identity: Json = {}
        self._links = _Links()
        self._asleep = False

    @property
    def handle(self) -> Any:
        """NVML's handle; None: it cannot be queried now."""
        return self._attached.handle if self._attached else None

    def wake(self) -> bool:
        """Whether the device may be queried now. Opens it if needed."""
        self._asleep = self._sleep is not None and self._sleep.now()
        if self._asleep:
            return False
        if self._attached is None:
            self._find()
        return self._attached is not None

    def put(self, now: float, wanted: Callable[[Question], bool]) -> None:
        """Sends the wanted queries that are due."""
        attached = self._attached
        if attached is None or self._asleep:
            return
        try:
            for question in attached.questions:
                if wanted(question) and question.due(now):
                    question.put(attached.handle)
        except LostError as lost:
            self._remember(attached)
            if self._attached is attached:
                self._attached, self._lost = None, str(lost)

    def reading(self, now: float) -> Json:
        """All fields of the device, ready for JSON."""
        values = {**make_unknown_device(self._index), **self._identity}
        attached = self._attached
        if attached is None or self._asleep:
            return {**values, "trouble": ASLEEP if attached else self._lost}
        troubles: dict[str, list[str]] = {}
        parts: dict[str, list[Json]] = {name: [] for name in PARTS}
        for question in attached.questions:
            fields, trouble = question.newest(now)
            for name, value in fields.items():
                if name in parts:
                    parts[name].append(value)
                else:
                    values[name] = value
            if trouble is not None:
                troubles.setdefault(trouble, []).append(question.what)
        self._remember(attached)
        values.update({name: join_part(name, *known) for name, known in parts.items()})
        values["nvlinks"] = self._links.joined(
            values["nvlinks"], values.pop("nvlink_ends", None), values.pop("nvlink_errors", None)
        )
        return _finished(values, troubles)

    def _find(self) -> None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        except pynvml.NVMLError as error:
            reason = describe_error(error)
            self._lost = reason if error.value in LOST_ERRORS else f"out of reach: {reason}"
            return
        self._attached = _Attached(handle, tuple(self._make()))

    def _remember(self, attached: _Attached) -> None:
        """Keeps the identity, to report it when the device is lost."""
        for question in attached.questions:
            if question.every == ONCE and question.answer is not None:
                known = question.answer.fields
                self._identity.update({name: known[name] for name in IDENTITY if name in known})
        if self._sleep is None and "bus_id" in self._identity:
            self._sleep = self._sleep_of(self._identity["bus_id"])


class _Links:
    """The NVLinks joined with the devices at their other ends and their error counters, which are
    queried separately. The result is cached until one of the answers changes."""

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = (None, None, None)
        self._joined: list[Json] = []

    def joined(
        self, links: list[Json] | None, ends: Json | None, errors: Json | None
    ) -> list[Json]:
        answers = links, ends, errors
        if any(known is not new for known, new in zip(self._of, answers, strict=True)):
            self._of = answers
            remotes, counters = ends or {}, errors or {}
            self._joined = [
                {
                    **link,
                    "remote": remotes.get(link["link"]),
                    "errors": counters.get(link["link"], []),
                }
                for link in links or []
            ]
        return self._joined


def _finished(values: Json, troubles: dict[str, list[str]]) -> Json:
    """The reading, completed by what only all answers together show."""
    if values.pop("lacks_memory", False):
        if values["utilization"] is None:
            troubles.setdefault("not supported", []).append("memory")
        else:
            values["unified_memory"] = True
    trouble = "; ".join(f"{why}: {', '.join(what)}" for why, what in troubles.items()) or None
    return {**values, "trouble": f"MIG mode; {trouble}" if trouble and values["mig"] else trouble}
