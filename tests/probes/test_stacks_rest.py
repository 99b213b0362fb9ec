"""For how long a thread has not run, by the scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mgpu_probes.outside.stacks.kernel_waits import measure_idle_seconds

from tests.support.jobs import until

TOLD = "se.exec_start                                :         {}\nnr_switches : 3\n"


@contextmanager
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_process_that_sleeps_rests_and_one_that_runs_does_not() -> None:
    if not Path("/proc/self/sched").exists():
        assert measure_idle_seconds([os.getpid()]) == {}
        return
    started = time.monotonic()
    with sleeper() as pid:
        rests = [0.0]

        def has_rested() -> bool:
            rests.append(measure_idle_seconds([pid]).get(pid, 0.0))
            return rests[-1] > 0.4

        until(has_rested)
        assert rests[-1] <= time.monotonic() - started + 0.2  # clocks of cores differ a little
    assert measure_idle_seconds([os.getpid()]) == {}


def test_our_own_thread_may_run_wherever_it_might_before() -> None:
    before = os.sched_getaffinity(0)
    with sleeper() as pid:
        measure_idle_seconds([pid])
    assert os.sched_getaffinity(0) == before


def pretended(folder: Path, pid: int, told: str | None, state: str = "S") -> None:
    (folder / str(pid)).mkdir(parents=True)
    fields = [state, *["0"] * 35, "0", *["0"] * 12]
    (folder / str(pid) / "stat").write_text(f"{pid} (python) {' '.join(fields)}\n")
    if told is not None:
        (folder / str(pid) / "sched").write_text(TOLD.format(told))


def test_what_the_kernel_tells_is_compared_on_the_same_core(tmp_path: Path) -> None:
    pretended(tmp_path, 7, "4000.500000")
    pretended(tmp_path, 8, "9999.000000", state="R")
    (tmp_path / "thread-self").mkdir()
    (tmp_path / "thread-self/sched").write_text(TOLD.format("14000.500000"))
    assert measure_idle_seconds([7, 8, 9], tmp_path) == {7: 10.0}


@pytest.mark.parametrize("expected", [None, "garbage", "-5"])
def test_a_kernel_that_does_not_tell_leaves_it_unknown(
    tmp_path: Path, expected: str | None
) -> None:
    pretended(tmp_path, 7, expected)
    assert measure_idle_seconds([7], tmp_path) == {}
