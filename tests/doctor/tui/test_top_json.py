"""`top --once --json` keeps the contract: docs/top.schema.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec import Struct, structs
from referencing import Registry, Resource

from mgpu_doctor.case import device_samples as facts
from mgpu_doctor.case.device_samples import (
    Device,
    DeviceProcess,
    DeviceSample,
    Ecc,
    MigInstance,
    NvLink,
    Pcie,
    Topology,
    XidEvent,
)
from mgpu_doctor.case.host_samples import Cores, Group, HostSample, Task
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.filter.language import parse
from mgpu_doctor.tui.once import render_json
from mgpu_doctor.tui.view import View
from tests.support.frames import ALL, AT, EIGHT_GPUS, GOING, HOST, gpu

DOCS = Path(__file__).parents[3] / "docs"
SCHEMA = json.loads((DOCS / "top.schema.json").read_text(encoding="utf-8"))
DIAGNOSIS = json.loads((DOCS / "diagnosis.schema.json").read_text(encoding="utf-8"))
FULL = gpu(
    0,
    pcie=Pcie(5, 16, 5, 16, 1e9, 2e9, 3),
    nvlinks=(NvLink(0, True, "switch", (("crc_flit", 2), ("replay", 0))), NvLink(1)),
    ecc=Ecc(1, 2, 3, 4, 5, True, False),
    mig=True,
    instances=(MigInstance("MIG-1", 1, 0, 5, 10, (4000,)),),
    processes=(DeviceProcess(4000, 7), DeviceProcess(4001)),
    clock_reasons=("power_cap",),
)
SAMPLE = DeviceSample(
    AT,
    (FULL, Device(1), gpu(2, temperature=float("nan"), power_watts=float("inf"))),
    events=(XidEvent(AT, 0, 79), XidEvent(AT, None, 13)),
    topology=Topology((("SELF", "NVL"), ("NVL", "SELF")), (("OK", "?"), ("?", "OK"))),
    took=0.01,
    driver="570.1",
)
WATCHED = HostSample(
    AT, 5.0, 4, 1.0, 2, 3, {4000: (1.5, 7)}, "node-a",
    tasks={4000: Task(cores=Cores({1}))}, groups={"a": Group(1.0, 2.0)},
)  # fmt: skip
FRAMES = {**ALL, "full": structs.replace(EIGHT_GPUS, devices=SAMPLE, host=WATCHED)}


def problems(document: Any) -> list[str]:
    known = Registry().with_resource(DIAGNOSIS["$id"], Resource.from_contents(DIAGNOSIS))
    return [
        error.message
        for error in Draft202012Validator(SCHEMA, registry=known).iter_errors(document)
    ]


def frame_json(frame: Frame, typed: str | None = None) -> Any:
    text = render_json(frame, View(filter=None if typed is None else parse(typed)))
    assert text.isascii()
    assert text.endswith("}\n")
    return json.loads(text, parse_constant=pytest.fail)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("typed", [None, "rank:0 | util>95"])
@pytest.mark.parametrize("name", FRAMES)
def test_every_frame_is_valid(name: str, typed: str | None) -> None:
    assert problems(frame_json(FRAMES[name], typed)) == []


@pytest.mark.parametrize(
    ("definition", "kind"),
    [
        ("sample", DeviceSample),
        ("device", Device),
        ("pcie", Pcie),
        ("nvlink", NvLink),
        ("ecc", Ecc),
        ("process", DeviceProcess),
        ("instance", MigInstance),
        ("event", XidEvent),
        ("topology", Topology),
    ],
)
def test_every_fact_of_a_gpu_is_reported(definition: str, kind: type[Struct]) -> None:
    assert kind.__module__ == facts.__name__
    names = [field.name for field in structs.fields(kind)]
    assert SCHEMA["$defs"][definition]["required"] == names
    assert list(SCHEMA["$defs"][definition]["properties"]) == names


def test_what_is_known_is_reported_and_the_rest_is_null() -> None:
    found = frame_json(FRAMES["full"])
    first, bare, broken = found["devices"]["devices"]
    assert first["pcie"]["sent"] == 1e9
    assert first["nvlinks"][0]["errors"] == {"crc_flit": 2, "replay": 0}
    assert first["processes"][1] == {"pid": 4001, "memory": None, "kind": "compute"}
    assert first["instances"][0]["pids"] == [4000]
    assert bare["utilization"] is None
    assert bare["ecc"] is None
    assert (broken["temperature"], broken["power_watts"]) == (None, None)
    heard = {"at": AT, "index": 0, "number": 79, "bus_id": None, "logged": False}
    assert found["devices"]["events"][0] == heard
    assert found["host"]["processes"] == [{"pid": 4000, "cpu_seconds": 1.5, "resident_bytes": 7}]
    assert (found["only"], found["left_out"]) == (None, {"devices": 0, "ranks": 0})


def test_how_the_job_goes_is_reported_beside_its_rate() -> None:
    found = frame_json(EIGHT_GPUS)
    assert found["steps_per_second"] == pytest.approx(15.1)
    assert found["going"]["samples_per_second"] == 483.4
    assert found["going"]["parallel_efficiency"] == pytest.approx(0.668 * 0.989)
    assert found["going"]["loss_is_number"] is True
    broken = frame_json(structs.replace(EIGHT_GPUS, going=GOING._replace(loss=math.inf, idle=42.0)))
    assert (broken["going"]["loss"], broken["going"]["loss_is_number"]) == (None, False)
    assert (broken["steps_per_second"], broken["going"]["idle_seconds"]) == (None, 42.0)


def test_filtered_rows_are_left_out_and_counted() -> None:
    found = frame_json(EIGHT_GPUS, "rank:1")
    assert [rank["rank"] for rank in found["diagnosis"]["ranks"]] == [1]
    assert [device["index"] for device in found["devices"]["devices"]] == [1]
    assert found["only"] == "rank:1"
    assert found["left_out"] == {"devices": 7, "ranks": 3}
    assert found["diagnosis"]["findings"] == frame_json(EIGHT_GPUS)["diagnosis"]["findings"]


def test_a_wrong_document_is_found() -> None:
    found = frame_json(EIGHT_GPUS)
    for key, value in (("at", None), ("left_out", {}), ("devices", []), ("more", 1)):
        assert problems({**found, key: value}), key
    assert problems({**found, "host": {**found["host"], "load1": "high"}})
    assert problems({**found, "diagnosis": {**found["diagnosis"], "schema": "else"}})
    assert HOST.host is None
    assert found["host"]["host"] is None
