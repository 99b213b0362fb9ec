"""The panel of GPUs over healthy and faulty machines, against golden files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from textual.markup import escape

from mgpu_doctor.case.device_samples import (
    Device,
    DeviceProcess,
    DeviceSample,
    Ecc,
    MigInstance,
    NvLink,
    Pcie,
)
from mgpu_doctor.case.model import Now, Outcome, State
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.panels import gpu_table
from mgpu_doctor.tui.view import View
from tests.support import diagnoses
from tests.support.metadata import with_metadata
from tests.support.screens import Still, check, screen_text, shown, until

GIB = 1 << 30
AT = diagnoses.STARTED + 26.4
WIDE = Pcie(5, 16, 5, 16, sent=1.2e9, received=340e6, replays=0)
LINKS = tuple(NvLink(link, up=True, remote="switch") for link in range(18))
FACTS: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "utilization": 1.0,
    "memory_used": 60 * GIB,
    "memory_total": 80 * GIB,
    "power_watts": 600.0,
    "power_limit_watts": 700.0,
    "temperature": 60.0,
    "sm_clock_mhz": 1980.0,
    "clock_reasons": (),
    "pcie": WIDE,
    "nvlinks": LINKS,
    "nvlink_sent": 25e9,
    "nvlink_received": 24e9,
    "ecc": Ecc(0, 0, 0, 0, 0, pending=False, failed=False),
}


def gpu(index: int, **changes: Any) -> Device:
    return Device(index, **{**FACTS, "uuid": f"GPU-{index}", "pids": (4000 + index,), **changes})


def on_devices(diagnosis: Diagnosis, clock: str = "device", **changes: Any) -> Diagnosis:
    """Its ranks timed on their devices, and changed."""
    ranks = tuple(
        with_metadata(replace(rank, **changes), clock=clock) for rank in diagnosis.case.ranks
    )
    return replace(diagnosis, case=replace(diagnosis.case, ranks=ranks))


STRAGGLER = on_devices(diagnoses.straggler(outcome=Outcome.RUNNING))
MACHINES = {
    "waiting": (gpu(0), gpu(1, utilization=0.62), gpu(2), gpu(3, pids=(4003, 77))),
    "mig": (
        gpu(
            0,
            utilization=None,
            trouble="MIG mode; not supported: utilization",
            mig=True,
            pids=(4000, 4001),
            instances=(
                MigInstance("MIG-1", 1, 0, 1 * GIB, 40 * GIB, ()),
                MigInstance("MIG-2", 2, 0, 30 * GIB, 40 * GIB, (4000,)),
                MigInstance("MIG-3", 3, 0, None, None, (4001, 91)),
            ),
        ),
        gpu(1, pids=()),
    ),
    "unified": (
        Device(
            0,
            name="NVIDIA GB10",
            utilization=0.5,
            power_watts=38.0,
            temperature=51.0,
            sm_clock_mhz=2400.0,
            clock_reasons=("idle",),
            unified_memory=True,
            pids=(4000,),
            processes=(DeviceProcess(4000, 12 * GIB),),
        ),
        Device(1, name="NVIDIA GB10", utilization=0.0, unified_memory=True, fan=0.0),
    ),
    "worn": (
        gpu(0, clock_reasons=("power_cap",)),
        gpu(1, clock_reasons=("power_cap", "hw_thermal"), sm_clock_mhz=1200.0, temperature=91.0),
        gpu(2, pcie=Pcie(3, 4, 5, 16, 2e6, None), clock_reasons=("sync_boost",), fan=0.4),
        gpu(3, nvlinks=(*LINKS[:17], NvLink(17, up=False)), nvlink_sent=None, pids=()),
        gpu(4, ecc=Ecc(14, 2, 14, 2, 1, pending=True, failed=False), clock_reasons=None),
        gpu(5, utilization=0.0, pcie=Pcie(1, 16, 5, 16, 0.0, 0.0), clock_reasons=("idle",)),
        Device(6, name="NVIDIA H100 80GB HBM3", uuid="GPU-6", pids=(4003,), trouble="GPU is lost"),
        Device(7, name="NVIDIA Thing", trouble="not supported: memory, utilization, power"),
    ),
}


def frame(diagnosis: Diagnosis | None, *devices: Device) -> Frame:
    return Frame(AT, "live", diagnosis, devices=DeviceSample(AT, devices))


def drawn(made: Frame, width: int) -> list[str]:
    lines = list(gpu_table.gpu_lines(made, width, View()))
    assert max(line.cell_len for line in lines) <= width
    return [line.plain.rstrip() for line in lines]


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("name", MACHINES)
def test_machine(name: str, width: int) -> None:
    lines = drawn(frame(STRAGGLER, *MACHINES[name]), width)
    check(f"gpus-{name}", "\n".join(lines) + "\n", width)


def test_how_busy_the_memory_is_has_a_column_where_there_is_room() -> None:
    devices = (gpu(0, memory_busy=0.41), gpu(1, memory_busy=None))
    head, *rows = drawn(frame(STRAGGLER, *devices), 200)
    end = head.index("mem busy") + len("mem busy")
    assert [row[:end].split()[-1] for row in rows] == ["41%", "?"]
    assert "mem busy" not in drawn(frame(STRAGGLER, *devices), 120)[0]
    assert "mem busy" not in drawn(frame(STRAGGLER, devices[1]), 200)[0]


def waits(diagnosis: Diagnosis, **changes: Any) -> bool:
    """Whether some of GPU 0's utilization is shown as waiting."""
    return "w" in drawn(frame(diagnosis, gpu(0, **changes)), 120)[1].split("%")[0].split("HBM3")[1]


