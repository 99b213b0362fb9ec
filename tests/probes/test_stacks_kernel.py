"""What the kernel shows of a waiting process, and which process holds what it waits for."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mgpu_probes.outside import processes
from mgpu_probes.outside.stacks import kernel_waits
from mgpu_probes.outside.stacks.kernel_waits import Holders, KernelState

from tests.support.jobs import until
from tests.support.stuck_processes import stuck


def wait_for_state(pid: int, wanted: Callable[[KernelState], bool]) -> KernelState:
    """The first moment of the process that is as wanted."""
    moments: list[KernelState] = []

    def there() -> bool:
        moments.append(kernel_waits.read_kernel_state(pid))
        return wanted(moments[-1])

    until(there)
    return moments[-1]


def in_call(pid: int, name: str) -> str:
    """What is told of its system call, once it is in that one."""
    found = wait_for_state(
        pid, lambda now: (now.syscall or "").split()[:1] == [name] and now.state == "S"
    )
    assert found.syscall is not None
    return found.syscall


def test_a_pipe_and_who_writes_into_it() -> None:
    with stuck("pipe") as process:
        told = in_call(process.pid, "read")
        me = f"{os.getpid()} {Path('/proc/self/comm').read_text().strip()}"
        assert re.fullmatch(rf"read pipe:\[\d+\], written by {re.escape(me)}", told)


def test_a_full_pipe_and_who_reads_from_it() -> None:
    reading, writing = os.pipe()
    try:
        with stuck("full", str(writing), pass_fds=[writing]) as process:
            told = in_call(process.pid, "write")
            assert f"read by {os.getpid()} " in told
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_that_the_reader_itself_keeps_open() -> None:
    reading, writing = os.pipe()
    with stuck("itself", str(reading), pass_fds=[reading, writing]) as process:
        os.close(reading)
        os.close(writing)
        assert in_call(process.pid, "read").endswith("written by itself")


def test_a_locked_file_and_who_locked_it(tmp_path: Path) -> None:
    file = tmp_path / "x.lock"
    with file.open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with stuck("flock", str(file)) as process:
            assert re.fullmatch(
                rf"flock {re.escape(str(file))}, locked by {os.getpid()} \S.*",
                in_call(process.pid, "flock"),
            )


def test_a_child_that_is_waited_for() -> None:
    with stuck("wait") as process:
        child = psutil.Process(process.pid).children()[0]
        told = in_call(process.pid, "wait4")
        child.kill()
    assert re.fullmatch(rf"wait4 {child.pid} \S.*", told)


def test_a_lock_and_a_sleep_tell_the_call_alone() -> None:
    with stuck("lock") as locked, stuck("sleep") as asleep:
        assert in_call(locked.pid, "futex") == "futex"
        assert in_call(asleep.pid, "clock_nanosleep") == "clock_nanosleep"
        assert "nanosleep" in (kernel_waits.read_kernel_state(asleep.pid).wchan or "")


def test_time_on_cpus_grows_in_a_loop_and_stands_in_a_sleep() -> None:
    with stuck("spin") as spins, stuck("sleep") as sleeps:
        first = kernel_waits.read_kernel_state(spins.pid)
        assert first.cpu_seconds is not None
        assert first.main_cpu_seconds is not None
        enough = first.cpu_seconds + 0.1, first.main_cpu_seconds + 0.1

        def grown(now: KernelState) -> bool:
            assert now.cpu_seconds is not None
            assert now.main_cpu_seconds is not None
            return now.cpu_seconds >= enough[0] and now.main_cpu_seconds >= enough[1]

        wait_for_state(
            spins.pid, lambda now: now.state == "R" and now.syscall is None and now.wchan is None
        )
        in_call(sleeps.pid, "clock_nanosleep")
        before = kernel_waits.read_kernel_state(sleeps.pid)
        wait_for_state(spins.pid, grown)
        assert (
            kernel_waits.read_kernel_state(sleeps.pid).main_cpu_seconds == before.main_cpu_seconds
        )


def test_stopped_dead_and_reused() -> None:
    with stuck("sleep") as process:
        started = processes.find_start_ticks(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_for_state(process.pid, lambda now: now.state == "T")
        assert started is not None
        assert kernel_waits.read_kernel_state(process.pid, started).state == "T"
        assert kernel_waits.read_kernel_state(process.pid, started + 1) == KernelState()
        process.kill()
        wait_for_state(process.pid, lambda now: now.state == "Z")
    assert kernel_waits.read_kernel_state(process.pid) == KernelState()


def test_what_may_not_be_read_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (a) S " + " ".join(str(n) for n in range(4, 53)))
    moment = kernel_waits.read_kernel_state(7, holders=Holders(tmp_path))
    ticks = os.sysconf("SC_CLK_TCK")
    assert moment == KernelState("S", (14 + 15) / ticks, None, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("running\n", None),
        ("-1 0x7ff 0x7f0", None),
        ("", None),
        ("0 zz 0x1", "read"),
        ("0 0x9 0x1 0x1 0x0 0x0 0x0 0x7ff 0x7f0", "read"),
        ("61 0xffffffffffffffff 0x0 0x0 0x0 0x0 0x0 0x7ff 0x7f0", "wait4"),
        ("61 0x7 0x0 0x0 0x0 0x0 0x0 0x7ff 0x7f0", "wait4 7 a"),
        ("247 0x1 0x8 0x0 0x4 0x0 0x0 0x7ff 0x7f0", "waitid 8"),
        ("9999 0x1 0x8", "syscall 9999"),
        ("garbage in here", None),
    ],
)
def test_every_form_of_a_system_call(
    text: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (a) S " + " ".join(str(n) for n in range(4, 53)))
    (folder / "syscall").write_text(text)
    assert kernel_waits.read_kernel_state(7, holders=Holders(tmp_path)).syscall == expected


def test_both_machines_know_the_calls_that_matter() -> None:
    calls = {"read", "write", "futex", "ppoll", "epoll_pwait", "recvfrom", "wait4", "flock"}
    for machine, table in kernel_waits.TABLES.items():
        assert calls <= set(table.values())
        for number, name in table.items():
            assert kernel_waits.name_syscall(number, machine) == name
    assert kernel_waits.name_syscall(0, "riscv128") == "syscall 0"
