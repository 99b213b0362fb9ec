"""Each check on machines that allow more or less."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mgpu_probes.outside import disk_space
from mgpu_probes.outside.stacks import pyspy_stacks

from mgpu_doctor.check import kernel_checks, software_checks, stack_checks, storage_checks
from mgpu_doctor.check.check_report import CHECKS
from mgpu_doctor.check.check_result import CheckedMachine, Level, Result
from tests.fakenvml.fakenvml import machine
from tests.support.nvml import PretendNvml
from tests.support.other_user import as_nobody

NOTHING_MAY = "CapEff:\t0000000000000000\n"
ALL_MAY = "CapEff:\t000001ffffffffff\n"


@pytest.fixture
def bare(tmp_path: Path) -> CheckedMachine:
    """A machine that has next to nothing, and a user who may do nothing."""
    here = CheckedMachine(
        root=tmp_path,
        environment={},
        euid=1000,
        version=versions(),
        terminal=False,
        encoding="utf-8",
    )
    write(here, "proc/self/status", NOTHING_MAY)
    return here


def write(here: CheckedMachine, path: str, words: str) -> None:
    file = here.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(words)


def versions(**known: str) -> Callable[[str], str | None]:
    return known.get


def on(nvml: PretendNvml, state: Path, scenario: str) -> Result:
    """The GPU check in a process of its own, on a pretend machine."""
    machine(scenario).write(str(state))
    code = (
        "import json\nfrom mgpu_doctor.check import software_checks\n"
        "from mgpu_doctor.check.check_result import CheckedMachine\n"
        "found = software_checks.check_gpus(CheckedMachine())\n"
        "print(json.dumps([found.level, found.message, found.remedy]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=nvml.environment(state),
        capture_output=True,
        text=True,
        check=True,
    )
    level, said, remedy = json.loads(done.stdout)
    return Result(Level(level), said, remedy)


def test_ids_and_titles_are_unique_and_short() -> None:
    assert len({check.id for check in CHECKS}) == len({check.title for check in CHECKS})
    assert max(len(check.title) for check in CHECKS) <= 15


def test_gpus_are_counted(nvml: PretendNvml, tmp_path: Path) -> None:
    found = on(nvml, tmp_path / "state", "busy")
    assert (found.level, found.message) == (
        Level.PASS,
        "8 × NVIDIA H100 80GB HBM3; driver 570.133.20",
    )


def test_a_lost_gpu_fails(nvml: PretendNvml, tmp_path: Path) -> None:
    found = on(nvml, tmp_path / "state", "lost")
    assert found.level is Level.FAIL
    assert "GPU is lost" in found.message
    assert "xid" in found.remedy


def test_a_gpu_without_its_driver_fails_and_none_at_all_is_a_note(bare: CheckedMachine) -> None:
    assert software_checks.check_gpus(bare).level is Level.NOTE
    write(bare, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    write(bare, "sys/bus/pci/devices/0000:01:00.0/class", "0x040300\n")  # its sound alone
    assert software_checks.check_gpus(bare).level is Level.NOTE
    write(bare, "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")
    write(bare, "sys/bus/pci/devices/0000:01:00.1/class", "0x030200\n")
    found = software_checks.check_gpus(bare)
    assert found.level is Level.FAIL
    assert "--gpus all" in found.remedy


def test_the_stack_of_a_process_is_really_read() -> None:
    here = CheckedMachine()
    assert stack_checks.check_pyspy(here).level is Level.PASS
    found = stack_checks.check_tracing(here)
    assert found.level is Level.PASS
    assert "ms" in found.message


def test_without_py_spy_it_is_reported_how_to_get_it(
    bare: CheckedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: None)
    found = stack_checks.check_pyspy(bare)
    assert found.level is Level.FAIL
    assert found.remedy == f"{sys.executable} -m pip install --upgrade py-spy"
    assert stack_checks.check_tracing(bare).level is Level.NOTE


@pytest.mark.parametrize(
    ("printed", "level"),
    [("py-spy 0.3.14", Level.WARN), ("py-spy 0.4.0", Level.PASS), ("what?", Level.FAIL)],
)
def test_the_version_of_py_spy_counts(
    bare: CheckedMachine, monkeypatch: pytest.MonkeyPatch, printed: str, level: Level
) -> None:
    program = bare.root / "py-spy"
    program.write_text(f"#!/bin/sh\necho '{printed}'\n")
    program.chmod(0o700)
    monkeypatch.setattr(pyspy_stacks, "find_pyspy", lambda: str(program))
    assert stack_checks.check_pyspy(bare).level is level


def test_a_denial_names_its_reason_and_the_remedy(
    bare: CheckedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = pyspy_stacks.Failure(pyspy_stacks.Kind.DENIED)
    monkeypatch.setattr(pyspy_stacks, "read_stack", lambda *_: denied)
    write(bare, "proc/sys/kernel/yama/ptrace_scope", "2\n")
    found = stack_checks.check_tracing(bare)
    assert found.level is Level.FAIL
    assert "ptrace_scope is 2" in found.message
    assert found.remedy


def test_whose_stacks_may_be_read(bare: CheckedMachine) -> None:
    assert stack_checks.check_other_users(bare).level is Level.NOTE
    root = replace(bare, euid=0)
    assert "SYS_PTRACE" in stack_checks.check_other_users(root).remedy
    write(bare, "proc/self/status", ALL_MAY)
    assert stack_checks.check_other_users(bare).level is Level.PASS


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ("rw", Level.PASS),
        ("rw,hidepid=2", Level.WARN),
        ("rw,gid=5,hidepid=invisible", Level.WARN),
        ("rw,hidepid=0", Level.PASS),
    ],
)
def test_hidden_processes_are_reported(bare: CheckedMachine, options: str, level: Level) -> None:
    (bare.root / "proc/self/ns").mkdir()
    (bare.root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    lines = "21 1 0:5 / /sys rw - sysfs sysfs rw,hidepid=2\n22 1 0:6 / /proc rw - proc proc "
    write(bare, "proc/self/mountinfo", lines + options)
    assert kernel_checks.check_processes(bare).level is level
    write(bare, "proc/self/status", ALL_MAY)
    assert kernel_checks.check_processes(bare).level is Level.PASS


def test_in_a_container_its_own_processes_are_seen(bare: CheckedMachine) -> None:
    (bare.root / "proc/self/ns").mkdir()
    (bare.root / "proc/self/ns/pid").symlink_to("pid:[4026532999]")
    found = kernel_checks.check_processes(bare)
    assert found.level is Level.NOTE
    assert "container" in found.message


def test_control_groups_of_both_versions(bare: CheckedMachine) -> None:
    assert kernel_checks.check_control_groups(bare).level is Level.WARN
    write(bare, "proc/self/cgroup", "0::/job\n")
    write(bare, "sys/fs/cgroup/cgroup.controllers", "cpu memory")
    assert "root group" in kernel_checks.check_control_groups(bare).message
    write(bare, "sys/fs/cgroup/job/memory.max", str(16 << 30))
    write(bare, "sys/fs/cgroup/job/memory.events", "oom 0\noom_kill 0\n")
    write(bare, "sys/fs/cgroup/job/cpu.max", "400000 100000")
    found = kernel_checks.check_control_groups(bare)
    assert found.level is Level.PASS
    assert found.message == "version 2; memory limit 16 GiB, at most 4 cores"


def test_a_group_without_a_limit_has_none(bare: CheckedMachine) -> None:
    write(bare, "proc/self/cgroup", "4:memory:/job\n")
    write(bare, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100")
    write(bare, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(2**63 - 4096))
    assert "no memory limit" in kernel_checks.check_control_groups(bare).message


def test_the_kernels_log(bare: CheckedMachine) -> None:
    assert "--device=/dev/kmsg" in kernel_checks.check_kernel_log(bare).remedy
    write(bare, "dev/kmsg", "6,1,1,-;hello\n")
    assert kernel_checks.check_kernel_log(bare).level is Level.PASS


def test_a_clock_that_nothing_keeps_right(
    bare: CheckedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state, level in ((0, Level.PASS), (5, Level.WARN), (None, Level.NOTE)):
        monkeypatch.setattr(kernel_checks, "_clock_state", lambda state=state: state)
        assert kernel_checks.check_clock(bare).level is level


def test_this_kernel_tells_of_its_clock() -> None:
    assert kernel_checks._clock_state() in (None, *range(6))


@pytest.mark.parametrize(
    ("known", "level", "collectives"),
    [
        ({}, Level.NOTE, Level.NOTE),
        ({"torch": "2.13.0+cpu"}, Level.PASS, Level.PASS),
        ({"torch": "2.4.0a0+git12", "lightning": "2.5"}, Level.PASS, Level.PASS),
        ({"torch": "1.13.1"}, Level.WARN, Level.WARN),
        ({"tensorflow-cpu": "2.21.0"}, Level.PASS, Level.NOTE),
        ({"tensorflow": "2.4.1"}, Level.WARN, Level.NOTE),
    ],
)
def test_frameworks_by_their_versions(
    bare: CheckedMachine, known: dict[str, str], level: Level, collectives: Level
) -> None:
    here = replace(bare, version=versions(**known))
    assert software_checks.check_frameworks(here).level is level
    assert software_checks.check_collectives(here).level is collectives
    assert all(name in software_checks.check_frameworks(here).message for name in known)


def test_recordings_where_nothing_can_be_written(bare: CheckedMachine) -> None:
    file = bare.root / "file"
    file.write_text("")
    here = replace(bare, environment={"MGPU_DOCTOR_HOME": str(file / "home")})
    found = storage_checks.check_recordings(here)
    assert found.level is Level.FAIL
    assert "--dir" in found.remedy


def test_recordings_below_a_folder_that_may_not_be_entered(bare: CheckedMachine) -> None:
    """As for whoever keeps the HOME of another user."""
    closed = bare.root / "closed"
    closed.mkdir(mode=0)
    here = replace(bare, environment={"MGPU_DOCTOR_HOME": str(closed / "home")})
    assert as_nobody(lambda: storage_checks.check_recordings(here).level.name) == "FAIL"


@pytest.mark.parametrize(("free", "level"), [(1 << 20, Level.WARN), (1 << 40, Level.PASS)])
def test_room_for_recordings(
    bare: CheckedMachine, monkeypatch: pytest.MonkeyPatch, free: int, level: Level
) -> None:
    monkeypatch.setattr(disk_space, "measure_disk_space", lambda _: {"size": 1 << 41, "free": free})
    here = replace(bare, environment={"MGPU_DOCTOR_HOME": str(bare.root / "not" / "yet")})
    assert storage_checks.check_recordings(here).level is level
    assert not (bare.root / "not").exists()


@pytest.mark.parametrize(
    ("room_there", "level", "remedy"),
    [
        ({"size": 64 << 20, "free": 64 << 20}, Level.WARN, "--shm-size"),
        ({"size": 64 << 30, "free": 1 << 20}, Level.WARN, "ended jobs"),
        ({"size": 64 << 30, "free": 60 << 30}, Level.PASS, ""),
    ],
)
def test_shared_memory(
    bare: CheckedMachine,
    monkeypatch: pytest.MonkeyPatch,
    room_there: dict[str, int],
    level: Level,
    remedy: str,
) -> None:
    monkeypatch.setattr(disk_space, "measure_disk_space", lambda _: room_there)
    found = storage_checks.check_shared_memory(bare)
    assert found.level is level
    assert remedy in found.remedy


def test_no_shared_memory_at_all(bare: CheckedMachine) -> None:
    assert storage_checks.check_shared_memory(bare).level is Level.WARN


@pytest.mark.parametrize(
    ("limits", "level", "remedy"),
    [
        ((1024, 1_048_576), Level.WARN, "ulimit -n 65536"),
        ((1024, 2048), Level.WARN, "nofile"),
        ((65_536, 65_536), Level.PASS, ""),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), Level.PASS, ""),
    ],
)
def test_open_files(
    bare: CheckedMachine,
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    level: Level,
    remedy: str,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    found = storage_checks.check_open_files(bare)
    assert found.level is level
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("environment", "encoding", "level", "words"),
    [
        ({"TERM": "xterm-256color"}, "utf-8", Level.PASS, "256 colours"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "UTF8", Level.PASS, "16 million"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "utf-8", Level.PASS, "no colours"),
        ({"TERM": "dumb"}, "utf-8", Level.WARN, "TERM is dumb"),
        ({}, "utf-8", Level.WARN, "not set"),
        ({"TERM": "xterm"}, "ISO-8859-1", Level.WARN, "ASCII"),
    ],
)
def test_the_terminal(
    bare: CheckedMachine, environment: dict[str, str], encoding: str, level: Level, words: str
) -> None:
    here = replace(bare, environment=environment, terminal=True, encoding=encoding)
    found = storage_checks.check_terminal(here)
    assert found.level is level
    assert words in found.message
    elsewhere = storage_checks.check_terminal(replace(here, terminal=False, encoding="utf-8"))
    assert elsewhere.level is Level.NOTE


def test_every_check_says_something_here_and_how_to_mend_it() -> None:
    for check in CHECKS:
        ended = check.run(CheckedMachine())
        assert ended.message
        assert bool(ended.remedy) == (ended.level in (Level.WARN, Level.FAIL)), check.id


def test_nothing_of_a_framework_is_imported() -> None:
    code = (
        "import sys\nfrom mgpu_doctor.check.check_report import check_all\n"
        "from mgpu_doctor.check.check_result import CheckedMachine\ncheck_all(CheckedMachine())\n"
        "print([name for name in ('torch', 'tensorflow', 'numpy') if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ended.stdout.strip() == "[]"
