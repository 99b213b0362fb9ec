"""What analysis knows about a case: the input of every rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mgpu_probes.inprocess.layout import INPUT

from mgpu_doctor.analysis.align import Joined, UnjoinableError, join
from mgpu_doctor.analysis.attribution import Attribution, UnattributableError, attribute
from mgpu_doctor.analysis.coverage import coverage
from mgpu_doctor.analysis.shares import phase_shares, step_seconds
from mgpu_doctor.analysis.significance import LEAST_STEPS
from mgpu_doctor.analysis.stragglers import Straggler, find_stragglers
from mgpu_doctor.analysis.whatif import saved_without
from mgpu_doctor.case.model import Case, Rank, Unexamined

LEAST_RECORDS = LEAST_STEPS // 2
"""A rank with fewer records (it died early) is left out, so that the others can be compared."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Facts made comparable. None: could not be measured, `missing` says why."""

    case: Case
    joined: Joined | None = None
    attribution: Attribution | None = None
    stragglers: tuple[Straggler, ...] | None = None
    coverage: float | None = None
    step_seconds: float | None = None
    """Mean seconds a step of the whole job, after warm-up."""
    input_shares: Mapping[int, float] | None = None
    """Rank -> share of its wall time after warm-up in which it waited for data."""
    input_saved: float | None = None
    """Share of the step time that is saved if no rank waited for data."""
    missing: Mapping[str, Unexamined] = field(default_factory=dict)
    """Field name -> why it is None and what would give it. A field that is None but not named
    here does not apply to this job (one rank alone has nobody to be compared with)."""

    def rank(self, number: int) -> Rank | None:
        """The rank with this number."""
        return next((rank for rank in self.case.ranks if rank.rank == number), None)


def measure(case: Case) -> Measures:
    """Computes everything that rules ask for. Pure."""
    if not any(len(rank.steps) for rank in case.ranks):
        return Measures(case, missing=_not_recorded(case))
    shares = phase_shares(case.ranks, INPUT)
    alone = Measures(
        case,
        coverage=coverage(case.ranks),
        step_seconds=step_seconds(case.ranks),
        input_shares=shares,
    )
    if len(case.ranks) < 2 and (case.job.world_size or 1) < 2:
        return replace(alone, input_saved=max(shares.values()) if shares else None)
    try:
        joined = join(case.ranks, least=LEAST_RECORDS)
    except UnjoinableError as reason:
        return replace(alone, missing=_missing("joined", str(reason)))
    try:
        attribution = attribute(joined, host_clock=has_host_clock(case.ranks))
    except UnattributableError as reason:
        return replace(alone, joined=joined, missing=_missing("attribution", str(reason)))
    compared = replace(
        alone,
        joined=joined,
        attribution=attribution,
        input_saved=saved_without(joined, attribution, INPUT),
    )
    if attribution.steps < LEAST_STEPS:
        few = f"{attribution.steps} steps can be compared; {LEAST_STEPS} decide at the earliest"
        return replace(compared, missing=_missing("stragglers", few))
    return replace(compared, stragglers=find_stragglers(joined, attribution))


def has_host_clock(ranks: tuple[Rank, ...]) -> bool:
    """Whether any rank computes on a device but could stamp its phases on the host only."""
    return any(
        rank.birth.get("clock") == "host" and not str(rank.device or "cpu").startswith("cpu")
        for rank in ranks
    )


MORE_STEPS = "let the job run for some tens of steps with every rank under `mgpu-doctor run`"
REMEDIES = {
    "joined": MORE_STEPS,
    "attribution": "use DistributedDataParallel or torch.distributed collectives in ranks that "
    "the probe can see, with a torch that this version of the probe supports",
    "stragglers": MORE_STEPS,
}
"""By field; each is computed from those before it."""


def _missing(name: str, reason: str) -> dict[str, Unexamined]:
    """`name` and everything that is computed from it."""
    fields = list(REMEDIES)
    why = Unexamined("comparison of ranks", reason, REMEDIES[name])
    return dict.fromkeys(fields[fields.index(name) :], why)


def _not_recorded(case: Case) -> dict[str, Unexamined]:
    """Why nothing could be measured at all: what the case itself says of it, if it does."""
    told = next((one for one in case.unexamined if one.probe == "in-process probe"), None)
    why = told or Unexamined(
        "step records",
        "no rank recorded a training step" if case.ranks else "no rank left a black box",
        "start the job with `mgpu-doctor run -- COMMAND` and let it reach its training loop; the "
        "probe needs torch in the job's Python and is not loaded by `python -E`, `-I` or `-S`",
    )
    return dict.fromkeys(("coverage", "step_seconds", "input_shares", *REMEDIES), why)
