"""Ranks that wait for others where no hook sees it are compared with nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES, WAIT
from mgpu_probes.inprocess.training_objects import UnseenWaits

from mgpu_doctor.analysis.missing_measures import TRACE_ALL
from mgpu_doctor.analysis.steps.work_and_wait import MARK_WAITS, UNSEEN_WAITS
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from tests.support.synthetic import Synthetic, make_case, make_rank, records

FORWARD = PHASES.index("forward")
SLOW, PARTNER = 1, 0
EXCESS = 0.02


def paired(birth: dict[str, Any], *, hidden_from: int | None) -> Case:
    """Rank 1 works 20 ms longer in forward. Its partner waits for it inside its own forward pass,
    where no hook sees it, and longer by what it then has to do; the other pair waits visibly. From
    step `hidden_from` on the probe knows that it does not see all waits."""
    made = []
    for rank, steps in enumerate(records(Synthetic(ranks=4, noise=0.002, spikes=0.0))):
        longer = {SLOW: EXCESS, PARTNER: EXCESS + 0.004}.get(rank, 0.0)
        steps["phases"][:, FORWARD] += longer
        steps["phases"][:, WAIT] += EXCESS + 0.004 - longer
        steps["wall_ns"] += int((EXCESS + 0.004) * 1e9)
        steps["end_ns"] = 10**12 + np.cumsum(steps["wall_ns"])
        if hidden_from is not None:
            steps["phases"][hidden_from:, WAIT] = np.nan
        made.append(make_rank(rank, steps, birth=dict(birth)))
    return make_case(made, world_size=4)


def culprits(diagnosis: Diagnosis) -> set[int | None]:
    return {culprit.rank for finding in diagnosis.findings for culprit in finding.culprits}


def test_without_the_note_the_partner_would_be_named() -> None:
    assert PARTNER in culprits(diagnose(paired({}, hidden_from=None)))


@pytest.mark.parametrize("where", UnseenWaits)
def test_nobody_is_named_and_the_reason_is_shown(where: UnseenWaits) -> None:
    diagnosis = diagnose(paired({"unseen_waits": where.value}, hidden_from=5))
    assert culprits(diagnosis) == set()
    (gap,) = (gap for gap in diagnosis.unexamined if UNSEEN_WAITS[where] in gap.reason)
    assert gap.remedy == (MARK_WAITS if where is UnseenWaits.UNMARKED else TRACE_ALL)
