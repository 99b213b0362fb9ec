"""Runs a script whose ranks the probe treats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mgpu_doctor.recording.box import Box, read_box

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"


def train(
    folder: Path,
    script: str,
    treatments: dict[str, Any],
    *words: str,
    ranks: int = 2,
    blocks: str = "",
) -> tuple[Any, Box]:
    """What rank 0 printed, and its box. The script's first argument is where the ranks meet.
    `blocks`: steps in which the treatments are on, as the probe reads them."""
    folder.mkdir(exist_ok=True)
    boxes = folder / "boxes"
    (folder / "script.py").write_text(script)
    started = [
        subprocess.Popen(
            [sys.executable, "script.py", f"file://{folder}/meeting", *words],
            cwd=folder,
            env={
                "PYTHONPATH": str(INJECT),
                "MGPU_DOCTOR_BOXES": str(boxes),
                "MGPU_DOCTOR_TREATMENTS": json.dumps(treatments),
                "MGPU_DOCTOR_TREATMENT_BLOCKS": blocks,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "PATH": os.environ["PATH"],  # torch.compile needs a compiler
                "HOME": str(folder),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    printed = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks
    read = map(read_box, sorted(boxes.glob("*.box")))
    return json.loads(printed[0]), next(box for box in read if box.identity.rank in (0, None))


def changes(box: Box) -> dict[str, dict[str, Any]]:
    """What each treatment changed in the rank, by its name."""
    return {each["name"]: each for each in box.birth.get("treatments", ())}
