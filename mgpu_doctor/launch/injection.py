"""What the job's environment needs for the probe to be found by its ranks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

BOXES_VARIABLE = "MGPU_DOCTOR_BOXES"


def job_environment(environment: Mapping[str, str], boxes: Path | None) -> dict[str, str]:
    """`environment` with the probe's folder before the user's own PYTHONPATH.

    `boxes`: where ranks write their black boxes; None: there is no such place, no probe."""
    changed = dict(environment)
    if boxes is not None:
        theirs = environment.get("PYTHONPATH")
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (str(inject_folder()), theirs)))
        changed[BOXES_VARIABLE] = str(boxes)
    return changed


def inject_folder() -> Path:
    """The folder that holds what every rank imports at its start."""
    found = importlib.util.find_spec("mgpu_probes")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "inject"
