"""Kills in the kernel's log: real records of several kernels, and hostile ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mgpu_probes.outside.kernel_log import MOST_KILLS, KernelLog, Kill, sees_own_pids

RECORDED = Path(__file__).parents[1] / "recorded/kernel/oom-group.txt"
OLD = (
    "Memory cgroup out of memory: Kill process 4711 (python) score 987 or sacrifice child",
    "Killed process 4711 (python) total-vm:9876kB, anon-rss:1024kB, file-rss:512kB",
)
"""Linux 3.10 to 4.18, from mm/oom_kill.c."""
WHOLE_MACHINE = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/user.slice,task=python,pid=4711,uid=1000",
    "Out of memory: Killed process 4711 (python) total-vm:9876kB, anon-rss:1024kB, file-rss:0kB, "
    "shmem-rss:4kB, UID:1000 pgtables:184kB oom_score_adj:0",
)


class Log:
    """A pipe that gives a record a read, as /dev/kmsg does."""

    def __init__(self, log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self.records: list[bytes] = []
        monkeypatch.setattr("mgpu_probes.outside.kernel_log.os.read", self._read)

    def _read(self, _: int, size: int) -> bytes:
        if not self.records:
            raise BlockingIOError
        return self.records.pop(0)[:size]

    def kills(self, *lines: str) -> list[Kill]:
        self.records = [
            line.encode() if line[:1].isdigit() else f"6,1,2,-;{line}\n SUBSYSTEM=x".encode()
            for line in lines
        ]
        return self.log.new_kills()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    file = tmp_path / "kmsg"
    file.write_text("")
    opened = KernelLog(file)
    assert opened.trouble is None
    return Log(opened, monkeypatch)


def test_a_group_at_its_limit(log: Log) -> None:
    (kill,) = log.kills(*RECORDED.read_text().splitlines())
    resident = (61184 + 6624) * 1024
    group = "/jobs/training"
    assert kill == Kill(8931, 25537.843199, "python3", resident, group, group, "CONSTRAINT_MEMCG")


def test_a_machine_without_memory(log: Log) -> None:
    (kill,) = log.kills(*WHOLE_MACHINE)
    resident = (1024 + 4) * 1024
    assert kill == Kill(4711, 2e-6, "python", resident, "/user.slice", None, "CONSTRAINT_NONE")


def test_older_kernels_name_no_group(log: Log) -> None:
    (kill,) = log.kills(*OLD)
    assert kill == Kill(4711, 2e-6, "python", 1536 * 1024, None, None, None)


def test_other_lines_and_torn_records_tell_nothing(log: Log) -> None:
    assert log.kills("usb 1-1: new device", "Killed process nobody", "9,broken", "oom-kill:") == []


def test_kills_are_bounded(log: Log) -> None:
    assert len(log.kills(*(OLD[1] for _ in range(2 * MOST_KILLS)))) == MOST_KILLS


def test_a_log_that_may_not_be_read_is_trouble_reported(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "missing")
    assert log.trouble is not None
    assert "missing cannot be read" in log.trouble
    assert log.new_kills() == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kmsg").symlink_to("/etc/passwd")
    assert KernelLog(tmp_path / "kmsg").trouble is not None


def test_whose_pids_the_kernel_logs(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    assert not sees_own_pids(tmp_path)
    os.symlink("pid:[4026531836]", tmp_path / "proc/self/ns/pid")
    assert sees_own_pids(tmp_path)
    (tmp_path / "proc/self/ns/pid").unlink()
    os.symlink("pid:[4026532999]", tmp_path / "proc/self/ns/pid")
    assert not sees_own_pids(tmp_path)
