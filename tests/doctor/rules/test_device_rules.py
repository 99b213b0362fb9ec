"""Rules that need a GPU, on pretend ones: each fault is found, and nothing on a healthy job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import INPUT
from msgspec import structs

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.device_samples import Device, DeviceSample, device_sample
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.gpu import (
    gpu_utilization,
    host_transfers,
    precision,
    replica_imbalance,
    throttled_stragglers,
)
from mgpu_doctor.rules.gpu.gpu_use import most_share
from tests.fakenvml.fakenvml import machine
from tests.support.gpus import GIB, gpus, on_gpus, timed
from tests.support.metadata import with_metadata
from tests.support.nvml import PretendNvml
from tests.support.rule_limits import equal_counts_as
from tests.support.synthetic import BASE, Fault, Synthetic

SLOW = Synthetic(faults=[Fault(2, "forward", factor=2.0), Fault(2, "backward", factor=2.0)])
RULES = (
    *throttled_stragglers.RULES,
    *gpu_utilization.RULES,
    *host_transfers.RULES,
    *precision.RULES,
    *replica_imbalance.RULES,
)
CODES = {rule.code for rule in RULES}


def findings_by_code(case: Case) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(case).findings}


def codes(case: Case) -> set[str]:
    return set(findings_by_code(case))


def slow_rank(changes: Mapping[str, Any], **all_: Any) -> Case:
    """Rank 2 takes twice as long; its GPU differs by `changes`."""
    return on_gpus(SLOW, gpus(4, of={2: changes}, **all_))


def busy_hosts(case: Case, busy: float) -> Case:
    """Every host computes for this share of the step outside of backward."""
    ranks = []
    for rank in case.ranks:
        steps = rank.steps.copy()
        steps["cpu_s"] = steps["wall_ns"] * 1e-9 * busy
        ranks.append(replace(rank, steps=steps))
    return replace(case, ranks=tuple(ranks))


def test_every_rule_says_that_it_has_not_seen_a_gpu() -> None:
    assert all("not yet seen on a GPU" in rule.unverified for rule in RULES)


# --- a healthy job --------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["device", "host"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_busy_gpus_are_well(ranks: int, clock: str) -> None:
    job = Synthetic(ranks=ranks)
    assert not codes(busy_hosts(on_gpus(job, gpus(ranks), clock=clock), 0.9)) & CODES


def test_a_power_cap_on_all_gpus_is_usual() -> None:
    capped = gpus(4, clock_reasons=("power_cap",), sm_clock_mhz=1700.0)
    assert not codes(on_gpus(Synthetic(), capped)) & CODES


# --- straggler-throttled --------------------------------------------------------------------


def test_a_hot_gpu_holds_the_others_up() -> None:
    hot = {
        "sm_clock_mhz": 900.0,
        "clock_reasons": ("hw_slowdown", "hw_thermal"),
        "temperature": 90.0,
    }
    (finding,) = diagnose(slow_rank(hot)).findings
    assert finding.code == "straggler-throttled"
    (culprit,) = finding.culprits
    assert (culprit.rank, culprit.device) == (2, "cuda:2")
    assert finding.victims == (0, 1, 3)
    assert (
        "GPU 2 runs at 900 MHz, the others' at 1900 MHz (hardware thermal slowdown)"
        in finding.title
    )
    assert "90 °C" in finding.cause
    assert finding.fixes[0].id == "cool-device"
    assert finding.cost.step_fraction == pytest.approx(0.4, abs=0.1)
    clock = next(fact for fact in finding.evidence if fact.unit == "Hz")
    assert (clock.value, clock.baseline) == (900e6, 1900e6)


def test_a_gpu_that_waits_for_its_host_is_not_slow_by_its_clock() -> None:
    """An idle GPU clocks down, too."""
    slow = slow_rank({"sm_clock_mhz": 900.0})
    assert codes(timed(slow, 0.3, 0.4)) == {"straggler-throttled"}
    assert codes(timed(slow, 0.0, 0.001)) == {"straggler-compute"}


@pytest.mark.parametrize(
    ("changes", "fix", "how"),
    [
        (
            {"sm_clock_mhz": 1000.0, "clock_reasons": ("power_cap",), "power_limit_watts": 400.0},
            "raise-power-limit",
            "nvidia-smi -i 2 -pl 700",
        ),
        (
            {"sm_clock_mhz": 1000.0, "clock_reasons": ("clocks_setting",)},
            "reset-clocks",
            "nvidia-smi -i 2 -rgc",
        ),
        (
            {"sm_clock_mhz": 1000.0, "clock_reasons": ("hw_power_brake",)},
            "replace-device",
            "RMA",
        ),
        ({"sm_clock_mhz": 1000.0, "clock_reasons": None}, "replace-device", "nvidia-smi -i 2 -q"),
    ],
)
def test_the_fix_is_by_the_reason(changes: dict[str, Any], fix: str, how: str) -> None:
    one = findings_by_code(slow_rank(changes))["straggler-throttled"]
    assert one.fixes[0].id == fix
    assert how in one.fixes[0].how


def test_without_clocks_only_a_reason_that_is_no_custom_decides() -> None:
    unknown = {"sm_clock_mhz": None}
    thermal = slow_rank({"clock_reasons": ("hw_thermal",)}, **unknown)
    assert findings_by_code(thermal)["straggler-throttled"].confidence == 0.6
    capped = slow_rank({"clock_reasons": ("power_cap",)}, **unknown)
    assert codes(capped) == {"straggler-compute"}
    all_hot = slow_rank({}, clock_reasons=("hw_thermal",), **unknown)
    assert codes(all_hot) == {"straggler-compute", "gpu-throttled"}


def test_a_clock_that_explains_too_little_is_not_the_cause() -> None:
    """85 % of the clock makes nothing twice as slow."""
    assert codes(slow_rank({"sm_clock_mhz": 1615.0})) == {"straggler-compute"}


def test_a_rank_that_shares_its_gpu_is_not_judged_by_it() -> None:
    low = gpus(4, of={2: {"sm_clock_mhz": 900.0, "clock_reasons": ("hw_thermal",)}})
    case = on_gpus(SLOW, low, device_uuid=lambda n: f"GPU-{min(n, 2):04x}")
    assert "straggler-throttled" not in codes(case)


def test_a_device_of_another_model_is_no_yardstick() -> None:
    slow = {"sm_clock_mhz": 900.0, "name": "Pretend L4", "clock_reasons": ("hw_thermal",)}
    assert "straggler-throttled" not in codes(slow_rank(slow))


def test_only_the_time_since_the_rank_is_slow_counts() -> None:
    slower = [Fault(2, phase, factor=3.0, start=340) for phase in ("forward", "backward")]
    case = on_gpus(Synthetic(steps=400, faults=slower), gpus(4))
    hot = gpus(4, of={2: {"sm_clock_mhz": 600.0, "clock_reasons": ("hw_thermal",)}})
    began = float(case.ranks[2].steps["end_ns"][339]) * 1e-9

    def hot_when(after: bool) -> Case:
        samples = [
            structs.replace(sample, devices=tuple(hot)) if (sample.at >= began) is after else sample
            for sample in case.device_samples
        ]
        return replace(case, device_samples=tuple(samples))

    one = findings_by_code(hot_when(after=True))["straggler-throttled"]
    assert one.since_step == pytest.approx(340, abs=10)
    assert codes(hot_when(after=False)) == {"straggler-compute", "gpu-throttled"}


def test_phases_stamped_on_the_host_show_no_slow_device() -> None:
    hot = gpus(4, of={2: {"sm_clock_mhz": 900.0, "clock_reasons": ("hw_thermal",)}})
    diagnosis = diagnose(on_gpus(SLOW, hot, clock="host"))
    assert not {finding.code for finding in diagnosis.findings} & CODES
    assert any("host" in gap.reason for gap in diagnosis.unexamined)


def test_the_pretend_driver_s_own_readings(nvml: PretendNvml, tmp_path: Path) -> None:
    """From NVML's structures through the recording's lines to the finding."""
    box = machine("throttled", gpus=4, pids=range(1000, 1004))
    lines = nvml.samples(tmp_path / "state", *[box] * 12)
    read = [device_sample(line) for line in lines]
    devices = [one.devices for one in read if one is not None]
    case = on_gpus(
        SLOW, gpus(4), device_uuid=lambda number: devices[0][number].uuid, device_name=None
    )
    samples = tuple(
        DeviceSample(one.at, devices[place % 12]) for place, one in enumerate(case.device_samples)
    )
    one = findings_by_code(replace(case, device_samples=samples))["straggler-throttled"]
    assert [culprit.rank for culprit in one.culprits] == [2]
    assert "hardware thermal slowdown" in one.title


# --- launch-bound, low-utilization ----------------------------------------------------------


def idle_job(
    utilization: float = 0.3, *, busy: float = 0.5, clock: str = "host", **changes: Any
) -> Case:
    base = changes.pop("base", BASE)
    devices = gpus(4, utilization=utilization, **changes)
    birth = {"loaders": [{"batch_size": 16}]}
    case = on_gpus(Synthetic(base=base, birth=birth, communication=0.0001), devices, clock=clock)
    unmeasured = []
    for rank in case.ranks:  # as the probe leaves it on CUDA
        steps = rank.steps.copy()
        steps["phases"][:, [1, 4, 5]] = np.nan
        unmeasured.append(replace(rank, steps=steps))
    return busy_hosts(replace(case, ranks=tuple(unmeasured)), busy)


def test_hosts_that_compute_all_the_time_while_gpus_idle() -> None:
    one = findings_by_code(idle_job())["launch-bound"]
    assert one.severity is Severity.WARNING
    assert one.culprits == ()
    assert one.victims == (0, 1, 2, 3)
    assert one.cost.step_fraction == pytest.approx(0.7)
    assert 'mode="reduce-overhead"' in one.fixes[0].how
    assert one.fixes[0].predicted is not None
    assert one.fixes[0].predicted.step_time_ratio == pytest.approx(0.3)
    assert "upper bound" in one.fixes[0].predicted.basis
    assert "low-utilization" not in findings_by_code(idle_job())


def leading(case: Case, *leads: float) -> Case:
    """The case with steps of 27 ms that devices timed; of each rank, by how much its host leads."""
    for rank, lead in enumerate(leads):
        case = timed(case, lead, lead + 0.001, only=[rank])
    return case


@pytest.mark.parametrize(
    ("leads", "slow"),
    [((0, 0, 0, 0), (0, 1, 2, 3)), ((0.002, 0.02, 0.1, 0), (0, 3)), ((0.02,) * 4, ())],
)
def test_only_hosts_that_are_not_ahead_hold_their_devices_back(
    leads: tuple[float, ...], slow: tuple[int, ...]
) -> None:
    reply = findings_by_code(leading(idle_job(), *leads)).get("launch-bound")
    assert (reply.victims if reply else ()) == slow
    assert reply is None or reply.confidence == (0.8 if leads == (0, 0, 0, 0) else 0.6)


def test_devices_that_stand_still_with_queued_work_are_not_blamed_on_the_host() -> None:
    elsewhere = {**BASE, "other": 0.03}
    one = findings_by_code(leading(idle_job(busy=0.05, base=elsewhere), *[0.3] * 4))[
        "low-utilization"
    ]
    assert [fix.id for fix in one.fixes] == ["trace-queue"]
    one = findings_by_code(leading(idle_job(busy=0.05, base=elsewhere), *[0.008] * 4))[
        "low-utilization"
    ]
    assert one.fixes[0].id == "overlap-host-work"  # ahead again, but not before the forward pass


def test_idle_gpus_with_free_memory_take_a_larger_batch() -> None:
    one = findings_by_code(idle_job(busy=0.05, memory_used=10 * GIB))["low-utilization"]
    assert one.severity is Severity.WARNING
    assert "batch is small" in one.cause
    assert "batch_size=32" in one.fixes[0].how
    assert "learning rate" in one.fixes[0].how


def test_without_free_memory_no_larger_batch_is_proposed() -> None:
    one = findings_by_code(idle_job(busy=0.05, memory_used=70 * GIB))["low-utilization"]
    assert [fix.id for fix in one.fixes] == ["find-host-work"]


def test_a_host_that_is_elsewhere_is_named() -> None:
    one = findings_by_code(idle_job(busy=0.05, base={**BASE, "other": 0.03}))["low-utilization"]
    assert "no phase" in one.cause
    assert one.fixes[0].id == "overlap-host-work"


@pytest.mark.parametrize(
    "case",
    [
        idle_job(0.95),
        idle_job(base={**BASE, "input": 0.01}),
        replace(idle_job(), device_samples=()),
    ],
)
def test_gpus_that_are_busy_or_wait_for_data_are_not_idle(case: Case) -> None:
    assert not codes(case) & {"launch-bound", "low-utilization"}


def test_a_gpu_that_spins_for_another_is_no_idle_one() -> None:
    """One of four reads low: the others wait for its rank at 100 %."""
    case = idle_job()
    spinning = gpus(4, of={1: {"utilization": 0.3}}, utilization=1.0)
    samples = tuple(
        structs.replace(sample, devices=tuple(spinning)) for sample in case.device_samples
    )
    assert not codes(replace(case, device_samples=samples)) & {"launch-bound", "low-utilization"}


def test_a_gpu_that_is_not_known_keeps_the_rules_silent() -> None:
    case = idle_job()
    last = case.ranks[3]
    ranks = (*case.ranks[:3], with_metadata(last, device_uuid="MIG-1"))
    assert not codes(replace(case, ranks=ranks)) & {"launch-bound", "low-utilization"}


# --- transfer-bound -------------------------------------------------------------------------

COPIES = {**BASE, "transfer": 0.008}


@pytest.mark.parametrize(
    ("pinned", "cause", "how"),
    [
        (False, "pin_memory=False", "pin_memory=True"),
        (True, "copies are large", "torch.cuda.Stream"),
        (None, "It is unknown", "non_blocking=True"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 4])
def test_copies_that_all_ranks_wait_for(
    pinned: bool | None, cause: str, how: str, ranks: int
) -> None:
    job = Synthetic(ranks=ranks, base=COPIES)
    one = findings_by_code(on_gpus(job, gpus(ranks), loaders=[{"pin_memory": pinned}]))[
        "transfer-bound"
    ]
    assert cause in one.cause
    assert how in one.fixes[0].how
    assert one.cost.step_fraction == pytest.approx(0.23, abs=0.05)


def test_hosts_that_are_ahead_do_not_wait_for_copies() -> None:
    case = on_gpus(Synthetic(base=COPIES), gpus(4), loaders=[{"pin_memory": True}])
    assert "no host waits" in findings_by_code(timed(case, 0.3, 0.4))["transfer-bound"].cause
    assert "no host waits" not in findings_by_code(timed(case, 0.0, 0.001))["transfer-bound"].cause


@pytest.mark.parametrize(
    "case",
    [
        on_gpus(Synthetic(), gpus(4)),
        on_gpus(Synthetic(base=COPIES), gpus(4), clock="host"),
    ],
)
def test_few_copies_or_the_hosts_word_for_them_are_not_enough(case: Case) -> None:
    assert "transfer-bound" not in codes(case)


# --- precision-full -------------------------------------------------------------------------


def precise(**birth: Any) -> Case:
    told = {"precision": "float32", "tf32": False, "tf32_convolutions": True, **birth}
    return on_gpus(Synthetic(), gpus(4), **told)


def test_float32_on_a_device_with_tensor_cores() -> None:
    one = findings_by_code(precise())["precision-full"]
    assert one.severity is Severity.INFO
    assert "bfloat16" in one.fixes[0].how
    assert "Convolutions use TF32 already" in one.cause
    gain = one.fixes[0].predicted
    assert gain is not None
    assert gain.step_time_ratio is not None
    # Forward and backward are 22 of about 29 ms, and at best take a seventeenth.
    assert gain.step_time_ratio == pytest.approx(1 - 22 / 29 * 16 / 17, abs=0.03)
    assert "upper bound" in gain.basis


def test_what_the_host_timed_is_not_taken_for_the_devices_share() -> None:
    gain = findings_by_code(precise(clock="host"))["precision-full"].fixes[0].predicted
    assert gain is not None
    assert gain.step_time_ratio is None
    assert "was not measured" in gain.basis


def test_before_ampere_it_is_float16_with_a_scaler() -> None:
    one = findings_by_code(precise(device_capability=[7, 0], tf32=None))["precision-full"]
    assert "GradScaler" in one.fixes[0].how
    assert len(one.fixes) == 1


def test_unknown_peak_rates_give_no_prediction() -> None:
    gain = findings_by_code(precise(device_capability=[12, 0]))["precision-full"].fixes[0].predicted
    assert gain is not None
    assert gain.step_time_ratio is None


@pytest.mark.parametrize(
    "birth",
    [
        {"precision": "float32+bfloat16+autocast"},
        {"precision": "bfloat16"},
        {"precision": None},
        {"tf32": True},
        {"tf32": None},
        {"device_capability": [6, 1]},
        {"device_capability": None},
        {"device_capability": "9.0"},
        {"strategy": "fsdp"},
        {"strategy": "manual"},
    ],
)
def test_what_is_short_already_or_not_known_is_left_alone(birth: dict[str, Any]) -> None:
    assert "precision-full" not in codes(precise(**birth))


# --- imbalance-device -----------------------------------------------------------------------


def data_parallel(first: Mapping[str, Any], others: Mapping[str, Any], **birth: Any) -> Case:
    """One process on four devices."""
    devices: list[Device] = gpus(4, of={0: first}, **{"pids": (1000,), **others})
    told = {"data_parallel": {"devices": 4}, "strategy": "dp", **birth}
    return on_gpus(Synthetic(ranks=1), devices, **told)


def test_the_first_device_carries_more() -> None:
    first = {"memory_used": 40 * GIB, "utilization": 0.9}
    case = data_parallel(first, {"memory_used": 20 * GIB, "utilization": 0.5})
    one = findings_by_code(case)["imbalance-device"]
    assert one.severity is Severity.WARNING
    assert "100 % more memory" in one.title
    assert "40 % more of the time" in one.title
    assert [culprit.rank for culprit in one.culprits] == [0]
    assert "--nproc-per-node=4" in one.fixes[0].how


def test_memory_alone_is_worth_knowing_until_it_runs_out() -> None:
    roomy = data_parallel({"memory_used": 40 * GIB}, {"memory_used": 20 * GIB})
    assert findings_by_code(roomy)["imbalance-device"].severity is Severity.INFO
    full = data_parallel({"memory_used": 76 * GIB}, {"memory_used": 20 * GIB})
    assert findings_by_code(full)["imbalance-device"].severity is Severity.WARNING


@pytest.mark.parametrize(
    "case",
    [
        data_parallel({}, {}),
        data_parallel({"memory_used": 40 * GIB}, {"memory_used": 20 * GIB}, data_parallel=None),
        data_parallel({"memory_used": 40 * GIB}, {"memory_used": 20 * GIB, "pids": (7,)}),
        on_gpus(Synthetic(), gpus(4, of={0: {"memory_used": 70 * GIB}})),
    ],
)
def test_alike_devices_or_one_a_process_are_balanced(case: Case) -> None:
    assert "imbalance-device" not in codes(case)


# --- limits ---------------------------------------------------------------------------------


def test_what_equals_a_limit_of_a_device_counts() -> None:
    hot = slow_rank({"sm_clock_mhz": 950.0, "clock_reasons": ("hw_thermal",)})
    cost = findings_by_code(hot)["straggler-throttled"].cost.step_fraction
    assert equal_counts_as(hot, "straggler-throttled", "cost", cost) == "more"
    assert equal_counts_as(hot, "straggler-throttled", "clock", 0.5) == "more"
    idle = idle_job(0.5)
    for code, limit, value, side in (
        ("launch-bound", "utilization", 0.5, "more"),
        ("launch-bound", "busy", 1.0, "more"),
        ("low-utilization", "utilization", 0.5, "more"),
        ("launch-bound", "excuse", most_share(measure(idle), INPUT), "more"),
    ):
        case = idle if code == "launch-bound" else idle_job(0.5, busy=0.05)
        assert equal_counts_as(case, code, limit, value) == side, (code, limit)
    copies = on_gpus(Synthetic(base=COPIES), gpus(4))
    share = findings_by_code(copies)["transfer-bound"].evidence[0].value
    assert equal_counts_as(copies, "transfer-bound", "share", share) == "more"


@pytest.mark.parametrize(
    ("limit", "value", "memory", "utilization"),
    [
        ("memory", 1.0, 20 * GIB, 0.75),
        ("idle", 0.25, 40 * GIB, 0.5),
        ("full", 0.5, 20 * GIB, 0.75),
    ],
)
def test_what_equals_a_limit_of_replicas_counts(
    limit: str, value: float, memory: int, utilization: float
) -> None:
    """40 of 80 GiB are in use on the first device, which is busy for 75 % of the time."""
    case = data_parallel(
        {"memory_used": 40 * GIB, "utilization": 0.75},
        {"memory_used": memory, "utilization": utilization},
    )
    assert equal_counts_as(case, "imbalance-device", limit, value) == "more"


@pytest.mark.parametrize(
    ("capability", "tf32", "reported"),
    [
        ([8, 0], False, True),
        ([8, 0], None, False),
        ([7, 5], None, True),
        ([7, 0], None, True),
        ([6, 9], None, False),
    ],
)
def test_which_shorter_types_a_device_has(
    capability: list[int], tf32: bool | None, reported: bool
) -> None:
    case = precise(device_capability=capability, tf32=tf32)
    assert ("precision-full" in codes(case)) is reported


@pytest.mark.parametrize(
    ("clock", "code"), [(1330.0, "straggler-throttled"), (1360.0, "straggler-compute")]
)
def test_the_clock_must_explain_half_of_the_excess(clock: float, code: str) -> None:
    """Twice the 22 of 27 ms: of 1900 MHz, 1345 explain 11 ms."""
    assert codes(slow_rank({"sm_clock_mhz": clock})) == {code}


@pytest.mark.parametrize(("share", "code"), [(0.05, True), (0.2, False)])
def test_a_reason_that_the_others_give_too_tells_no_device_apart(share: float, code: bool) -> None:
    """Without clocks, the reasons alone decide."""
    case = slow_rank({"clock_reasons": ("hw_thermal",)}, sm_clock_mhz=None)
    every = int(1 / share)
    warm = tuple(gpus(4, sm_clock_mhz=None, clock_reasons=("hw_thermal",)))
    samples = tuple(
        structs.replace(one, devices=warm) if place % every == 0 else one
        for place, one in enumerate(case.device_samples)
    )
    told = "straggler-throttled" in codes(replace(case, device_samples=samples))
    assert told is code


def test_of_unlike_devices_the_oldest_says_which_type() -> None:
    capability = lambda number: [7, 5] if number == 2 else [9, 0]  # noqa: E731
    one = findings_by_code(precise(device_capability=capability, tf32=False))["precision-full"]
    assert [row.value for row in one.evidence] == ["float32", "7.5"]
    assert one.evidence[0].baseline == "float16"
