"""A black box never ends its rank, also on a disk that fills up: SIGBUS has no handler.

Real file systems on loop devices. On btrfs and on an overlay above it, no store into a mapping is
sure to find space, so no box is made there; elsewhere it holds on a full disk.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mgpu_doctor.launch.box_storage import can_map_boxes
from mgpu_doctor.recording.box import read_box
from tests.support.launching import doctor, read_json
from tests.support.mounts import KINDS, fill, mounted, needs_mounts

STEPS = 40_000
"""More than a box holds: every page of it is written again on the full disk."""
WRITES = f"""
import os, sys
from mgpu_probes.inprocess.blackbox import Writer
try:
    writer = Writer.open(sys.argv[1], rank=0, world_size=1)
except OSError as error:
    print("refused", error.errno, flush=True)
    sys.exit()
for step in range(200):
    writer.step(step * 10**7, 10**7, step, 0, [0.001] * 10)
os.sync()
print("begun", flush=True)
sys.stdin.readline()
for step in range(200, {STEPS}):
    writer.step(step * 10**7, 10**7, step, 0, [0.001] * 10)
    if step % 1000 == 0:
        os.sync()
print("survived", writer.active, flush=True)
"""


@needs_mounts
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_rank_survives_a_disk_that_fills_up(kind: str, tmp_path: Path) -> None:
    with mounted(kind, tmp_path / "m") as disk:
        rank = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(disk / "boxes")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert rank.stdin
        assert rank.stdout
        first = rank.stdout.readline().split()[0]
        fill(disk)
        rest, _ = rank.communicate("go\n")
        assert rank.returncode == 0, (kind, first, rest)
        if "btrfs" in kind:
            assert first == "refused"
            assert not list((disk / "boxes").iterdir())
        else:
            assert (first, rest.split()) == ("begun", ["survived", "True"])
            (box,) = (disk / "boxes").glob("*.box")
            assert int(read_box(box).steps["step"][-1]) == STEPS - 1


@needs_mounts
@pytest.mark.parametrize("kind", KINDS)
def test_the_launcher_and_the_rank_agree_on_where_boxes_can_be(kind: str, tmp_path: Path) -> None:
    with mounted(kind, tmp_path / "m") as disk:
        assert can_map_boxes(disk) is ("btrfs" not in kind)


@needs_mounts
def test_a_recording_on_btrfs_has_its_live_boxes_elsewhere(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from mgpu_probes.inprocess.blackbox import Writer\n"
        "writer = Writer.open(os.environ['MGPU_DOCTOR_BOXES'], rank=0, world_size=1)\n"
        "writer.leave(0)\n"
    )
    with mounted("btrfs", tmp_path / "m") as disk:
        done = subprocess.run(
            doctor(disk / "r", sys.executable, "-c", script), check=False, capture_output=True
        )
        assert (done.returncode, done.stderr) == (0, b"")
        info = read_json(disk / "r/recording.json")
        assert not Path(info["boxes"]).exists()  # brought home when the job was over
        (box,) = (disk / "r/hosts").glob("*/boxes/*.box")
        assert read_box(box).exit_code == 0
