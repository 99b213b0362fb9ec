"""The task probe on pretend /proc and cgroup trees, and once on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.outside import cgroups, host_usage
from mgpu_probes.outside.host_usage import MOST_BETWEEN, SHARE_BETWEEN, THREADS, HostUsage, Tasks

from tests.support.jobs import until


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def process(root: Path, pid: int, *, parent: int = 1, threads: int = 1, started: int = 500) -> None:
    numbers = [*["0"] * 15, str(threads), "0", str(started), "0", "9"]
    numbers[5], numbers[10] = "900", "25"  # minor faults, ticks in the kernel
    write(root, f"proc/{pid}/stat", f"{pid} (a) R 9 (b) S {parent} {' '.join(numbers)}\n")
    write(root, f"proc/{pid}/schedstat", "2500000000 750000000 33\n")
    write(root, f"proc/{pid}/status", "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t0-2,7\n")
    for number in range(threads):
        write(root, f"proc/{pid}/task/{pid + number}/schedstat", "9 250000000 1\n")
    write(root, f"proc/{pid}/cgroup", "0::/\n")


def usage(root: Path, *pids: int) -> dict[str, Any]:
    return Tasks(root).sample(pids)


def test_a_process_with_one_thread(tmp_path: Path) -> None:
    process(tmp_path, 77, parent=5)
    write(tmp_path, "proc/uptime", "12.50 20.0\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert usage(tmp_path, 77, 78) == {
        "tasks": {
            "77": {
                "parent": 5,
                "state": "S",
                "threads": 1,
                "faults": 900,
                "kernel": 25 / ticks,
                "age": round(12.5 - 500 / ticks, 2),
                "ran": 2.5,
                "queued": 0.75,
                "all_queued": 0.75,
                "cores": "0-2,7",
                "limits": [],
            }
        },
        "groups": {},
    }


def test_the_main_thread_apart_from_the_others(tmp_path: Path) -> None:
    process(tmp_path, 77, threads=4)
    found = usage(tmp_path, 77)["tasks"]["77"]
    assert found["queued"] == 0.75
    assert found["all_queued"] == 0.75 + 3 * 0.25


def test_a_process_of_very_many_threads_is_looked_at_in_part(tmp_path: Path) -> None:
    process(tmp_path, 77, threads=THREADS + 20)
    assert usage(tmp_path, 77)["tasks"]["77"]["all_queued"] == 0.75 + THREADS * 0.25


def test_many_processes_share_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_usage, "THREADS_IN_ALL", 4)
    process(tmp_path, 77, threads=4)
    process(tmp_path, 177, threads=4)
    found = usage(tmp_path, 77, 177)["tasks"]
    assert found["77"]["all_queued"] == 1.5
    assert found["177"]["all_queued"] == 1.0


def test_a_kernel_that_does_not_count(tmp_path: Path) -> None:
    process(tmp_path, 77)
    for name in ("schedstat", "status", "cgroup"):
        (tmp_path / "proc/77" / name).unlink()
    found = usage(tmp_path, 77)["tasks"]["77"]
    assert set(found) == {"parent", "state", "threads", "faults", "kernel"}


def test_quotas_of_version_2_all_the_way_up(tmp_path: Path) -> None:
    process(tmp_path, 77)
    write(tmp_path, "proc/77/cgroup", "0::/pod/box\n")
    pod, box = "sys/fs/cgroup/pod", "sys/fs/cgroup/pod/box"
    write(tmp_path, f"{pod}/cpu.max", "400000 100000\n")
    write(tmp_path, f"{pod}/cpu.stat", "usage_usec 9\nnr_throttled 3\nthrottled_usec 1500000\n")
    write(tmp_path, f"{box}/cpu.max", "50000 100000\n")
    write(tmp_path, f"{box}/cpu.stat", "usage_usec 9\n")
    found = usage(tmp_path, 77)
    assert found["tasks"]["77"]["limits"] == [f"/{box}", f"/{pod}"]
    assert found["groups"] == {
        f"/{box}": {"quota": 0.5},
        f"/{pod}": {"quota": 4.0, "throttled": 1.5},
    }


def test_quotas_of_version_1(tmp_path: Path) -> None:
    process(tmp_path, 77)
    write(tmp_path, "proc/77/cgroup", "5:cpu,cpuacct:/job\n0::/\n")
    job = "sys/fs/cgroup/cpu/job"
    write(tmp_path, f"{job}/cpu.cfs_quota_us", "30000\n")
    write(tmp_path, f"{job}/cpu.cfs_period_us", "10000\n")
    write(tmp_path, f"{job}/cpu.stat", "nr_periods 5\nthrottled_time 2500000000\n")
    assert usage(tmp_path, 77)["groups"] == {f"/{job}": {"quota": 3.0, "throttled": 2.5}}


def test_another_process_has_other_groups_than_ours(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/mine\n")
    write(tmp_path, "sys/fs/cgroup/mine/cpu.max", "10000 100000\n")
    process(tmp_path, 77)
    assert usage(tmp_path, 77)["tasks"]["77"]["limits"] == []
    ours = cgroups.find_cpu_quotas(tmp_path)
    assert ours is not None
    assert [quota.cores for quota in ours] == [0.1]


def test_a_group_beside_ours_is_unknown_not_unlimited(tmp_path: Path) -> None:
    process(tmp_path, 77)
    write(tmp_path, "proc/77/cgroup", "0::/../other\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "10000 100000\n")
    assert "limits" not in usage(tmp_path, 77)["tasks"]["77"]


def test_groups_are_read_anew_now_and_then_and_for_a_reused_pid(tmp_path: Path) -> None:
    process(tmp_path, 77)
    probe = Tasks(tmp_path)
    seen = [probe.sample([77])["tasks"]["77"]["limits"]]
    write(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000\n")
    seen += [probe.sample([77])["tasks"]["77"]["limits"] for _ in range(host_usage.RENEWED_EVERY)]
    assert seen == [[]] * host_usage.RENEWED_EVERY + [["/sys/fs/cgroup"]]
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    process(tmp_path, 77, started=900)
    assert probe.sample([77])["tasks"]["77"]["limits"] == []


def test_a_host_is_looked_at_closely_enough_for_steps_that_begin_late(tmp_path: Path) -> None:
    process(tmp_path, 77)
    host = HostUsage(tmp_path, closely=True)
    samples = [host.sample([77]) for _ in range(500)]
    close = [number for number, sample in enumerate(samples) if "tasks" in sample]
    assert close[:20] == [*range(20)]
    for begin in range(200):  # samples while a job imports; its steps last a quarter of that, or 12
        end = begin + max(12, begin // 4)
        assert sum(begin <= number < end for number in close) >= 3, begin
    late = [number for number in close if number >= MOST_BETWEEN / SHARE_BETWEEN]
    assert {after - before for before, after in pairwise(late)} == {MOST_BETWEEN}
    assert "tasks" not in HostUsage(tmp_path).sample([77])


def test_what_stands_still_on_the_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu  100 0 50 800 50 0 0 25 9 9\n")
    some = "some avg10=1.0 avg60=1.0 avg300=1.0 total=2500000\n"
    write(tmp_path, "proc/pressure/cpu", some + "full avg10=0 avg60=0 avg300=0 total=7\n")
    sample = HostUsage(tmp_path, closely=True).sample()
    ticks = os.sysconf("SC_CLK_TCK")
    assert sample["busy"] == 175 / ticks
    assert sample["iowait"] == 50 / ticks
    assert sample["steal"] == 25 / ticks
    assert sample["pressure"] == {"cpu": 2.5}


def test_traffic_is_that_of_whole_disks_and_of_hardware(tmp_path: Path) -> None:
    line = "{} 0 {} 5 0 {} 7 9 0 {} 1 2 3 4"
    disks = (("sda", 10, 20), ("sda1", 9, 19), ("dm-0", 8, 18))
    text = "\n".join(line.format(8, name, read, wrote) for name, read, wrote in disks)
    write(tmp_path, "proc/diskstats", f"{text}\n")
    head = "Inter-|   Receive\n face |bytes\n"
    rows = "lo: 5 0 0 0 0 0 0 0 6 0\neth0: 700 1 0 0 0 0 0 0 80 1\nveth1: 1 0 0 0 0 0 0 0 2 0\n"
    write(tmp_path, "proc/net/dev", head + rows)
    host = HostUsage(tmp_path, standstill=True)
    assert host.sample()["traffic"] == {"received": 701, "sent": 82}, "a container"
    for folder in ("sys/block/sda/device", "sys/block/dm-0", "sys/class/net/eth0/device"):
        (tmp_path / folder).mkdir(parents=True)
    host = HostUsage(tmp_path, standstill=True)
    assert host.sample()["traffic"] == {
        "read": 10 * 512, "written": 20 * 512, "received": 700, "sent": 80,
    }  # fmt: skip
    (tmp_path / "sys/block/sdb/device").mkdir(parents=True)  # a disk that comes later
    write(tmp_path, "proc/diskstats", f"{text}\n{line.format(8, 'sdb', 5, 6)}\n")
    traffic = host.sample()["traffic"]
    assert (traffic["read"], traffic["written"]) == (15 * 512, 26 * 512)


def test_a_kernel_without_any_of_it(tmp_path: Path) -> None:
    sample = HostUsage(tmp_path, closely=True).sample([1])
    assert sample["tasks"] == {}
    assert sample["pressure"] == {}
    assert {sample["busy"], sample["iowait"], sample["steal"]} == {None}


def test_two_real_processes_take_turns_on_a_core() -> None:
    core = min(os.sched_getaffinity(0))
    script = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-S", "-c", script]) for _ in range(2)]
    try:
        pids = [one.pid for one in both]
        probe = Tasks()

        def have_taken_turns() -> bool:
            found = probe.sample(pids)["tasks"].values()
            return len(found) == 2 and all(
                one["ran"] > 0.2 and one["queued"] > 0.1 and one["cores"] == str(core)
                for one in found
            )

        until(have_taken_turns)
    finally:
        for one in both:
            one.kill()
            one.wait()
