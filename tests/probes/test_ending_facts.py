"""What the machine knows of failures: pretend machines of both cgroup versions, and this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mgpu_probes.outside import cgroups, disk_space, process_limits
from mgpu_probes.outside.exit_evidence import MOST_PROCESSES, ExitEvidence
from mgpu_probes.outside.kernel_log import KernelLog, Kill

from tests.support.machine_files import MIB, process, version_1, version_2, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/self/cgroup", "0::/jobs\n")
    write(tmp_path, "proc/vmstat", "pgfault 12\noom_kill 3\n")
    write(tmp_path, "proc/sys/kernel/core_pattern", "|/usr/lib/systemd/systemd-coredump %P\n")
    return tmp_path


def test_a_kill_counted_by_the_group_of_a_process_is_a_difference_with_its_moment(
    root: Path,
) -> None:
    version_2(root, "/jobs", limit=str(64 * MIB), killed=2)
    process(root, 100)
    endings = ExitEvidence(root=root)
    endings.poll([100])
    version_2(root, "/jobs", limit=str(64 * MIB), killed=3)
    write(root, "proc/vmstat", "oom_kill 4\n")
    endings.poll([])
    told = endings.evidence()
    group = told["groups"]["/sys/fs/cgroup/jobs"]
    assert (group["before"]["killed"], group["now"]["killed"]) == (2, 3)
    assert group["now"]["limit"] == 64 * MIB
    assert told["since"] <= group["at"] <= told["at"]
    assert told["machine_kills"] == {"before": 3, "now": 4, "at": group["at"]}
    assert told["processes"]["100"]["group"] == "/sys/fs/cgroup/jobs"


def test_a_group_of_version_1_and_its_lack_of_a_limit(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/jobs\n0::/\n")
    version_1(root, "/jobs", limit=(1 << 63) - 4096)
    endings = ExitEvidence(root=root)
    version_1(root, "/jobs", killed=1)
    endings.poll([])
    group = endings.evidence()["groups"]["/sys/fs/cgroup/memory/jobs"]
    assert group["before"]["limit"] is None
    assert (group["before"]["killed"], group["now"]["killed"], group["now"]["refused"]) == (0, 1, 7)


def test_the_group_that_the_kernels_log_names_is_looked_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that joined it and died between two looks."""
    version_2(root, "/jobs/training", limit=str(64 * MIB), killed=1)
    assert list(cgroups.find_groups_at("/jobs/training", root)) == ["/sys/fs/cgroup/jobs/training"]
    assert cgroups.find_groups_at("/jobs/../../etc", root) == {}
    assert cgroups.find_groups_at("/jobs", root) == {}
    kill = Kill(100, time.monotonic(), "python", MIB, None, "/jobs/training", "CONSTRAINT_MEMCG")
    monkeypatch.setattr(KernelLog, "new_kills", lambda _: [kill])
    endings = ExitEvidence(root=root)
    endings.poll([])
    told = endings.evidence()
    assert told["groups"]["/sys/fs/cgroup/jobs/training"]["now"]["limit"] == 64 * MIB
    assert told["kills"][0]["pid"] == 100
    assert told["kills"][0]["at"] == pytest.approx(told["since"], abs=60)


def test_a_group_that_is_gone_keeps_its_last_counters(root: Path) -> None:
    version_2(root, "/jobs", killed=1)
    endings = ExitEvidence(root=root)
    for file in (root / "sys/fs/cgroup/jobs").iterdir():
        file.unlink()
    endings.poll([])
    assert endings.evidence()["groups"]["/sys/fs/cgroup/jobs"]["now"]["killed"] == 1


def test_a_process_that_is_gone_keeps_what_was_last_seen_of_it(root: Path) -> None:
    process(root, 100, files=5)
    endings = ExitEvidence(root=root)
    endings.poll([100])
    (root / "proc/100/fd/0").unlink()
    endings.poll([100])
    (root / "proc/100/stat").unlink()
    endings.poll([100])
    facts = endings.evidence()["processes"]["100"]
    assert (facts["files"], facts["most_files"], facts["parent"]) == (4, 5, 1)
    assert facts["limits"] == {"files": [1024, 4096]}


