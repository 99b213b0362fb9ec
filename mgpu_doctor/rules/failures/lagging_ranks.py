"""Whom the others waited for until they timed out: of the few that did not time out themselves,
who had finished fewer steps than everybody who did. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from mgpu_doctor.analysis.postmortem.rank_failures import last_finished_step
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.findings import Culprit, Evidence, Fix
from mgpu_doctor.formatting import format_ranks


@dataclass(frozen=True, slots=True)
class LaggingRanks:
    """`last`: the newest step that one of them finished; `others`: the oldest last step of those
    who waited."""

    ranks: tuple[Rank, ...]
    last: int
    others: int

    @property
    def names(self) -> str:
        return format_ranks(one.rank for one in self.ranks if one.rank is not None)

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        return tuple(Culprit(one.rank, one.host, one.device, one.pid) for one in self.ranks)

    @property
    def cause(self) -> str:
        each = "it" if len(self.ranks) == 1 else "they"
        return (
            f"All ranks but {self.names} timed out in a collective. {self.names.capitalize()} had "
            f"finished step {self.last}, the others step {self.others}: {each} never came to that "
            f"collective. What {each} did instead was not seen."
        )

    @property
    def evidence(self) -> Evidence:
        return Evidence(
            "last finished step, against those that timed out",
            self.last,
            "steps",
            self.others,
            source="black boxes",
            where=self.names,
        )

    @property
    def fix(self) -> Fix:
        return Fix(
            "look-while-it-stands",
            f"Find out where {self.names} stood after step {self.last}",
            "`mgpu-doctor diagnose PID` tells it while the job stands. Give it time to stand: "
            "`init_process_group(..., timeout=timedelta(minutes=60))`; `mgpu-doctor run` keeps the "
            "stacks of a job that stands.",
        )


def find_lagging_ranks(silent: Set[int], timed_out: Set[int], case: Case) -> LaggingRanks | None:
    """None where the steps do not tell, as in a console log alone."""
    last = {one.rank: last_finished_step(one) for one in case.ranks if one.rank is not None}
    theirs = [step for rank in silent if (step := last.get(rank)) is not None]
    others = [step for rank in timed_out if (step := last.get(rank)) is not None]
    complete = len(theirs) == len(silent) > 0 and len(others) == len(timed_out) > 0
    if not complete or max(theirs) >= min(others):
        return None
    late = tuple(one for one in case.ranks if one.rank in silent)
    return LaggingRanks(late, max(theirs), min(others))
