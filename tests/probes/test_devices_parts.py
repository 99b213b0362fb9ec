"""PCIe, NVLink, ECC, MIG, topology: each as the pretend machines have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakenvml.fakenvml import machine
from tests.fakenvml.scenarios import GIB
from tests.support.nvml import PretendNvml

Reading = dict[str, Any]

KIB = 1024


def devices(nvml: PretendNvml, tmp_path: Path, scenario: str, **options: Any) -> list[Reading]:
    (sample,) = nvml.samples(tmp_path / "state", machine(scenario, **options))
    found: list[Reading] = sample["devices"]
    return found


def test_who_it_is_and_where_it_sits(nvml: PretendNvml, tmp_path: Path) -> None:
    first, *_, last = devices(nvml, tmp_path, "h100")
    assert (first["bus_id"], last["bus_id"]) == ("0000:18:00.0", "0000:db:00.0")
    assert (first["numa_node"], last["numa_node"]) == (0, 1)
    assert (first["cores"], last["cores"]) == ("0-47,96-143", "48-95,144-191")
    assert first["memory_clock_mhz"] == 2619
    assert first["fan"] is None  # the chassis cools it
    assert first["vendor"] == "nvidia"


def test_a_card_with_fans_and_neither_nvlink_nor_ecc(nvml: PretendNvml, tmp_path: Path) -> None:
    card = devices(nvml, tmp_path, "consumer")[0]
    assert card["fan"] == 0.3
    assert card["nvlinks"] == []
    assert card["ecc"] is None
    assert card["nvlink_sent"] is None
    assert card["mig"] is None
    assert card["trouble"] is None  # it is not meant to have them
    assert card["processes"][0]["kind"] == "graphics"


def test_a_degraded_pcie_link(nvml: PretendNvml, tmp_path: Path) -> None:
    (sample,) = nvml.samples(tmp_path / "state", machine("pcie_degraded"), last="settled")
    bad, good = sample["devices"][7]["pcie"], sample["devices"][0]["pcie"]
    assert (bad["generation"], bad["width"]) == (1, 4)
    assert (bad["generation_most"], bad["width_most"]) == (5, 16)
    assert bad["replays"] >= 200
    assert (good["generation"], good["width"], good["replays"]) == (5, 16, 0)


def test_sent_is_what_the_gpu_sends(nvml: PretendNvml, tmp_path: Path) -> None:
    """TX of NVML is seen from the GPU, in KB a second."""
    box = machine("busy", gpus=1, values=("0:pcie_tx=2000", "0:pcie_rx=3000"))
    (sample,) = nvml.samples(tmp_path / "state", box, last="settled")
    pcie = sample["devices"][0]["pcie"]
    assert (pcie["sent"], pcie["received"]) == (2e6, 3e6)


def test_links_that_are_down_and_links_that_err(nvml: PretendNvml, tmp_path: Path) -> None:
    found = devices(nvml, tmp_path, "nvlink_down")
    links = found[4]["nvlinks"]
    assert [link["up"] for link in links] == [True] * 12 + [False] * 6
    assert [link["remote"] for link in links] == ["switch"] * 12 + [None] * 6
    assert all(nvlink["up"] for nvlink in found[1]["nvlinks"])
    errors = {nvlink["link"]: dict(nvlink["errors"]) for nvlink in found[0]["nvlinks"]}
    assert errors[7]["recovery"] == 2
    assert errors[7]["replay"] >= 12
    assert errors[7]["crc_flit"] >= 900
    assert set(errors[6].values()) == {0}


def test_nvlink_traffic_is_a_rate_and_unknown_at_first(nvml: PretendNvml, tmp_path: Path) -> None:
    def with_counters(sent: int, received: int) -> Any:
        return machine("busy", gpus=1, values=(f"0:nvlink_tx={sent}", f"0:nvlink_rx={received}"))

    first, second, reset = nvml.samples(
        tmp_path / "state",
        with_counters(1000, 5000),
        with_counters(1000, 5000 + (1 << 40)),
        with_counters(0, 6000 + (1 << 40)),
    )
    assert first["devices"][0]["nvlink_sent"] is None
    assert first["devices"][0]["nvlink_received"] is None
    assert second["devices"][0]["nvlink_sent"] == 0
    assert second["devices"][0]["nvlink_received"] > 0
    assert reset["devices"][0]["nvlink_sent"] is None  # the counter began anew
    assert reset["devices"][0]["nvlink_received"] > 0


def test_memory_errors_and_remapped_rows(nvml: PretendNvml, tmp_path: Path) -> None:
    found = devices(nvml, tmp_path, "ecc")
    bad = found[1]["ecc"]
    assert (bad["uncorrected"], bad["uncorrected_ever"]) == (2, 5)
    assert (bad["remapped"], bad["pending"], bad["failed"]) == (2, True, False)
    assert found[6]["ecc"]["corrected"] >= 40
    assert set(found[0]["ecc"].values()) == {0}


def test_retired_pages_before_ampere(nvml: PretendNvml, tmp_path: Path) -> None:
    found = devices(nvml, tmp_path, "ecc_retired")
    bad, good = found[1]["ecc"], found[0]["ecc"]
    assert (bad["remapped"], bad["pending"], bad["failed"]) == (1, True, None)
    assert (good["remapped"], good["pending"]) == (0, False)


def test_ecc_that_is_off_is_unknown_not_zero(nvml: PretendNvml, tmp_path: Path) -> None:
    ecc = devices(nvml, tmp_path, "busy", gpus=1, values=("0:ecc_mode=0",))[0]["ecc"]
    assert ecc["corrected"] is None
    assert ecc["uncorrected_ever"] is None
    assert ecc["remapped"] == 0


def test_the_parts_of_a_gpu_in_mig_mode(nvml: PretendNvml, tmp_path: Path) -> None:
    device = devices(nvml, tmp_path, "mig", pids=(101,))[0]
    assert device["mig"] is True
    first, second = device["instances"]
    assert (first["gpu_instance"], second["gpu_instance"]) == (1, 2)
    assert (first["pids"], second["pids"]) == ([], [3001])
    assert (second["memory_used"], second["memory_total"]) == (30 * GIB, 40 * GIB)
    assert second["uuid"].startswith("MIG-")
    assert device["utilization"] is None


def test_a_mig_part_that_cannot_be_read_leaves_the_rest(nvml: PretendNvml, tmp_path: Path) -> None:
    fault = ("nvmlDeviceGetComputeInstanceId=UNKNOWN",)
    device = devices(nvml, tmp_path, "mig", fault=fault)[0]
    assert [instance["compute_instance"] for instance in device["instances"]] == [None, None]
    assert device["instances"][1]["memory_used"] == 30 * GIB


def test_processes_by_kind_and_memory(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("h100", gpus=1)
    box.gpus[0].proc(30, 3 * GIB).proc(20, "N/A").proc(30, 3 * GIB, kind="graphics")
    box.gpus[0].proc(10, 1 * GIB, kind="mps")
    (sample,) = nvml.samples(tmp_path / "state", box)
    device = sample["devices"][0]
    assert device["pids"] == [10, 20, 30]
    assert device["processes"] == [
        {"pid": 10, "memory": 1 * GIB, "kind": "mps"},
        {"pid": 20, "memory": None, "kind": "compute"},
        {"pid": 30, "memory": 3 * GIB, "kind": "compute"},
    ]


def test_pids_that_cannot_be_are_refused(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("h100", gpus=1)
    box.gpus[0].proc(1 << 30, GIB)
    (sample,) = nvml.samples(tmp_path / "state", box)
    device = sample["devices"][0]
    assert device["pids"] == []
    assert device["processes"] == []
    assert device["trouble"] == "the driver's process structure is unknown: processes"


def test_the_topology_comes_once(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("consumer")
    first, second = nvml.samples(tmp_path / "state", box, box)
    topology = first["topology"]
    assert topology["levels"][0] == ["SELF", "PHB", "NODE", "NODE"]
    assert topology["levels"][3] == ["NODE", "NODE", "PHB", "SELF"]
    assert topology["peer"][1] == ["CNS", "OK", "CNS", "CNS"]
    assert second["topology"] is None


def test_nvlink_goes_before_the_pcie_tree(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("h100", gpus=2)
    (sample,) = nvml.samples(tmp_path / "state", box)
    assert sample["topology"]["levels"] == [["SELF", "NVL"], ["NVL", "SELF"]]
    assert sample["topology"]["peer"] == [["OK", "OK"], ["OK", "OK"]]


def test_the_topology_of_a_lost_gpu_is_unknown(nvml: PretendNvml, tmp_path: Path) -> None:
    (sample,) = nvml.samples(tmp_path / "state", machine("lost", gpus=4))
    assert sample["topology"]["levels"][0] == ["SELF", "NVL", "NVL", "?"]
    assert sample["topology"]["peer"][3] == ["?", "?", "?", "OK"]


def test_driver_and_duration(nvml: PretendNvml, tmp_path: Path) -> None:
    (sample,) = nvml.samples(tmp_path / "state", machine("busy", gpus=1))
    assert sample["driver"] == "570.133.20"
    assert sample["took"] > 0
