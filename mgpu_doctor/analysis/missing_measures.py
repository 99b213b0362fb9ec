"""Why measures are missing, and what would give them."""

from __future__ import annotations

from collections.abc import Sequence

from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.case.model import Case, Gap, Rank, Unexamined
from mgpu_doctor.case.placeholders import MACHINE

LEAST_RECORDS = LEAST_STEPS // 2
"""A rank with fewer records (it died early) is left out, so that the others can be compared."""

MORE_STEPS = "let the job run for some tens of steps with every rank under `mgpu-doctor run`"
REMEDIES = {
    "joined": MORE_STEPS,
    "attribution": "use DistributedDataParallel or torch.distributed collectives in ranks that "
    "the probe can see, with a torch that this version of the probe supports",
    "stragglers": MORE_STEPS,
    "stalls": MORE_STEPS,
    "loads": MORE_STEPS,
}
"""Field -> the remedy if it is missing. Each field is computed from the ones before it."""
TRACE_ALL = "take a profiler trace of the same steps on all ranks: `mgpu-doctor trace PID`"
STEP_MEASURES = ("coverage", "input_shares", *REMEDIES)
"""Fields that are computed from the phases of steps."""
MOST_REASONS = 3
"""How many reasons for untimed devices are listed."""
ONE_IN_MANY = Unexamined(
    "stalls in single steps",
    "one step in several was timed, so the phases of the steps in between are not known",
    TRACE_ALL,
)


def explain_untimed_devices(ranks: Sequence[Rank]) -> dict[str, Unexamined]:
    """Field -> why it is missing if only the host's clock timed the work of devices."""
    numbers = sorted(rank.rank for rank in ranks if rank.rank is not None)
    who = f"rank {numbers[0]}" if len(numbers) == 1 else f"{len(ranks)} ranks"
    if any(rank.device_times is not None and len(rank.device_times) for rank in ranks):
        few = Unexamined(
            "own work and waiting on the devices",
            f"the devices of {who} timed fewer than {LEAST_RECORDS} of their steps so far",
            MORE_STEPS,
            Gap.FEW_STEPS,
        )
        return dict.fromkeys(STEP_MEASURES, few)
    why = Unexamined(
        "own work and waiting on the devices",
        f"the host timed the phases of {who} while the device worked asynchronously, and the "
        "device's queue can hide or move any wait: no rank was compared, and no wait for data "
        f"was judged{_reasons(ranks)}",
        TRACE_ALL,
    )
    return dict.fromkeys(STEP_MEASURES, why)


def _reasons(ranks: Sequence[Rank]) -> str:
    """Why these ranks' devices were not timed, as the end of a sentence; empty: unknown."""
    reasons = sorted({rank.metadata.untimed for rank in ranks if rank.metadata.untimed})
    known = "; ".join(reasons[:MOST_REASONS])
    return f". Why the devices were not timed: {known}" if reasons else ""


def list_missing(
    name: str, reason: str, remedy: str | None = None, gap: Gap = Gap.RANK_COMPARISON
) -> dict[str, Unexamined]:
    """The field `name` and all fields computed from it -> why they are missing."""
    why = Unexamined("comparison of ranks", reason, remedy or REMEDIES[name], gap)
    return dict.fromkeys([*REMEDIES][[*REMEDIES].index(name) :], why)


IN_NO_TRACE = Unexamined(
    "phases, stalls and the run as a whole",
    "a profiler trace holds few steps, and intervals instead of phases",
    "start the job with `mgpu-doctor run -- COMMAND` next time",
)
MORE_TRACES = (
    "let every rank profile the same ten steps or more "
    "(torch.profiler.schedule(wait=1, warmup=2, active=10)) and hand over all of the traces"
)
_NEXT_TIME = "start the job with `mgpu-doctor run -- COMMAND` next time"
WITHOUT_STEPS = {
    "log": Unexamined("speed", "console text has no step times", _NEXT_TIME),
    "trace": Unexamined("speed", "dumps have no step times", _NEXT_TIME),
    MACHINE: Unexamined("training job", "none is running on this machine", _NEXT_TIME),
}
"""Kind of subject -> measures that it cannot contain."""


def explain_no_steps(case: Case) -> dict[str, Unexamined]:
    """Measure -> why nothing could be measured: the case's own reason, if it has one."""
    known_reason = next(
        (unexamined for unexamined in case.unexamined if unexamined.gap is Gap.PROCESS_PROBE), None
    )
    if case.subject.kind in WITHOUT_STEPS:
        known_reason = WITHOUT_STEPS[case.subject.kind]
    why = known_reason or Unexamined(
        "step records",
        "no rank recorded a training step" if case.ranks else "no rank left a black box",
        "start the job with `mgpu-doctor run -- COMMAND` and let it reach its training loop; the "
        "probe needs torch or TensorFlow in the job's Python and is not loaded by `python -E`, "
        "`-I` or `-S`",
    )
    return dict.fromkeys(("step_seconds", *STEP_MEASURES), why)


def describe_crash(part: str, error: Exception) -> Unexamined:
    """What is unknown because a part of the doctor raised an exception."""
    why = f"it failed with {type(error).__name__}: {error}"
    return Unexamined(part, why, "report it, with the recording, to its authors")
