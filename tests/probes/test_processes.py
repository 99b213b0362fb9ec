"""Processes as /proc shows them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from mgpu_probes.outside import processes


def test_this_process_is_alive_and_known() -> None:
    me = processes.read_process(os.getpid())
    assert me is not None
    assert me.parent == os.getppid()
    assert processes.is_alive(os.getpid(), me.start_ticks)
    assert processes.is_alive(os.getpid())


def test_a_reused_pid_is_another_process() -> None:
    ticks = processes.find_start_ticks(os.getpid())
    assert ticks is not None
    assert not processes.is_alive(os.getpid(), ticks + 1)


def test_a_zombie_is_not_alive() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        process = processes.read_process(child)
        assert process is not None
        assert process.ended
        assert not processes.is_alive(child)
    finally:
        os.waitpid(child, 0)
    assert processes.read_process(child) is None


def test_descendants_are_found_and_a_childs_child_too() -> None:
    code = (
        "import subprocess, sys;"
        "c = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE);"
        "print(c.pid, flush=True); input(); c.communicate()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = {process.pid for process in processes.list_descendants(os.getpid())}
        child.communicate("\n")
    assert {child.pid, grandchild} <= found


def test_a_name_with_parentheses_and_nonsense_are_survived(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7" / "stat"
    stat.write_text("7 (a) b ( S) R 1 " + " ".join(str(n) for n in range(5, 30)))
    process = processes.read_process(7, tmp_path)
    assert process is not None
    assert (process.name, process.state, process.parent) == ("a) b ( S", "R", 1)
    assert process.start_ticks == 22
    stat.write_text("7 (a S")
    assert processes.read_process(7, tmp_path) is None
    assert processes.list_descendants(1, tmp_path / "none") == ()


def test_the_boot_id_is_a_uuid() -> None:
    boot = processes.boot_id()
    assert boot is not None
    assert str(uuid.UUID(boot)) == boot
