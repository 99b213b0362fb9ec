"""Frames as OpenMetrics: right values, nothing unknown, duplicated or unbounded."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from mgpu_probes.inprocess.training_objects import UnseenWaits
from msgspec import structs

from mgpu_doctor.case.device_samples import Device, DeviceSample, Ecc, NvLink, Pcie, XidEvent
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.export import metrics_page
from mgpu_doctor.export.job_metrics import MOST_CULPRITS
from mgpu_doctor.export.metrics_page import Watching
from mgpu_doctor.export.rank_metrics import MOST_RANKS
from mgpu_doctor.findings import Culprit
from mgpu_doctor.live.frame import Frame
from tests.support import diagnoses, frames, multi_host
from tests.support.gpus import busy_waiting
from tests.support.scraping import Page
from tests.support.synthetic import Synthetic, make_case, make_rank, records

DOCUMENT = Path(__file__).parents[3] / "docs/export.md"
HERE = "node-a"
FULL = frames.gpu(
    2,
    memory_busy=0.25,
    fan=0.5,
    max_sm_clock_mhz=1980.0,
    memory_clock_mhz=2619.0,
    clock_reasons=("power_cap", "sw_thermal"),
    pids=(4002, 999),
    pcie=Pcie(4, 8, 5, 16, 1e9, 2e9, 7),
    nvlinks=(
        NvLink(0, True, "switch", (("replay", 2),)),
        NvLink(1, False, "switch", (("replay", 3), ("crc_flit", 1))),
        NvLink(2),
    ),
    nvlink_sent=3e9,
    nvlink_received=4e9,
    ecc=Ecc(11, 1, 110, 10, 3, True, False),
)
DEVICES = DeviceSample(frames.AT, (FULL,), events=(XidEvent(frames.AT, 2, 79),) * 2)


def written(frame: Frame, here: str = HERE) -> Page:
    return Page(
        (metrics_page.lines(metrics_page.families(frame, here)) + metrics_page.END).decode()
    )


class OneByOne:
    """A source that shows the given frames, the last one for ever."""

    def __init__(self, *shown: Frame) -> None:
        self._shown = list(shown)
        self.turns = 0

    def frame(self, passed: float, /) -> Frame:
        assert passed == 0
        return self._shown.pop(0) if len(self._shown) > 1 else self._shown[0]

    def next_job(self) -> None:
        self.turns += 1


def watched(source: OneByOne, *, fixed: bool = False) -> Page:
    return Page((Watching(source, HERE, fixed=fixed).text() + metrics_page.END).decode())


@pytest.mark.parametrize("name", frames.ALL)
def test_every_frame_makes_a_page_that_parses(name: str) -> None:
    assert written(frames.ALL[name]).named()


def test_ranks_and_their_steps() -> None:
    made = written(frames.STRAGGLER)
    assert made.of("mgpu_steps_total", rank="2", host="node-a") == [400]
    assert made.of("mgpu_step_phase_seconds", rank="2", phase="input") == [0.031]
    assert made.of("mgpu_step_phase_seconds", rank="1", phase="wait") == [0.0292]
    assert made.of("mgpu_step_own_seconds", rank="2") == [pytest.approx(0.0655)]
    assert made.of("mgpu_step_seconds", rank="1") == [pytest.approx(0.0662)]
    assert made.labels("mgpu_rank_state")[0] == {"rank": "0", "host": HERE, "state": "running"}
    assert made.of("mgpu_ranks", state="running") == [4]
    assert made.of("mgpu_ranks", state="hung") == [0]
    assert made.of("mgpu_ranks_left_out") == [0]
    assert made.of("mgpu_job_steps_per_second") == [15.1]
    assert made.of("mgpu_diagnosis_age_seconds") == [4.0]


def test_the_clock_of_ranks_on_gpus_and_how_far_their_hosts_are_ahead() -> None:
    made = written(frames.frame(diagnose(busy_waiting())))
    assert made.of("mgpu_rank_clock", clock="device") == [1] * 4
    assert made.of("mgpu_rank_run_ahead_seconds", rank="0") == [pytest.approx(0.3)]
    assert made.of("mgpu_rank_run_ahead_most_seconds", rank="2") == [pytest.approx(0.001)]
    assert made.of("mgpu_rank_bound", rank="0", by="device") == [1]
    assert made.of("mgpu_rank_bound", rank="2", by="host") == [1]
    (share,) = made.of("mgpu_rank_busy_waiting_ratio", rank="1", waits_for="2")
    assert share > 0.5
    assert not made.of("mgpu_rank_busy_waiting_ratio", rank="2")
    on_cpu = written(frames.STRAGGLER)
    assert not on_cpu.of("mgpu_rank_run_ahead_seconds")


def test_own_work_that_may_hold_waits_has_no_series() -> None:
    diagnosis = diagnoses.straggler()
    hidden = replace(diagnosis.ranks[2], unseen_waits=UnseenWaits.CUDA_GRAPH)
    ranks = (*diagnosis.ranks[:2], hidden, *diagnosis.ranks[3:])
    made = written(frames.frame(replace(diagnosis, ranks=ranks)))
    assert made.labels("mgpu_rank_unseen_waits") == [
        {"rank": "2", "host": HERE, "reason": "cuda_graph"}
    ]
    assert [label["rank"] for label in made.labels("mgpu_step_own_seconds")] == ["0", "1", "3"]


def test_the_job_and_its_findings() -> None:
    made = written(frames.STRAGGLER)
    assert made.labels("mgpu_job_info") == [
        {
            "id": "20260917-101500-4711",
            "framework": "torch",
            "strategy": "ddp",
            "launcher": "torchrun",
        }
    ]
    assert "train.py" not in made.text
    outcomes = {next(iter(label.values())) for label in made.labels("mgpu_job_outcome")}
    assert outcomes == {one.value for one in Outcome}
    assert made.of("mgpu_job_outcome", mgpu_job_outcome="running") == [1]
    assert made.of("mgpu_job_outcome", mgpu_job_outcome="failed") == [0]
    none = {"rank": "", "host": "", "device": ""}
    assert made.labels("mgpu_finding_active") == [
        {
            "rule": "straggler-input",
            "severity": "warning",
            "rank": "2",
            "host": "node-a",
            "device": "",
        },
        {"rule": "coverage-low", "severity": "info", **none},
    ]
    assert made.of("mgpu_finding_cost_ratio") == [0.44]


def test_everything_that_a_gpu_can_tell() -> None:
    made = written(frames.frame(diagnoses.straggler(), devices=DEVICES))
    assert made.labels("mgpu_gpu_power_watts") == [
        {"gpu": "2", "UUID": "GPU-2", "Hostname": HERE, "modelName": "NVIDIA H100 80GB HBM3"}
    ]
    values = {
        "mgpu_gpu_utilization_ratio": 0.92,
        "mgpu_gpu_memory_busy_ratio": 0.25,
        "mgpu_gpu_memory_used_bytes": 62 << 30,
        "mgpu_gpu_memory_size_bytes": 80 << 30,
        "mgpu_gpu_power_watts": 602,
        "mgpu_gpu_power_limit_watts": 700,
        "mgpu_gpu_temperature_celsius": 62,
        "mgpu_gpu_fan_ratio": 0.5,
        "mgpu_gpu_sm_clock_hertz": 1755e6,
        "mgpu_gpu_sm_clock_most_hertz": 1980e6,
        "mgpu_gpu_memory_clock_hertz": 2619e6,
        "mgpu_gpu_pcie_generation": 4,
        "mgpu_gpu_pcie_generation_most": 5,
        "mgpu_gpu_pcie_width_lanes": 8,
        "mgpu_gpu_pcie_width_most_lanes": 16,
        "mgpu_gpu_remapped_rows": 3,
        "mgpu_gpu_remap_pending": 1,
        "mgpu_gpu_remap_failed": 0,
        "mgpu_gpu_readable": 1,
        "mgpu_gpu_lost": 0,
    }
    assert {name: made.of(name) for name in values} == {k: [v] for k, v in values.items()}
    assert made.of("mgpu_gpu_clock_limited", reason="sw_thermal") == [1]
    assert made.of("mgpu_gpu_clock_limited", reason="hw_thermal") == [0]
    assert made.of("mgpu_gpu_pcie_bytes_per_second", direction="sent") == [1e9]
    assert made.of("mgpu_gpu_pcie_bytes_per_second", direction="received") == [2e9]
    assert made.of("mgpu_gpu_nvlink_bytes_per_second", direction="sent") == [3e9]
    assert made.of("mgpu_gpu_nvlinks", state="up") == [1]
    assert made.of("mgpu_gpu_nvlinks", state="down") == [1]
    assert made.of("mgpu_gpu_nvlink_errors_total", kind="replay") == [5]
    assert made.of("mgpu_gpu_pcie_errors_total", kind="replay") == [7]
    assert made.of("mgpu_gpu_ecc_errors_total", kind="uncorrected") == [1]
    assert made.of("mgpu_gpu_ecc_lifetime_errors_total", kind="corrected") == [110]


def test_which_rank_runs_on_which_gpu() -> None:
    job = frames.frame(diagnoses.straggler(), devices=DEVICES)
    (info,) = written(job).labels("mgpu_rank_gpu_info")
    assert (info["rank"], info["host"], info["gpu"], info["UUID"]) == ("2", HERE, "2", "GPU-2")
    assert written(job, "elsewhere").labels("mgpu_rank_gpu_info") == []


def test_a_rank_s_memory_is_known_on_its_own_host() -> None:
    host = HostSample(frames.AT, None, None, None, None, None, processes={4001: (1.0, 2**30)})
    job = frames.frame(diagnoses.straggler(), host=host)
    assert written(job).of("mgpu_rank_resident_bytes", rank="1") == [2**30]
    assert written(job, "elsewhere").of("mgpu_rank_resident_bytes") == []


def test_device_memory_as_the_framework_counts_it() -> None:
    steps = records(Synthetic(ranks=2, steps=3))
    steps[0]["device_bytes"][-1] = 7 << 30
    made = written(frames.frame(diagnose(make_case([make_rank(n, steps[n]) for n in range(2)]))))
    assert made.of("mgpu_rank_device_bytes", rank="0") == [7 << 30]
    assert made.of("mgpu_rank_device_bytes", rank="1") == []
    assert made.of("mgpu_steps_total", rank="1") == [3]


def test_what_is_unknown_has_no_series() -> None:
    knows_nothing = frames.frame(
        None, devices=DeviceSample(frames.AT, (Device(0),)), host=frames.UNKNOWN.host
    )
    told = set(written(knows_nothing).named())
    assert told == {"mgpu_gpu_readable", "mgpu_gpu_xids_heard", "mgpu_jobs_unwatched"}
    made = written(frames.UNKNOWN)
    assert not [name for name in made.named() if name.startswith(("mgpu_step", "mgpu_gpu"))]
    assert made.of("mgpu_ranks", state="missing") == [1]
    assert made.of("mgpu_ranks_left_out") == [1]
    assert "NaN" not in made.text


@pytest.mark.parametrize(
    ("trouble", "lost"),
    [
        ("GPU is lost", [1]),
        ("GPU requires reset", [1]),
        ("not supported: memory, utilization", [0]),
        ("out of reach: Unknown Error", []),
    ],
    ids=["lost", "reset", "mute", "unclear"],
)
def test_lost_is_reported_only_where_the_driver_says_it(trouble: str, lost: list[float]) -> None:
    made = written(
        frames.frame(None, devices=DeviceSample(frames.AT, (Device(3, trouble=trouble),)))
    )
    assert made.of("mgpu_gpu_lost", gpu="3") == lost
    assert made.of("mgpu_gpu_readable", gpu="3") == [0]


def test_hostile_names_are_tamed() -> None:
    wild = 'a"} 1\n# EOF\nfake{x="\\'
    bad = diagnoses.straggler()
    bad = replace(bad, case=replace(bad.case, job=replace(bad.case.job, id=wild + "x" * 999)))
    made = written(frames.frame(bad))
    (told,) = made.labels("mgpu_job_info")
    assert told["id"].startswith('a"} 1 # EOF fake{x="\\')
    assert len(told["id"]) == 200
    hostile = written(frames.HOSTILE, frames.HOSTILE.source)
    assert "\x1b" not in hostile.text
    assert "\u202e" not in hostile.text


def test_a_label_is_one_printable_line_whatever_it_holds() -> None:
    wild = 'a\\nb\\\nc"}\r\n# EOF\x00\x9b2J\x85\u2028\ud800\x1b]0;x\x07d'
    job = replace(diagnoses.straggler().case.job, id=wild, framework=wild, launcher=wild)
    bad = diagnoses.straggler()
    device = structs.replace(FULL, name=wild, uuid=wild)
    shown = frames.frame(
        replace(bad, case=replace(bad.case, job=job)),
        devices=DeviceSample(frames.AT, (device,)),
        host=frames.HOST,
    )
    made = written(shown, wild)
    assert made.text.count("# EOF\n") == 1
    assert all(line.isprintable() for line in made.text.split("\n"))
    expected = 'a\\nb\\ c"} # EOF\ufffdd'
    assert made.labels("mgpu_job_info")[0]["framework"] == expected
    assert made.labels("mgpu_gpu_power_watts")[0]["UUID"] == expected
    assert made.labels("mgpu_host_load1")[0]["host"] == expected


def test_a_thousand_ranks_fit_in_a_page() -> None:
    made = written(frames.frame(diagnoses.straggler(1024, 77, Outcome.RUNNING)))
    assert len(made.of("mgpu_steps_total")) == 1024
    assert len(made.text) < 2_000_000


def test_of_more_ranks_the_blamed_are_kept() -> None:
    made = written(frames.frame(diagnoses.straggler(3000, 2999, Outcome.RUNNING)))
    assert len(made.of("mgpu_rank_state")) == MOST_RANKS
    assert len(made.of("mgpu_steps_total", rank="2999")) == 1
    assert made.of("mgpu_ranks", state="running") == [3000]
    assert made.of("mgpu_ranks_left_out") == [3000 - MOST_RANKS]


def test_culprits_of_a_finding_are_bounded_and_never_twice() -> None:
    crowd = replace(
        diagnoses.slow_input(), culprits=tuple(Culprit(number) for number in range(500))
    )
    bad = replace(diagnoses.straggler(), findings=(crowd, crowd, *[diagnoses.LOW_COVERAGE] * 900))
    made = written(frames.frame(bad))
    assert len(made.of("mgpu_finding_active", rule="straggler-input")) == MOST_CULPRITS
    assert len(made.of("mgpu_finding_active", rule="coverage-low")) == 1


def test_xids_are_counted_from_sample_to_sample() -> None:
    unnamed = DeviceSample(frames.AT, (FULL,), events=(XidEvent(frames.AT, None, 31),))
    watching = Watching(
        OneByOne(frames.frame(None, devices=DEVICES), frames.frame(None, devices=unnamed)),
        HERE,
        fixed=True,
    )
    watching.text()
    watching.text()
    made = Page((watching.text() + metrics_page.END).decode())
    assert made.of("mgpu_gpu_xid_events_total", gpu="2", UUID="GPU-2", xid="79") == [2]
    assert made.of("mgpu_gpu_xid_events_total", gpu="", xid="31") == [2]
    assert made.of("mgpu_gpu_xids_heard", Hostname=HERE) == [1]
    deaf = structs.replace(unnamed, events_trouble="XIDs cannot be received: no permission")
    assert written(frames.frame(None, devices=deaf)).of("mgpu_gpu_xids_heard") == [0]


def test_when_the_job_is_over_the_next_one_is_mentioned() -> None:
    over = frames.frame(diagnoses.healthy(), others=1)
    source = OneByOne(over, frames.HEALTHY)
    made = watched(source)
    assert source.turns == 1
    assert made.of("mgpu_job_outcome", mgpu_job_outcome="running") == [1]
    named = OneByOne(over, frames.HEALTHY)
    assert watched(named, fixed=True).of("mgpu_jobs_unwatched") == [1]
    assert named.turns == 0
    alone = OneByOne(structs.replace(over, others=0))
    watched(alone)
    assert alone.turns == 0
    running = OneByOne(structs.replace(frames.HEALTHY, others=3))
    watched(running)
    assert running.turns == 0


def test_every_name_is_documented() -> None:
    job = diagnoses.straggler()
    host = structs.replace(frames.HOST, pressure={"cpu": 1.5}, processes={4002: (1.0, 2**30)})
    made = watched(
        OneByOne(
            frames.frame(
                frames.together(replace(job, ideal_step_seconds=1.0, waste_fraction=0.1), 0.9, 0.8),
                devices=DEVICES,
                host=host,
            )
        )
    )
    documented = set(re.findall(r"`(mgpu_\w+)", DOCUMENT.read_text(encoding="utf-8")))
    on_gpus = diagnose(busy_waiting())
    hidden = replace(on_gpus.ranks[0], unseen_waits=UnseenWaits.CUDA_GRAPH)
    on_gpus = replace(on_gpus, ranks=(hidden, *on_gpus.ranks[1:]))
    names = {*made.named(), *written(frames.frame(on_gpus)).named()}
    assert names <= documented
    missing = {name for name in documented if "_exporter_" not in name} - names
    assert missing == {"mgpu_rank_device_bytes"}


def test_each_host_of_a_job_has_its_own_gpus() -> None:
    made = written(multi_host.FOUR_HOSTS)
    hosts = [f"trainer-gpu-{number:04}" for number in range(4)]
    assert {series["Hostname"] for series in made.labels("mgpu_gpu_utilization_ratio")} == {*hosts}
    for number, host in enumerate(hosts):
        values = made.of("mgpu_gpu_utilization_ratio", Hostname=host, gpu="0")
        assert values == [pytest.approx((50 + number) / 100)]


def test_xids_of_several_hosts_are_counted_once() -> None:
    events = (XidEvent(frames.AT, 0, 79),)
    first, second = (
        DeviceSample(frames.AT, (frames.gpu(0, uuid=f"GPU-{host}"),), host=host, events=events)
        for host in ("node-a", "node-b")
    )
    frame = frames.frame(diagnoses.straggler(), devices=first, elsewhere=(second,))
    watching = Watching(OneByOne(frame, frame), HERE, fixed=False)
    for _ in range(2):
        page = Page((watching.text() + metrics_page.END).decode())
    assert page.of("mgpu_gpu_xid_events_total", Hostname="node-a") == [1]
    assert page.of("mgpu_gpu_xid_events_total", Hostname="node-b") == [1]
