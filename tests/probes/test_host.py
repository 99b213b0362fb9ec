"""The host probe on pretend /proc and cgroup trees, and once on the machine itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mgpu_probes.outside import cgroups
from mgpu_probes.outside.host_usage import HostUsage

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/stat", "cpu  100 0 50 800 50 0 0 0 9 9\ncpu0 1 1\n")
    write(tmp_path, "proc/loadavg", "1.50 1.0 0.5 2/100 4242\n")
    write(tmp_path, "proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB")
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_cpu_is_a_difference_of_counters(root: Path) -> None:
    host = HostUsage(root)
    assert host.sample()["cpu_percent"] is None  # no time has passed on these counters
    write(root, "proc/stat", "cpu  160 0 65 815 60 0 0 0 9 9\n")
    assert host.sample()["cpu_percent"] == 75.0


def test_memory_and_load(root: Path) -> None:
    sample = HostUsage(root).sample()
    assert (sample["memory_used"], sample["memory_total"]) == (2 * GIB, 8 * GIB)
    assert sample["memory_cache"] == 0, "what could be dropped is not in it"
    assert sample["load1"] == 1.5


def test_nothing_readable_is_unknown(tmp_path: Path) -> None:
    sample = HostUsage(tmp_path).sample([1])
    unknown = {"cpu_percent", "load1", "memory_used", "memory_total"}
    assert {key for key, value in sample.items() if value is None} == unknown
    assert sample["processes"] == {}


def test_memory_limit_of_version_2(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/outer/inner\n")
    mount = "sys/fs/cgroup/outer"
    write(root, f"{mount}/inner/memory.max", "max\n")
    write(root, f"{mount}/memory.max", f"{4 * GIB}\n")
    write(root, f"{mount}/memory.current", f"{3 * GIB}\n")
    write(root, f"{mount}/memory.stat", f"anon 1\ninactive_file {GIB}\nactive_file 77\n")
    sample = HostUsage(root).sample()
    assert (sample["memory_used"], sample["memory_total"]) == (2 * GIB, 4 * GIB)
    assert sample["memory_cache"] == 77


def test_memory_limit_of_version_1_in_a_container(root: Path) -> None:
    # The path is the host's; the container sees its own group at the mount point.
    write(root, "proc/self/cgroup", "4:memory:/docker/abc\n0::/\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    sample = HostUsage(root).sample()
    assert (sample["memory_used"], sample["memory_total"]) == (GIB, 2 * GIB)


def test_a_limit_above_the_machine_is_none(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    assert HostUsage(root).sample()["memory_total"] == 8 * GIB


@pytest.mark.parametrize(
    ("text", "cores"), [("150000 100000\n", 2), ("max 100000\n", None), ("20000 100000", 1)]
)
def test_cpu_quota_of_version_2(root: Path, text: str, cores: int | None) -> None:
    write(root, "sys/fs/cgroup/cpu.max", text)
    assert cgroups.count_quota_cpus(root) == cores


def test_cpu_quota_of_version_1(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/job\n")
    write(root, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n")
    write(root, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "50000\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert cgroups.count_quota_cpus(root) == 2


def test_a_process_whose_name_is_hostile(root: Path) -> None:
    fields = " ".join(["0"] * 10 + ["250", "50"] + ["0"] * 8 + ["7", "3"])
    write(root, "proc/77/stat", f"77 (a) R 1 (b) S {fields}\n")
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    processes = HostUsage(root).sample([77, 78])["processes"]
    assert list(processes) == ["77"]
    cpu_seconds, resident = processes["77"]
    assert resident == 7 * page
    assert cpu_seconds == 300 / ticks


def test_this_machine() -> None:
    sample = HostUsage().sample([os.getpid()])
    assert json.loads(json.dumps(sample)) == sample
    assert sample["cores"] >= 1
    assert 0 < sample["memory_used"] < sample["memory_total"]
    cpu_seconds, resident = sample["processes"][str(os.getpid())]
    assert cpu_seconds > 0
    assert resident > 1 << 20
