"""`run` below a launcher that sets the ranks' variables: its own processes are no ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mgpu_probes.outside import jobs

from tests.support.jobs import until
from tests.support.process_tables import by_hand


def test_what_forwards_the_output_is_no_rank(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"import pathlib, sys; pathlib.Path({str(mark)!r}).touch(); sys.stdin.read()"
    words = by_hand(0, 2, port=os.getpid())
    environment = os.environ | {name: str(word) for name, word in words.items()}
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(tmp_path / "run")]
    with subprocess.Popen(
        [*doctor, "--", sys.executable, "-c", script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,  # both are forwarded
        stderr=subprocess.PIPE,
    ) as run:
        until(mark.exists)
        mine = [rank.command for job in jobs.find_below(run.pid) for rank in job.ranks]
        assert [command[1:] for command in mine] == [("-c", script[:400])]
        run.communicate()