def test_a_reused_pid_starts_anew(root: Path) -> None:
    process(root, 100, files=5)
    endings = ExitEvidence(root=root)
    endings.poll([100])
    other = (root / "proc/100/stat").read_text().replace("1100", "2200")
    write(root, "proc/100/stat", other)
    for name in os.listdir(root / "proc/100/fd"):
        (root / "proc/100/fd" / name).unlink()
    endings.poll([100])
    assert endings.evidence()["processes"]["100"]["most_files"] is None


def test_ever_new_processes_do_not_fill_the_memory(root: Path) -> None:
    endings = ExitEvidence(root=root)
    for pid in range(1000, 1010 + MOST_PROCESSES):
        process(root, pid, files=0)
        endings.poll([pid])
    kept = endings.evidence()["processes"]
    assert len(kept) == MOST_PROCESSES
    assert "1000" not in kept


def test_nothing_readable_is_unknown_and_reported(tmp_path: Path) -> None:
    endings = ExitEvidence(root=tmp_path)
    endings.poll([1])
    told = endings.evidence()
    assert told["machine_kills"] == {"before": None, "now": None, "at": None}
    assert (told["groups"], told["processes"], told["core_pattern"]) == ({}, {}, None)
    assert "kmsg cannot be read: No such file" in told["kernel_log"]["trouble"]


def test_this_machine_as_it_is(tmp_path: Path) -> None:
    """A child that holds a file open for writing, with a limit of its own."""
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (77, 77))\n"
        "kept = [open(sys.argv[1], 'w'), open('/dev/null')]\n"
        "print('open', flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "written")]
    endings = ExitEvidence({"tmp": "/tmp"})
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        endings.poll([child.pid])
        listed = len(os.listdir(f"/proc/{child.pid}/fd"))
        assert str(tmp_path / "written") in disk_space.list_written_files(child.pid)
        child.communicate("\n")
    endings.poll([])
    document = json.loads(json.dumps(endings.evidence()))
    facts = document["processes"][str(child.pid)]
    assert (facts["files"], facts["limits"]["files"]) == (listed, [77, 77])
    assert facts["parent"] == os.getpid()
    roles = {role for place in document["places"] for role in place["roles"]}
    assert {"shm", "tmp", "cwd", "written"} <= roles
    for place in document["places"]:
        assert 0 <= place["least"]["free"] <= place["now"]["size"]
    endings.close()


@pytest.mark.parametrize("flag", ["-v", "-d"])
def test_what_its_limits_of_memory_leave_a_process(flag: str) -> None:
    program = "held = bytearray(64 << 20); print(len(held), flush=True); input()"
    shell = f'ulimit {flag} 4194304; exec {sys.executable} -c "$0"'
    with subprocess.Popen(["sh", "-c", shell, program], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == f"{64 << 20}\n"
        left = process_limits.measure_memory_headroom(child.pid)
        child.communicate("\n")
    assert left is not None
    assert 0 < left < (4 << 30) - (64 << 20)


def test_limits_of_nobody_are_empty(tmp_path: Path) -> None:
    assert process_limits.measure_memory_headroom(1, tmp_path) is None
    assert process_limits.read_limits(1, tmp_path) == {}
    assert process_limits.count_open_files(1, tmp_path) is None


def test_mounts_are_local_and_may_be_written_to(tmp_path: Path) -> None:
    lines = [
        "/dev/sda1 / ext4 rw,relatime 0 0",
        "/dev/sdb1 /with\\040blank xfs rw 0 0",
        "server:/home /home nfs4 rw 0 0",
        "/dev/loop0 /snap/core squashfs ro 0 0",
        "/dev/sdc1 /frozen ext4 ro 0 0",
        "tmpfs /dev/shm tmpfs rw 0 0",
        "nonsense",
    ]
    write(tmp_path, "proc/self/mounts", "\n".join(lines))
    assert disk_space.list_local_mounts(tmp_path) == ["/", "/with blank"]
