"""How long the first run of a job lasts, which decides the steps of all others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.treat import trial_runner
from mgpu_doctor.treat.trial_runner import End, _await_end


class Running:
    """A process that never ends by itself."""

    def poll(self) -> None:
        return None


@pytest.mark.parametrize(
    ("step_seconds", "budget", "steps"),
    [
        (0.01, 600.0, 410),  # 4 s after the warm-up
        (1.0, 600.0, 51),  # a twelfth of the budget is over after 50 s
        (3.0, 600.0, 30),  # 20 measured steps, whatever they take
        (1.0, 6000.0, 70),
        (2.0, 180.0, 18),  # a fifth of the budget is over after 36 s
        (9.0, 180.0, 18),
    ],
)
def test_a_job_whose_steps_are_slow_is_measured_by_fewer(
    step_seconds: float,
    budget: float,
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda _: now.__setitem__(0, now[0] + 0.05))
    monkeypatch.setattr(trial_runner, "_count_steps", lambda _: int(now[0] / step_seconds))
    process: Any = Running()
    assert _await_end(process, tmp_path, None, 0.0, budget, asked={}) is End.REACHED
    assert int(now[0] / step_seconds) == pytest.approx(steps, abs=6)
