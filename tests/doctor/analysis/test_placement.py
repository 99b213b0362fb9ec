"""Which GPU a rank computes on, or that it is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from mgpu_doctor.analysis.machines.host_devices import wiring
from mgpu_doctor.analysis.machines.rank_devices import on_devices, placements, use_of, why_unknown
from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.device_samples import DeviceSample, Topology
from mgpu_doctor.case.model import Case
from tests.support.gpus import gpu, gpus, on_gpus, sampled
from tests.support.hardware import job, links
from tests.support.synthetic import Synthetic, synthetic_case

JOB = Synthetic(ranks=4, steps=60)


def placed(case: Case) -> dict[int, tuple[str, str]]:
    return {
        number: (placement.device, placement.known_by)
        for number, placement in placements(case).items()
    }


def without_uuid(devices: list[Any], **birth: Any) -> Case:
    return on_gpus(JOB, devices, **{"device_uuid": None, **birth})


def test_a_uuid_is_believed_before_all_else() -> None:
    case = on_gpus(JOB, gpus(4), device_uuid=lambda number: f"GPU-{3 - number:04x}")
    assert placed(case) == {n: (f"GPU-{3 - n:04x}", "uuid") for n in range(4)}


def test_a_uuid_that_no_device_has_is_not_replaced_by_a_guess() -> None:
    assert placed(on_gpus(JOB, gpus(4), device_uuid="MIG-1")) == {}


def test_pids_count_where_every_rank_is_listed() -> None:
    turned = gpus(4, of={n: {"pids": (1000 + (n + 1) % 4,)} for n in range(4)})
    assert placed(without_uuid(turned)) == {n: (f"GPU-{(n - 1) % 4:04x}", "pid") for n in range(4)}


def test_in_a_container_pids_may_match_by_chance() -> None:
    """One rank's own number is a foreign process's on another device: nothing is made of it."""
    devices = gpus(4, pids=(9000,), of={3: {"pids": (1000,)}})
    assert placed(without_uuid(devices)) == {n: (f"GPU-{n:04x}", "index") for n in range(4)}


def test_a_rank_with_contexts_on_several_devices_is_where_its_index_says() -> None:
    devices = gpus(4, of={0: {"pids": (1000, 1001, 1002, 1003)}})
    found = placed(without_uuid(devices))
    assert found == {n: (f"GPU-{n:04x}", "pid") for n in range(4)}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("3,2,1,0", [3, 2, 1, 0]),
        ("GPU-0001,GPU-0000,2,3", [1, 0, 2, 3]),
        ("0,1", [0, 1]),
        ("MIG-a,MIG-b", []),
        ("", []),
        ("7,8,9,10", []),
    ],
)
def test_an_index_counts_among_the_visible_devices(visible: str, expected: list[int]) -> None:
    found = placed(without_uuid(gpus(4, pids=()), visible_devices=visible))
    assert found == {rank: (f"GPU-{n:04x}", "index") for rank, n in enumerate(expected)}


def test_a_device_that_two_ranks_claim_by_index_is_nobodys() -> None:
    """A scheduler that hides the other devices makes each rank say cuda:0."""
    case = without_uuid(gpus(4, pids=()))
    ranks = tuple(replace(rank, device="cuda:0") for rank in case.ranks)
    assert placed(replace(case, ranks=ranks)) == {}


def test_unlike_devices_are_counted_by_cuda_in_an_order_of_its_own() -> None:
    mixed = gpus(4, pids=(), of={2: {"name": "Pretend A100"}})
    assert placed(without_uuid(mixed)) == {}
    assert len(placed(without_uuid(mixed, device_order="PCI_BUS_ID"))) == 4


def test_across_hosts_only_uuids_count() -> None:
    def spread(case: Case) -> Case:
        return replace(case, ranks=tuple(replace(r, host=f"node{r.rank}") for r in case.ranks))

    assert placed(spread(without_uuid(gpus(4)))) == {}
    assert len(placed(spread(on_gpus(JOB, gpus(4))))) == 4


def test_the_use_of_a_device_is_that_of_the_training() -> None:
    case = on_gpus(JOB, gpus(4, of={1: {"utilization": 0.5}}))
    idle = tuple(
        DeviceSample(sample.at - 1e5, tuple(gpus(4, utilization=0.0)))
        for sample in case.device_samples
    )
    found = on_devices(replace(case, device_samples=(*idle, *case.device_samples)))
    assert [found[n].use.utilization for n in range(4)] == pytest.approx([0.97, 0.5, 0.97, 0.97])
    assert found[0].beside == ()
    assert found[0].foreign is False


def test_neighbours_on_one_device_are_named() -> None:
    devices = gpus(4, of={0: {"pids": (1000, 1001, 77)}})
    found = on_devices(on_gpus(JOB, devices, device_uuid=lambda n: f"GPU-{max(0, n - 1):04x}"))
    assert found[0].beside == (1,)
    assert found[1].beside == (0,)
    assert found[2].beside == ()


def test_a_lost_device_keeps_what_it_reported_before() -> None:
    case = on_gpus(JOB, gpus(4))
    half = len(case.device_samples) // 2
    lost = gpus(4, of={1: {"utilization": None, "clock_reasons": None, "trouble": "GPU is lost"}})
    samples = [
        sample if place < half else structs.replace(sample, devices=tuple(lost))
        for place, sample in enumerate(case.device_samples)
    ]
    use = on_devices(replace(case, device_samples=tuple(samples)))[1].use
    assert use.utilization == pytest.approx(0.97)
    assert use.reasons == {}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (replace(on_gpus(JOB, []), device_samples=()), "no device samples"),
        (
            replace(on_gpus(JOB, []), device_samples=(DeviceSample(1.0, (), "no NVIDIA driver"),)),
            "no NVIDIA driver",
        ),
        (on_gpus(JOB, gpus(4), device_uuid="MIG-1"), "not known for sure"),
        (sampled(on_gpus(JOB, []), gpus(4), every=1.0), "fewer than 10 samples"),
    ],
)
def test_what_is_not_known_is_reported(case: Case, why: str) -> None:
    measures = measure(case)
    assert measures.devices is None
    assert why in measures.missing["devices"].reason


def test_a_job_without_gpus_lacks_nothing() -> None:
    case = synthetic_case(JOB)
    assert why_unknown(case) is None
    assert "devices" not in measure(case).missing


@pytest.mark.parametrize("ahead", [-1000.0, 1000.0])
def test_samples_are_taken_by_the_clock_of_the_rank_s_host(ahead: float) -> None:
    case = on_gpus(JOB, gpus(4))
    ranks = tuple(replace(rank, clock_offset=ahead) for rank in case.ranks)
    samples = tuple(structs.replace(sample, at=sample.at + ahead) for sample in case.device_samples)
    shifted = on_devices(replace(case, ranks=ranks, device_samples=samples))
    assert [shifted[n].use for n in range(4)] == [on_devices(case)[n].use for n in range(4)]
    assert on_devices(replace(case, ranks=ranks)) == {}


@pytest.mark.parametrize(("count", "known"), [(9, False), (10, True)])
def test_ten_samples_tell_how_a_device_does(count: int, known: bool) -> None:
    case = on_gpus(JOB, gpus(4))
    middle = len(case.device_samples) // 2
    few = case.device_samples[middle : middle + count]
    assert (set(on_devices(replace(case, device_samples=few))) == set(range(4))) is known


def test_the_summary_of_samples_by_hand() -> None:
    busy = gpu(0, utilization=0.5, sm_clock_mhz=1000.0, power_watts=400.0, temperature=70.0)
    hot = structs.replace(busy, sm_clock_mhz=900.0, clock_reasons=("hw_thermal",), temperature=90.0)
    idle = structs.replace(busy, utilization=0.0, sm_clock_mhz=200.0, clock_reasons=("idle",))
    unknown = structs.replace(
        busy, utilization=None, sm_clock_mhz=None, clock_reasons=None, memory_used=70 << 30
    )
    use = use_of([(float(at), one) for at, one in enumerate([busy, hot, idle, unknown])])
    assert (use.samples, use.memory_used, use.temperature) == (4, 70 << 30, 90.0)
    assert use.utilization == pytest.approx(1 / 3)
    assert use.utilization_high == pytest.approx(0.5)
    assert use.clock == 950.0, "of samples in which it was not idle"
    assert use.reasons == pytest.approx({"hw_thermal": 1 / 3, "idle": 1 / 3})
    assert use.power == 400.0


def test_gpus_reach_each_other_over_switches_where_both_have_links_to_them() -> None:
    levels = tuple(tuple("SELF" if i == j else "PIX" for j in range(4)) for i in range(4))
    peer = (("OK", "OK", "NS", "?"), *(("OK",) * 4,) * 3)
    devices = [gpu(i, nvlinks=links(4, remote="switch") if i < 2 else links(4)) for i in range(4)]
    case = job(devices=devices, topology=Topology(levels, peer))
    found = wiring(measure(case).watched)
    assert found is not None
    over_switches = {pair for pair, way in found.ways.items() if way == "NVL"}
    assert over_switches == {frozenset((0, 1))}
    assert len(found.ways) == 6
    assert found.barred == {frozenset((0, 2)): "NS"}
    down = [structs.replace(device, nvlinks=links(0, remote="switch")) for device in devices]
    none = wiring(measure(job(devices=down, topology=Topology(levels, peer))).watched)
    assert none is not None
    assert set(none.ways.values()) == {"PIX"}
