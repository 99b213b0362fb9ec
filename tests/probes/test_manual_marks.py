"""Marks that a program sets itself: on the engine, and through `mgpu_doctor.phase` and `step`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.phase_ledger import Ledger
from mgpu_probes.inprocess.step_engine import Steps
from mgpu_probes.inprocess.step_marks import PHASE_BEGINS
from mgpu_probes.inprocess.step_segments import BACKWARD, CALLS, UPDATE, Step

import mgpu_doctor
from mgpu_doctor import loop_marks
from mgpu_doctor.recording.box import read_box

TRAIN, VALIDATION = 11, 12
MS = 1_000_000


class Loop:
    """A training loop as marks, in ms of a fake clock."""

    def __init__(self) -> None:
        self.now = MS
        self.emitted: list[Step] = []
        self.steps = Steps(Ledger(self.now), self.emitted.append, lambda: (0, 0, 0, 0))

    def idle(self, ms: int) -> None:
        self.now += ms * MS

    def phase(self, name: str, ms: int, *inside: Callable[[], None]) -> None:
        PHASE_BEGINS[name](self.steps, self.now)
        self.idle(ms)
        for act in inside:
            act()
        self.steps.phase_ends(self.now)

    def step(self) -> None:
        self.steps.turn_ends(self.now)

    def fetch(self, ms: int = 1, loader: int = TRAIN) -> None:
        self.steps.fetch_begins(loader, self.now)
        self.idle(ms)
        self.steps.fetch_ends(self.now, 4)

    def backward(self, ms: int = 2) -> None:
        self.steps.backward_begins(self.now)
        self.idle(ms)
        self.steps.backward_ends(self.now)

    def update(self, optimizer: int = 1, ms: int = 1) -> None:
        self.steps.update_begins(self.now)
        self.idle(ms)
        self.steps.update_ends(self.now, optimizer)

    def call(self, ms: int = 3) -> None:
        self.steps.call_begins(self.now)
        self.idle(ms)
        self.steps.call_ends(self.now, ("train.py", 1, "all_reduce"))

    def end(self) -> list[Step]:
        self.steps.leave()
        for step in self.emitted:
            assert sum(step.phases) == step.end - step.start
        return self.emitted


def times(step: Step) -> dict[str, float]:
    """Milliseconds of the phases that took any."""
    return {name: ns / MS for name, ns in zip(layout.PHASES, step.phases, strict=True) if ns}


def test_a_loop_without_a_framework_has_the_steps_and_phases_that_it_marks() -> None:
    loop = Loop()
    loop.idle(500)
    for _ in range(10):
        loop.phase("input", 2)
        loop.idle(1)
        loop.phase("forward", 3)
        loop.phase("backward", 4)
        loop.phase("wait", 5)
        loop.phase("optimizer", 6)
        loop.idle(7)
        loop.step()
    steps = loop.end()
    assert len(steps) == 10
    assert [times(step) for step in steps] == [
        {"input": 2, "forward": 3, "backward": 4, "wait": 5, "optimizer": 6, "other": 8}
    ] * 10


def test_steps_alone_are_counted_from_the_first_call() -> None:
    loop = Loop()
    loop.idle(500)
    for _ in range(6):
        loop.idle(10)
        loop.step()
    assert [times(step) for step in loop.end()] == [{"other": 10}] * 5


def test_a_hook_within_a_marked_phase_is_not_counted_twice() -> None:
    """The steps are those of the optimizer, as without the marks."""
    loop = Loop()
    for _ in range(8):
        loop.phase("input", 1, loop.fetch)
        loop.phase("backward", 1, loop.backward, loop.call)
        loop.phase("optimizer", 1, loop.update)
    steps = loop.end()
    assert len(steps) == 8
    assert {step.level for step in steps} == {UPDATE}
    assert {(step.samples, step.backwards, step.collectives) for step in steps} == {(4, 1, 1)}
    assert times(steps[3]) == {"input": 2, "backward": 3, "wait": 3, "optimizer": 2}


def test_a_backward_pass_within_a_marked_phase_is_a_sign_of_a_step() -> None:
    loop = Loop()
    for _ in range(8):
        loop.phase("input", 1)
        loop.phase("backward", 0, loop.backward)
    steps = loop.end()
    assert [step.level for step in steps] == [BACKWARD] * 8


def test_marked_steps_replace_those_that_hooks_would_count() -> None:
    """Two updates of one optimizer per iteration are one step where the program says so."""
    loop = Loop()
    for _ in range(6):
        loop.fetch()
        for _ in range(2):
            loop.backward()
            loop.update()
        loop.step()
    steps = loop.end()
    assert [step.backwards for step in steps] == [2] * 6
    assert times(steps[2]) == {"input": 1, "backward": 4, "optimizer": 2}


def test_the_collectives_of_the_setup_belong_to_no_marked_step() -> None:
    loop = Loop()
    for _ in range(5):
        loop.call()
    for _ in range(4):
        loop.phase("forward", 2)
        loop.call()
        loop.step()
    steps = loop.end()
    assert [times(step) for step in steps] == [{"forward": 2, "wait": 3}] * 4
    assert {step.level for step in steps} == {CALLS}


def test_a_batch_without_a_backward_pass_is_training_where_steps_are_marked() -> None:
    loop = Loop()
    for _ in range(4):
        loop.fetch()
        loop.idle(3)
        loop.step()
    assert [times(step) for step in loop.end()] == [{"input": 1, "other": 3}] * 4


def test_within_a_marked_evaluation_only_waits_are_something_else() -> None:
    loop = Loop()
    for _ in range(4):
        loop.fetch()
        loop.backward()
        loop.update()
        loop.phase("evaluation", 5, lambda: loop.fetch(2, VALIDATION), loop.call)
        loop.step()
    assert times(loop.end()[1]) == {
        "input": 1,
        "backward": 2,
        "optimizer": 1,
        "evaluation": 7,
        "wait": 3,
    }


def test_a_phase_whose_end_was_lost_ends_with_the_next_mark() -> None:
    loop = Loop()
    for _ in range(3):
        PHASE_BEGINS["forward"](loop.steps, loop.now)
        loop.idle(2)
        PHASE_BEGINS["optimizer"](loop.steps, loop.now)
        loop.idle(3)
        loop.step()
    assert [times(step) for step in loop.end()] == [{"forward": 2, "optimizer": 3}] * 3


def test_hooks_count_again_when_a_marked_loop_is_over() -> None:
    loop = Loop()
    for _ in range(3):
        loop.backward()
        loop.update()
        loop.step()
    for _ in range(5_000):
        loop.fetch()
        loop.backward()
        loop.update()
    assert len(loop.end()) > 2_900


def test_every_phase_that_can_be_marked_is_one_of_the_probe() -> None:
    assert loop_marks.PHASES.keys() == PHASE_BEGINS.keys()


def test_wrong_calls_are_refused_without_a_doctor_as_well() -> None:
    with pytest.raises(ValueError, match="'inptu' is not a phase that can be marked: use input, "):
        mgpu_doctor.phase("inptu")
    with pytest.raises(ValueError, match="'communication' is not a phase"):
        mgpu_doctor.phase("communication")
    with mgpu_doctor.phase("forward"):
        with pytest.raises(RuntimeError, match="'wait' begins inside phase 'forward'"):
            mgpu_doctor.phase("wait").__enter__()
        with pytest.raises(RuntimeError, match="inside phase 'forward'"):
            mgpu_doctor.step()
        other = threading.Thread(target=mgpu_doctor.step)
        other.start()
        other.join()
    with mgpu_doctor.phase("forward"):
        pass
    mgpu_doctor.step()


def test_an_exception_ends_the_phase() -> None:
    with pytest.raises(KeyError), mgpu_doctor.phase("input"):
        raise KeyError
    with mgpu_doctor.phase("input"):
        pass


def test_importing_the_doctor_imports_next_to_nothing() -> None:
    script = (
        "import sys, __future__; before = set(sys.modules); import mgpu_doctor\n"
        "mgpu_doctor.step()\n"
        "print(sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(mgpu_doctor.__file__).parents[1],
    )
    assert ended.stdout.strip() == "['mgpu_doctor', 'mgpu_doctor.loop_marks']"


def run_observed(program: str, boxes: Path) -> str:
    """Runs a program as rank 1 of 2 under the probe, and returns what it printed."""
    root = Path(mgpu_doctor.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": f"{root / 'probes/mgpu_probes/inject'}{os.pathsep}{root}",
            "MGPU_DOCTOR_BOXES": str(boxes),
            "RANK": "1",
            "WORLD_SIZE": "2",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout


FORKED = """
import mgpu_doctor, os
for _ in range(3):
    with mgpu_doctor.phase("forward"):
        pass
    with mgpu_doctor.phase("wait"):
        pass
    mgpu_doctor.step()
