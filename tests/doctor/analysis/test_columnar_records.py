"""The analysis gives the same results for records stored by row and by column."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.recording import second_process
from mgpu_doctor.recording.columns import Columns, Packer
from mgpu_doctor.report import diagnosis_json
from tests.support.synthetic import Fault, Synthetic, synthetic_case

JOBS = {
    "healthy": Synthetic(),
    "straggler": Synthetic(faults=[Fault(2, "forward", 6.0)]),
    "late data": Synthetic(faults=[Fault(1, "input", 8.0, start=40)]),
    "stalls": Synthetic(faults=[Fault(0, "other", 90.0, start=10, every=15)]),
    "early stalls": Synthetic(faults=[Fault(0, "checkpoint", 900.0, start=3, every=50)]),
    "many": Synthetic(ranks=40, faults=[Fault(33, "backward", 4.0)]),
}


def packed(case: Case) -> Case:
    columns = Packer().pack_all([_array(rank.steps) for rank in case.ranks])
    ranks = (replace(rank, steps=own) for rank, own in zip(case.ranks, columns, strict=True))
    return replace(case, ranks=tuple(ranks))


def _array(steps: object) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    assert isinstance(steps, np.ndarray)
    return steps


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_the_same_diagnosis(job: Synthetic) -> None:
    case = synthetic_case(job)
    assert diagnosis_json.render(diagnose(packed(case))) == diagnosis_json.render(diagnose(case))


@pytest.mark.parametrize("dies", [False, True])
def test_the_same_diagnosis_by_two_processes(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    case = packed(synthetic_case(JOBS["many"]))
    alone = diagnosis_json.render(diagnose(case))
    begun = []
    fork = os.fork

    def forked() -> int:
        child = fork()
        if child == 0 and dies:
            os._exit(1)
        begun.append(child)
        return child

    monkeypatch.setattr(second_process, "MANY_CELLS", 1)
    monkeypatch.setattr(second_process, "may_fork", lambda: True)
    monkeypatch.setattr(os, "fork", forked)
    assert diagnosis_json.render(diagnose(case)) == alone
    assert len(begun) > 3


def test_warm_up_is_left_out_whenever_it_is_asked_for() -> None:
    (rank, *_) = synthetic_case(Synthetic()).ranks
    steps = Packer().pack(_array(rank.steps))
    for _ in range(2):
        late = after_warm_up(steps)
        assert isinstance(late, Columns)
        np.testing.assert_array_equal(late["step"], after_warm_up(rank.steps)["step"])
        assert int(late["step"][0]) == 5
