"""Ranks that timed out in a collective: which ranks they waited for, if the black boxes show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from tests.support.failure_cases import AT, dead, error, failed_job, step_records, terminated
from tests.support.metadata import with_metadata

TIMED_OUT = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
    "Timed out waiting 20000ms for recv operation to complete"
)


def timed_out(
    steps: Sequence[int], silent: Sequence[int], birth: Mapping[str, Any] | None = None
) -> Finding:
    """The leading finding of a job whose ranks finished so many `steps`."""
    said = replace(error("RuntimeError", TIMED_OUT.partition(": ")[2]), at=AT)
    told = [number for number in range(len(steps)) if number not in silent]
    ranks = [
        with_metadata(
            replace(
                dead(number, exit_code=1, error=said) if number in told else terminated(number),
                steps=step_records(many),
            ),
            **birth or {},
        )
        for number, many in enumerate(steps)
    ]
    signs = tuple(
        LogMatch("gloo-timeout", number, "stderr", number, TIMED_OUT, None, values=_VALUES)
        for number in told
    )
    case: Case = replace(failed_job(ranks), signs=signs)
    return diagnose(case).findings[0]


_VALUES = {"milliseconds": "20000", "operation": "recv"}


def test_the_one_that_is_behind_and_did_not_time_out_was_waited_for() -> None:
    found = timed_out([29, 28, 29, 29], silent=[1])
    assert (found.code, found.victims) == ("failed-gloo", (0, 2, 3))
    assert [culprit.rank for culprit in found.culprits] == [1]
    assert found.title == "Rank 1 made no progress: ranks 0, 2 and 3 timed out"
    assert found.since_step == 28
    assert "Rank 1 had finished step 28, the others step 29" in found.cause


def test_nobody_is_named_where_some_may_wait_in_a_smaller_group() -> None:
    pairs = {"groups": [{"name": "tp", "ranks": [0, 1], "backend": "gloo"}]}
    assert timed_out([29, 28, 29, 29], silent=[1], birth=pairs).culprits == ()


@pytest.mark.parametrize(
    ("steps", "silent"),
    [
        ([29, 29, 29, 29], [1]),  # silent, but not behind
        ([29, 28, 29, 29], []),  # behind, but it waited like all others
        ([29, 28, 28, 29], [1, 2]),  # too many to be an exception
        ([29, 28, 29, 28], [1]),  # another one is as far behind
    ],
)
def test_nobody_is_named_where_the_steps_do_not_tell(steps: list[int], silent: list[int]) -> None:
    found = timed_out(steps, silent)
    assert found.culprits == ()
    assert "waited 20 s for another one" in found.title
    assert "this rank" not in found.title.lower()


@pytest.mark.parametrize(("ranks", "named"), [(8, [0, 1]), (7, [])])
def test_a_quarter_of_the_ranks_is_few(ranks: int, named: list[int]) -> None:
    found = timed_out([28, 28, *[29] * (ranks - 2)], silent=[0, 1])
    assert [culprit.rank for culprit in found.culprits] == named
