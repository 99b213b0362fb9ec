"""Stacks by Python's faulthandler: its text, and the signal that asks for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from mgpu_probes.outside import processes
from mgpu_probes.outside.stacks import faulthandler_stacks

from tests.support.jobs import until
from tests.support.stuck_processes import stuck, wait_for_call

SECONDS = 20.0
TEXT = """\
Current thread 0x00007f1b1e7fc6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f1b24c286c0 [pin_memory [0]] (most recent call first):
  File "/x y/threading.py", line 982 in run
  File "/x y/threading.py", line 1045 in _bootstrap_inner
  File "/x y/threading.py", line 1002 in _bootstrap

Thread 0x00007f1b47674b80 (most recent call first):
  File "/t/train.py", line 8 in <lambda>
  File "/t/train.py", line ??? in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


def test_the_text_becomes_threads() -> None:
    worker, main = faulthandler_stacks.parse_faulthandler(TEXT)
    assert (worker["name"], worker["main"]) == ("pin_memory [0]", False)
    assert worker["frames"][0] == ["run", "/x y/threading.py", 982]
    assert main["main"] is True
    assert main["frames"] == [["<lambda>", "/t/train.py", 8], ["<module>", "/t/train.py", None]]
    assert (main["id"], main["active"], main["gil"]) == (None, None, None)


def test_a_main_thread_that_was_cut_off_is_not_guessed() -> None:
    thread = "Thread 0x01 (most recent call first):\n"
    frame = '  File "a.py", line {} in {}\n'
    cut = f"{thread}{frame.format(1, 'f')}{frame.format(2, '<module>')}...\n"
    assert [stack["main"] for stack in faulthandler_stacks.parse_faulthandler(cut)] == [False]
    began_as_thread = f"{thread}{frame.format(1, '_bootstrap')}"
    assert [stack["main"] for stack in faulthandler_stacks.parse_faulthandler(began_as_thread)] == [
        False
    ]


@pytest.mark.parametrize("text", ["", "nonsense\n", '  File "a", line 3 in f\n', "Thread 0x1\n"])
def test_other_text_gives_nothing(text: str) -> None:
    assert faulthandler_stacks.parse_faulthandler(text) == []


def test_the_text_of_this_python_is_understood(tmp_path: Path) -> None:
    with stuck("faulthandler", str(tmp_path / "dump")) as process:
        wait_for_call(process.pid, "futex")
        end = time.monotonic() + SECONDS
        started = processes.find_start_ticks(process.pid)
        for _ in range(2):
            threads = faulthandler_stacks.request_stacks(
                process.pid, str(tmp_path / "dump"), signal.SIGUSR1, end, started=started
            )
            main = next(thread for thread in threads if thread["main"])
            assert [frame[0] for frame in main["frames"]] == ["stuck_here", "<module>"]
            other = next(thread for thread in threads if not thread["main"])
            assert "waits_for_ever" in [frame[0] for frame in other["frames"]]
        assert process.poll() is None


def test_nobody_is_sent_a_signal_that_kills(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.touch()
    end = time.monotonic() + SECONDS
    with stuck("sleep") as process:
        with pytest.raises(PermissionError, match="does not catch"):
            faulthandler_stacks.request_stacks(process.pid, str(dump), signal.SIGUSR1, end)
        with pytest.raises(PermissionError, match="not one that asks"):
            faulthandler_stacks.request_stacks(process.pid, str(dump), signal.SIGTERM, end)
        assert psutil.Process(process.pid).is_running()
        assert process.poll() is None


def test_a_pid_that_was_given_away_anew_is_left_alone(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    end = time.monotonic() + SECONDS
    with stuck("faulthandler", str(dump)) as process:
        started = processes.find_start_ticks(process.pid)
        assert started is not None
        wait_for_call(process.pid, "futex")
        with pytest.raises(ProcessLookupError):
            faulthandler_stacks.request_stacks(
                process.pid, str(dump), signal.SIGUSR1, end, started=started + 1
            )
        process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        with pytest.raises(PermissionError, match="stopped"):
            faulthandler_stacks.request_stacks(
                process.pid, str(dump), signal.SIGUSR1, end, started=started
            )
        assert dump.read_text() == ""


def test_a_file_that_is_not_the_ranks_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to("/etc/hostname")
    end = time.monotonic() + SECONDS
    with pytest.raises(PermissionError):
        faulthandler_stacks.request_stacks(os.getpid(), str(pipe), signal.SIGUSR1, end)
    for path in (link, tmp_path / "none"):
        with pytest.raises(OSError, match=str(path)):
            faulthandler_stacks.request_stacks(os.getpid(), str(path), signal.SIGUSR1, end)


def test_a_rank_that_does_not_write_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    with stuck("faulthandler", str(tmp_path / "dump")) as process:
        wait_for_call(process.pid, "futex")
        with pytest.raises(TimeoutError):
            faulthandler_stacks.request_stacks(
                process.pid, str(elsewhere), signal.SIGUSR1, time.monotonic() + 0.2
            )


def test_a_dump_that_is_written_with_a_pause_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes it may have to wait for a core."""
    monkeypatch.setattr(faulthandler_stacks, "_STILL_LONGER", 10**6)
    dump = tmp_path / "dump"
    dump.touch()

    def write() -> None:
        for part in TEXT.partition("_bootstrap_inner"):
            with dump.open("a") as file:
                file.write(part)
            time.sleep(0.1)

    before = signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=write).start())
    try:
        told = faulthandler_stacks.request_stacks(
            os.getpid(), str(dump), signal.SIGUSR2, time.monotonic() + SECONDS
        )
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert told == faulthandler_stacks.parse_faulthandler(TEXT)


def test_who_catches_what_is_read_from_the_kernel() -> None:
    assert not faulthandler_stacks.is_caught(os.getpid(), signal.SIGUSR2)
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert faulthandler_stacks.is_caught(os.getpid(), signal.SIGUSR2)
        assert not faulthandler_stacks.is_caught(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not faulthandler_stacks.is_caught(1 << 30, signal.SIGUSR1)
