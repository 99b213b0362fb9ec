"""Running a program that may hang or never stop printing."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mgpu_probes.outside.stacks import bounded_subprocess

SECONDS = 20.0
MOST = 1 << 20


def shell(
    script: str, *, seconds: float = SECONDS, most: int = MOST
) -> bounded_subprocess.BoundedRun:
    return bounded_subprocess.run_bounded(["/bin/sh", "-c", script], seconds=seconds, most=most)


@pytest.fixture(autouse=True)
def _all_end() -> Iterator[None]:
    """Nobody of ours is left; of those before us we know nothing."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def test_what_it_prints_and_its_code() -> None:
    ran = shell("echo out; echo err >&2; exit 3")
    assert (ran.code, ran.out, ran.err, ran.late) == (3, b"out\n", b"err\n", False)
    assert shell("kill -KILL $$").code == -9


def test_its_environment_is_ours_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_TEST", "a")
    script = ["/bin/sh", "-c", "echo $MGPU_DOCTOR_TEST$MORE"]
    ran = bounded_subprocess.run_bounded(script, seconds=SECONDS, most=MOST, env={"MORE": "b"})
    assert ran.out == b"ab\n"


@pytest.mark.parametrize(
    "script", ["echo out; exec sleep 600", "echo out; exec >&- 2>&-; exec sleep 600"]
)
def test_one_that_hangs_is_killed_with_its_output_kept(script: str) -> None:
    ran = shell(script, seconds=1.0)
    assert (ran.code, ran.late) == (None, True)
    assert ran.out in (b"out\n", b"")


@pytest.mark.parametrize("script", ["exec yes", "exec yes >&2"])
def test_one_that_never_stops_printing_is_killed(script: str) -> None:
    ran = shell(script)
    assert (ran.code, ran.late) == (None, False)
    assert MOST <= len(ran.out) + len(ran.err) < MOST + (1 << 18)


def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bounded_subprocess.run_bounded([str(tmp_path / "none")], seconds=SECONDS, most=MOST)


def test_no_descriptor_is_left_open() -> None:
    gc.collect()  # files of others, which close when they are found to be garbage
    before = len(os.listdir("/proc/self/fd"))
    for script in ("true", "exec yes"):
        shell(script)
    assert len(os.listdir("/proc/self/fd")) == before