if os.fork() == 0:
    for _ in range(3):
        with mgpu_doctor.phase("forward"):
            pass
        mgpu_doctor.step()
else:
    os.wait()
"""


def test_a_forked_child_has_marks_of_its_own(tmp_path: Path) -> None:
    run_observed(FORKED, tmp_path)
    parent, child = sorted(map(read_box, tmp_path.glob("*.box")), key=lambda box: box.identity.pid)
    assert (len(parent.steps), len(child.steps)) == (3, 3)
    assert parent.birth["unseen_waits"] is None
    assert child.birth["unseen_waits"] == "unmarked"


MARKED = """
import mgpu_doctor, sys, time
for turn in range(12):
    with mgpu_doctor.phase("input"):
        time.sleep(0.001)
    if {waits}:
        with mgpu_doctor.phase("wait"):
            time.sleep(0.001)
    mgpu_doctor.step()
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("waits", [True, False])
def test_a_marked_loop_writes_a_box(waits: bool, tmp_path: Path) -> None:
    assert run_observed(MARKED.format(waits=waits), tmp_path) == "False\n"
    (file,) = tmp_path.glob("*.box")
    box = read_box(file)
    assert (box.identity.rank, box.identity.world_size) == (1, 2)
    assert len(box.steps) == 12
    phases = box.steps["phases"]
    assert (phases[:, layout.INPUT] >= 0.001).all()
    waited = phases[:, layout.WAIT]
    assert (waited >= 0.001).all() if waits else np.isnan(waited).all()
    facts = json.loads(json.dumps(box.birth))
    assert (facts["clock"], facts["step_sign"]) == ("cpu", "marked")
    assert facts["unseen_waits"] == (None if waits else "unmarked")
