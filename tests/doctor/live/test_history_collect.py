"""Histories for graphs from samples and step records, live and recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.live import history_measures
from mgpu_doctor.live.history_collector import MOST_DEVICES, Collector, History
from mgpu_doctor.live.history_measures import (
    OF_DEVICE,
    OF_PRESSURE,
    OF_TRAFFIC,
    UTILIZATION,
    Measure,
)
from mgpu_doctor.live.history_spans import Spans, gaps
from mgpu_doctor.live.rank_history import rank_spans
from mgpu_doctor.recording.records import HISTORY_DTYPE
from mgpu_doctor.tui.screens.graph_selection import Kind, Lane, Subject, lanes, spans, subjects
from tests.support import histories
from tests.support.frames import gpu
from tests.support.gpus import busy_waiting
from tests.support.histories import ASLEEP, BEGAN, ENDED, LOST, SLOW_FROM
from tests.support.synthetic import Synthetic, make_rank, records


def of(history: History, kind: Kind, number: int | None, measure: Measure) -> Spans:
    return spans(history, Lane(Subject(kind, number), measure, ""))


def names(history: History) -> list[str]:
    return [subject.title for subject in subjects(history)]


def test_a_lost_gpu_and_a_sleeping_sampler_leave_gaps_where_they_were() -> None:
    past = histories.history()
    asleep = (BEGAN + ASLEEP.start - 1, BEGAN + ASLEEP.stop - 1)
    lost = (BEGAN + LOST.start - 1, BEGAN + LOST.stop - 1)
    others = gaps(of(past, Kind.GPU, 0, UTILIZATION), BEGAN, ENDED - 2, 1)
    assert others == [asleep]
    assert gaps(of(past, Kind.GPU, 2, UTILIZATION), BEGAN, ENDED - 2, 1) == [lost, asleep]


def test_live_and_recorded_samples_draw_the_same() -> None:
    seconds = list(histories.sampled())
    devices = [histories.devices(second) for second in seconds]
    hosts = [histories.host(second) for second in seconds]
    recorded = Collector.of(devices, hosts).history(ENDED)
    live = histories.history()
    for kind, number, measure in (
        (Kind.GPU, 2, UTILIZATION),
        (Kind.HOST, None, history_measures.CPU),
        (Kind.HOST, None, OF_PRESSURE[0]),
    ):
        one, other = of(recorded, kind, number, measure), of(live, kind, number, measure)
        assert gaps(one, BEGAN, ENDED, 0.5) == gaps(other, BEGAN, ENDED, 0.5)
        newest = slice(-300, None)
        assert one.mean[newest].tolist() == other.mean[newest].tolist()


def test_ranks_on_gpus_are_drawn_by_the_steps_that_these_timed() -> None:
    case = busy_waiting()
    rank = case.ranks[0]
    assert rank.device_times is not None
    some = replace(rank, device_times=rank.device_times[::8])
    drawn = rank_spans([some], history_measures.WAIT)
    assert len(drawn.mean) == len(rank.device_times[::8])
    assert np.median(drawn.mean) == pytest.approx(0.042, rel=0.05)
    assert len(rank_spans([some], history_measures.STEP).mean) == len(rank.steps)


def test_a_replay_shows_nothing_of_what_came_later() -> None:
    whole = histories.history()
    early = replace(whole, at=BEGAN + 100)
    known = of(early, Kind.GPU, 0, UTILIZATION)
    assert len(known)
    assert known.end.max() <= BEGAN + 100


def test_subjects_are_those_that_were_seen() -> None:
    assert names(History(BEGAN)) == ["host"]
    assert names(histories.history())[:3] == ["all GPUs", "GPU 0", "GPU 1"]
    assert names(histories.history())[9:] == ["host", "job", "all ranks", *_numbered("rank", 4)]


def test_all_of_a_kind_are_a_graph_each() -> None:
    past = histories.history()
    shown = lanes(past, Subject(Kind.GPUS), UTILIZATION)
    assert [lane.title for lane in shown] == _numbered("GPU", 8)
    assert [lane.title for lane in lanes(past, Subject(Kind.RANK, 1), UTILIZATION)] == [
        "step time",
        "own work",
        "wait",
        "input",
    ]


def test_pressure_is_the_share_of_time_between_two_looks_at_its_counter() -> None:
    collector = Collector()
    for at, stood in ((0, 5.0), (1, 5.25), (11, 10.25), (12, 1.0)):
        some = HostSample(BEGAN + at, None, None, None, None, None, pressure={"cpu": stood})
        collector.add_host(some)
    told = of(collector.history(ENDED), Kind.HOST, None, OF_PRESSURE[0])
    assert told.mean.tolist() == [0.25, 0.5]
    assert (told.start - BEGAN).tolist() == [0, 1]
    assert (told.end - BEGAN).tolist() == [1, 11]


def test_traffic_is_the_growth_of_its_counters_and_a_reboot_is_a_gap() -> None:
    collector = Collector()
    for at, sent in ((0, 1000), (2, 5000), (3, 10), (4, 110)):
        sample = HostSample(BEGAN + at, None, None, None, None, None, traffic={"sent": sent})
        collector.add_host(sample)
    (measure,) = (one for one in OF_TRAFFIC if one.name == "network sent")
    known = of(collector.history(ENDED), Kind.HOST, None, measure)
    assert known.mean.tolist() == [2000.0, 100.0]
    assert (known.end - BEGAN).tolist() == [2, 4]


def test_measures_a_gpu_never_reported_are_unknown() -> None:
    collector = Collector()
    collector.add_devices(DeviceSample(BEGAN, (gpu(0, power_watts=None, memory_total=None),)))
    past = collector.history(ENDED)
    known = {one.name for one in OF_DEVICE if len(of(past, Kind.GPU, 0, one))}
    assert known == {"utilization", "temperature", "clock"}


def test_devices_without_end_are_not_all_kept() -> None:
    collector = Collector()
    for first in (0, MOST_DEVICES):
        several = tuple(gpu(first + index) for index in range(MOST_DEVICES))
        collector.add_devices(DeviceSample(BEGAN + first, several))
    assert len(collector.history(ENDED).devices) == MOST_DEVICES


def test_steps_are_drawn_from_the_black_box() -> None:
    past = histories.history()
    slow, healthy = (of(past, Kind.RANK, rank, history_measures.INPUT) for rank in (2, 0))
    assert slow.mean[SLOW_FROM:].min() > 0.009 > healthy.mean.max()
    own, step = (
        of(past, Kind.RANK, 2, one) for one in (history_measures.OWN, history_measures.STEP)
    )
    wait = of(past, Kind.RANK, 2, history_measures.WAIT)
    assert own.mean + wait.mean == pytest.approx(step.mean, rel=1e-4)
    assert (step.end - step.start) == pytest.approx(step.mean, abs=1e-6)
    assert of(past, Kind.JOB, None, history_measures.LOSS).mean[0] == pytest.approx(3.0)
    rate = of(past, Kind.JOB, None, history_measures.SAMPLE_RATE)
    assert rate.mean == pytest.approx(32 / of(past, Kind.RANK, 0, history_measures.STEP).mean)
    assert not len(of(past, Kind.JOB, None, history_measures.TOKEN_RATE))


def windows(ends: list[float], wall: float, steps: int) -> Records:
    made = np.zeros(len(ends), HISTORY_DTYPE)
    made["end_ns"] = np.array(ends) * 1e9
    made["wall_ns"] = round(wall * 1e9)
    made["micro_batches"] = steps
    made["phases"] = np.nan
    made["phases"][:, PHASES.index("wait")] = wall / 2
    made["loss"] = np.nan
    return made


def test_what_the_ring_has_forgotten_is_reported_by_the_boxs_coarse_history() -> None:
    steps = records(Synthetic(ranks=1, steps=50))[0]
    first = float(steps["end_ns"][0] - steps["wall_ns"][0]) * 1e-9
    old = windows([first - 30, first - 10, first + 5], 10.0, 200)
    rank = make_rank(0, steps, history=old)
    told = of(History(ENDED, ranks=(rank,)), Kind.RANK, 0, history_measures.STEP)
    assert len(told) == 52
    assert told.mean[:2].tolist() == [0.05, 0.05]
    assert gaps(told, 0, first, 1) == [(first - 30, first - 20), (first - 10, first)]
    wait = of(History(ENDED, ranks=(rank,)), Kind.RANK, 0, history_measures.WAIT)
    assert wait.mean[0] == pytest.approx(0.025)


def test_a_restarted_rank_goes_on_where_its_predecessor_ended() -> None:
    steps = records(Synthetic(ranks=1, steps=50))[0]
    early = make_rank(0, steps, started=1000.0)
    later = make_rank(0, steps, started=1100.0, clock_offset=100.0)
    told = of(History(ENDED, ranks=(later, early)), Kind.RANK, 0, history_measures.STEP)
    assert len(told) == 100
    assert (np.diff(told.end) > 0).all()


def test_host_times_of_a_rank_on_a_device_are_not_split_into_work_and_wait() -> None:
    steps = records(Synthetic(ranks=1, steps=50))[0]
    rank: Rank = make_rank(0, steps, device="cuda:0", birth={"clock": "host"})
    past = History(ENDED, ranks=(rank,))
    assert len(of(past, Kind.RANK, 0, history_measures.STEP))
    assert not len(of(past, Kind.RANK, 0, history_measures.OWN))
    assert not len(of(past, Kind.RANK, 0, history_measures.WAIT))


def _numbered(what: str, count: int) -> list[str]:
    return [f"{what} {number}" for number in range(count)]
