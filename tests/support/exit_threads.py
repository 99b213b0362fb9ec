"""Which threads ranks still have as their Python shuts down.

A thread of gloo among them may abort the process at its exit (pytorch issue 190489).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.jobs import Ended, run

_NOTE = """
import atexit, os
def write():
    threads = [open(f'/proc/self/task/{t}/comm').read() for t in os.listdir('/proc/self/task')]
    with open(PATH + os.environ['RANK'], 'w') as file:
        file.writelines(threads)
if 'RANK' in os.environ:
    atexit.register(write)
"""
"""What every Python of the job runs at its start."""


def run_noting_threads(
    command: Sequence[str], folder: Path, ranks: int = 2
) -> tuple[Ended, list[list[str]]]:
    """How the job ended, and the names of each rank's threads."""
    written = str(folder / "threads-of-rank-")
    (folder / "sitecustomize.py").write_text(_NOTE.replace("PATH", repr(written)))
    ended = run(["env", f"PYTHONPATH={folder}", *command])
    assert ended.code == 0, ended.err
    return ended, [Path(f"{written}{rank}").read_text().splitlines() for rank in range(ranks)]


def assert_no_gloo(threads: Sequence[Sequence[str]]) -> None:
    """Of all ranks."""
    for names in threads:
        assert "python" in names
        assert "gloo" not in names