def test_waiting_is_shown_only_where_it_is_known() -> None:
    assert waits(STRAGGLER)
    assert not waits(on_devices(STRAGGLER, clock="host"))
    assert not waits(STRAGGLER, pids=(4000, 91))
    assert not waits(STRAGGLER, pids=(4002,))
    assert not waits(STRAGGLER, utilization=None)
    assert not waits(on_devices(diagnoses.healthy(Outcome.RUNNING)))


@pytest.mark.parametrize(("since", "reported"), [(60.0, True), (1.0, False)])
def test_who_stands_in_a_collective_works_not_at_all(since: float, reported: bool) -> None:
    hang = diagnoses.hang()
    standing = Now("wait", AT - since, 119, "all_reduce train.py:87", 119)
    made = on_devices(hang, clock="host", now=standing, state=State.WAITING)
    row = drawn(frame(made, gpu(0)), 120)[1]
    assert ("wwwwwww 100%" in row) is reported
    dead = drawn(frame(made, gpu(3)), 120)[1]
    assert "wwwwwww" not in dead


def test_no_device_is_one_sentence() -> None:
    assert drawn(Frame(AT, "live"), 80) == ["No GPU seen: devices were not sampled"]
    bare = Frame(AT, "live", devices=DeviceSample(AT, (), "no \x1b[31mdriver"))
    assert drawn(bare, 80) == ["No GPU seen: no driver"]


@pytest.mark.parametrize("silent", [False, True])
def test_what_troubles_all_is_reported_once(silent: bool) -> None:
    why = "no answer for 30 s or longer: fan"

    def troubled(index: int, trouble: str = why) -> Device:
        bare = Device(index, name="NVIDIA Thing", pids=(4003,), trouble=trouble)
        return bare if silent else gpu(index, trouble=trouble)

    alike = drawn(frame(STRAGGLER, troubled(0), troubled(1)), 120)
    assert alike[0] == f"All GPUs: {why}"
    assert why not in "\n".join(alike[1:])
    assert ("rank 3 ran on it" in alike[2]) is silent
    apart = drawn(frame(STRAGGLER, troubled(0), troubled(1, "GPU is lost")), 120)
    assert why[:9] in apart[1]
    assert "GPU is lost" in apart[2]
    alone = drawn(frame(STRAGGLER, troubled(0)), 120)
    assert why[:9] in alone[1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trouble": "not supported: fan, power"}, "not supported …"),
        ({"trouble": "not supported: fan", "pids": (4194304,)}, ""),
        ({"trouble": "nonsense (37100 %): utilization"}, "nonsense …"),
        ({"trouble": "Unknown Error: name, power"}, "Unknown Error …"),
        ({"clock_reasons": ("power_cap", "hw_thermal", "hw_slowdown")}, "too hot"),
        ({"ecc": Ecc(0, 2, pending=True)}, "ECC 0/2 …"),
        ({"nvlinks": (*LINKS[:12], NvLink(12, up=False))}, "NVLink 12/13 up"),
        ({"pcie": Pcie(1, 4, 5, 16)}, "PCIe 1x4/5x16"),
    ],
)
def test_at_80_columns_a_row_ends_in_words_that_can_be_read(
    changes: dict[str, Any], expected: str
) -> None:
    pids = changes.pop("pids", (71,) if "ecc" in changes else ())
    (_, row) = drawn(frame(None, gpu(0, **changes, pids=pids)), 80)
    assert row.partition("°C ")[2].partition("  ")[2] == expected


def test_a_warning_that_has_no_room_leaves_its_mark() -> None:
    busy = frame(None, gpu(0, pids=(4194304,), ecc=Ecc(0, 2, pending=True)))
    rows = [drawn(busy, width)[1] for width in (78, 80, 84)]
    assert [row.partition("pid 4194304")[2] for row in rows] == ["  !", "  ECC …", "  ECC 0/2 …"]


@pytest.mark.parametrize(
    ("sent", "shown"), [(None, "5x16"), (0.0, "5x16 0/?"), (1.2e9, "5x16 1.1Gi/?")]
)
def test_a_rate_is_shown_from_the_sample_on_that_knows_one(sent: float | None, shown: str) -> None:
    links = {"nvlink_sent": None, "nvlink_received": None}
    head, row = drawn(frame(None, gpu(0, pcie=Pcie(5, 16, 5, 16, sent), **links)), 200)
    pcie, nvlink, end = map(head.index, ("PCIe", "NVLink", "ECC"))
    assert (row[pcie:nvlink].rstrip(), row[nvlink:end].rstrip()) == (shown, "18 up")


def test_who_uses_a_device_is_unknown_where_its_processes_cannot_be_read() -> None:
    denied = "Insufficient Permissions: processes"
    devices = gpu(0, pids=(), trouble=denied), gpu(1, pids=(77,), trouble=denied), gpu(2, pids=())
    _, *rows = drawn(frame(None, *devices), 120)
    assert [row.partition("MHz ")[2].split("  ")[0] for row in rows] == ["?", "pid 77", "-"]


@pytest.mark.parametrize(("other", "title"), [("a", "GPUs"), ("[red]b", "GPUs of [red]b")])
async def test_whose_gpus_they_are_is_reported_where_there_are_several_hosts(
    other: str, title: str
) -> None:
    hosts = ("a", other, "a", other)
    ranks = tuple(
        replace(rank, host=host) for rank, host in zip(STRAGGLER.ranks, hosts, strict=True)
    )
    sample = DeviceSample(AT, (gpu(0),), host=other)
    made = Frame(AT, "live", replace(STRAGGLER, ranks=ranks), devices=sample)
    app = TopApp(Still(made), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await until(pilot, lambda: f"─{title}─" in screen_text(app), title)
        assert app.query_one("#gpus").border_title == escape(title)
