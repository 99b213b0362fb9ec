"""Hand-made diagnoses for the renderers: healthy, failed, hostile, unknown, …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.model import Case, Job, Outcome, Rank, State, Subject, Unexamined
from mgpu_doctor.case.process_metadata import UNKNOWN
from mgpu_doctor.findings import (
    Cost,
    Culprit,
    Diagnosis,
    Evidence,
    Finding,
    Fix,
    Predicted,
    RankSummary,
    Severity,
)
from mgpu_doctor.recording.records import STEP_DTYPE

STARTED = 1_790_000_000.0
HOSTILE = (
    "[bold red]x[/]<script>alert(1)</script>\x1b[2J\x1b]0;owned\x07`````|**@root** \u202eoooo\ud800"
)

HEALTHY_STEP = {
    "input": 0.002,
    "transfer": None,
    "forward": 0.012,
    "backward": 0.018,
    "wait": 0.001,
    "communication": 0.0005,
    "optimizer": 0.004,
    "checkpoint": None,
    "evaluation": None,
    "other": 0.0005,
}


def steps(phases: Mapping[str, float | None], many: int) -> npt.NDArray[np.void]:
    records = np.zeros(many, dtype=STEP_DTYPE)
    records["step"] = np.arange(many)
    records["seq"] = np.arange(many) + 1
    for i, name in enumerate(PHASES):
        value = phases.get(name)
        records["phases"][:, i] = np.nan if value is None else value
    records["loss"] = np.nan
    wall = sum(value for value in phases.values() if value is not None)
    records["wall_ns"] = round(wall * 1e9)
    records["end_ns"] = (np.arange(many) + 1) * round(wall * 1e9)
    return records


def rank(
    number: int | None,
    *,
    host: str = "node-a",
    phases: Mapping[str, float | None] = HEALTHY_STEP,
    state: State = State.EXITED,
    exit_code: int | None = 0,
    signal: int | None = None,
    last_step: int | None = 399,
    where: str | None = None,
) -> RankSummary:
    known = [value for value in phases.values() if value is not None]
    return RankSummary(
        rank=number,
        host=host,
        pid=4000 + (number or 0),
        device=None,
        state=state.value,
        exit_code=exit_code,
        signal=signal,
        last_step=last_step,
        step_seconds_median=sum(known) if known else None,
        phases=phases,
        where=where,
    )


def facts(summary: RankSummary, many: int = 400) -> Rank:
    """The rank of a case from which the summary would be made."""
    records = steps(summary.phases, many if summary.last_step is not None else 0)
    return Rank(
        rank=summary.rank,
        local_rank=summary.rank,
        world_size=None,
        host=summary.host,
        pid=summary.pid,
        attempt=0,
        stage=None,
        device=summary.device,
        state=State(summary.state),
        exit_code=summary.exit_code,
        signal=summary.signal,
        ended=None,
        started=STARTED,
        metadata=UNKNOWN,
        steps=records,
        history=records[:0],
        events=(),
        now=None,
        error=None,
        probe_cost=None,
        lost_records=0,
        clock_offset=STARTED,
    )


def diagnosis(
    ranks: Sequence[RankSummary],
    findings: Sequence[Finding] = (),
    *,
    outcome: Outcome = Outcome.COMPLETED,
    exit_code: int | None = 0,
    unexamined: Sequence[Unexamined] = (),
    coverage: float | None = 0.98,
) -> Diagnosis:
    job = Job(
        id="20260917-101500-4711",
        command=("torchrun", "--nproc-per-node", "4", "train.py"),
        cwd="/home/someone/project",
        framework="torch",
        strategy="ddp",
        launcher="torchrun",
        world_size=len(ranks) or None,
        hosts=tuple(sorted({rank.host for rank in ranks})),
        started=STARTED,
        ended=None if outcome is Outcome.RUNNING else STARTED + 26.4,
        outcome=outcome,
        exit_code=None if outcome is Outcome.RUNNING else exit_code,
        signal=None,
        asked=None,
    )
    times = [rank.step_seconds_median for rank in ranks if rank.step_seconds_median is not None]
    return Diagnosis(
        case=Case(
            subject=Subject("recording", "/home/someone/runs/20260917-101500-4711"),
            job=job,
            observed=STARTED + 26.4,
            ranks=tuple(facts(rank) for rank in ranks),
            unexamined=tuple(unexamined),
        ),
        ranks=tuple(ranks),
        coverage=coverage,
        coverage_reason=None if coverage is not None else "no step was measured",
        findings=tuple(findings),
        unexamined=tuple(unexamined),
        step_seconds=sum(times) / len(times) if times else None,
    )


NO_DRIVER = Unexamined(
    "devices",
    "no NVIDIA driver on node-a (libnvidia-ml.so.1 not found)",
    "install the driver, or run on a machine with GPUs",
)


def slow_input(slow: int = 2, world: int = 4) -> Finding:
    return Finding(
        code="straggler-input",
        severity=Severity.WARNING,
        confidence=0.97,
        title=f"rank {slow} is slow: its input takes 31 ms a step, the others' 2 ms; "
        f"{world - 1} ranks wait 29 ms for it",
        cause="Its DataLoader has no workers, so that every batch is made between two steps.",
        culprits=(Culprit(slow, "node-a", None, 4000 + slow),),
        victims=tuple(number for number in range(world) if number != slow),
        evidence=(
            Evidence("input", 0.031, "s", 0.002, "black box, steps 12-400"),
            Evidence("wait", 0.0002, "s", 0.0292, "black box, steps 12-400"),
            Evidence("loader workers", 0, "workers", 2, "process metadata", "train.py:31"),
            Evidence("share of the gap that input explains", 0.99, "1"),
        ),
        since_step=12,
        cost=Cost(step_fraction=0.44, seconds_per_step=0.029),
        fixes=(
            Fix(
                "loader-workers",
                "let worker processes make the batches while the rank computes",
                "DataLoader(dataset, batch_size=…, num_workers=4,\n"
                "           persistent_workers=True, prefetch_factor=4)",
                Predicted(0.56, None, "measured what-if, ±3 %"),
            ),
            Fix("storage", "put this rank's data on local storage", "cp -r data $TMPDIR"),
        ),
        ruled_out=("garbage collection", "saving", "evaluation"),
        not_measured=("its CPU quota",),
    )


LOW_COVERAGE = Finding(
    code="coverage-low",
    severity=Severity.INFO,
    confidence=1.0,
    title="the phases explain 71 % of the time",
    cause="A custom loop.",
    evidence=(Evidence("coverage", 0.71, "1", 0.9),),
    fixes=(Fix("mark", "mark the phases by hand", "with mgpu_probes.phase('input'): …"),),
)


def straggler(world: int = 4, slow: int = 2, outcome: Outcome = Outcome.COMPLETED) -> Diagnosis:
    running = outcome is Outcome.RUNNING
    ranks = [
        rank(
            number,
            phases={**HEALTHY_STEP, "input": 0.031, "wait": 0.0002}
            if number == slow
            else {**HEALTHY_STEP, "wait": 0.0292},
            state=State.RUNNING if running else State.EXITED,
            exit_code=None if running else 0,
        )
        for number in range(world)
    ]
    return diagnosis(
        ranks, [slow_input(slow, world), LOW_COVERAGE], outcome=outcome, unexamined=[NO_DRIVER]
    )


def failed() -> Diagnosis:
    """A failed job all of whose strings are hostile: escape sequences, markup, very long lines."""
    ranks = [
        rank(
            number,
            host="node-a" if number < 2 else f"node-{HOSTILE}",
            state=State.DEAD,
            exit_code=1 if number == 1 else None,
            signal=None if number == 1 else 15,
            where=HOSTILE * 3,
        )
        for number in range(4)
    ]
    finding = Finding(
        code="failed-exception",
        severity=Severity.CRITICAL,
        confidence=1.0,
        title=f"rank 1 failed: ValueError: {HOSTILE}",
        cause=f"{HOSTILE}\n" * 4 + "/very/long" * 40,
        culprits=(Culprit(1, HOSTILE, HOSTILE, 4001),),
        victims=(0, 2, 3),
        evidence=(
            Evidence(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),
            Evidence("exit code", 1, "", None, "torchrun summary", "/home/someone/project/t.py:3"),
            Evidence("not finite", float("nan"), "s", float("inf")),
        ),
        fixes=(Fix("fix", HOSTILE, f"```\n{HOSTILE}\n</details></pre>\n" + "x" * 300),),
    )
    gap = Unexamined(HOSTILE, HOSTILE, HOSTILE)
    base = diagnosis(ranks, [finding], outcome=Outcome.FAILED, exit_code=1, unexamined=[gap])
    job = replace(base.case.job, strategy=HOSTILE, launcher=HOSTILE, command=(HOSTILE,))
    return replace(base, case=replace(base.case, job=job))


def hang() -> Diagnosis:
    ranks = [
        rank(
            number,
            state=State.DEAD if number == 3 else State.HUNG,
            exit_code=None,
            signal=9 if number == 3 else None,
            last_step=118 if number == 3 else 119,
            where=None if number == 3 else "all_reduce train.py:87",
        )
        for number in range(4)
    ]
    finding = Finding(
        code="hang-rank-dead",
        severity=Severity.CRITICAL,
        confidence=0.99,
        title="rank 3 was killed (SIGKILL) at step 118; 3 ranks wait for it in all_reduce",
        cause="Its process is gone. The others wait until their timeout of 30 min.",
        culprits=(Culprit(3, "node-a", None, 4003),),
        victims=(0, 1, 2),
        evidence=(Evidence("waiting for", 42.0, "s", None, "now cell"),),
        fixes=(Fix("why", "find out who killed it", "dmesg -T | grep -i -E 'oom|killed'"),),
    )
    return diagnosis(ranks, [finding], outcome=Outcome.HUNG, exit_code=None)


def healthy(outcome: Outcome = Outcome.COMPLETED) -> Diagnosis:
    return diagnosis([rank(number) for number in range(4)], outcome=outcome, unexamined=[NO_DRIVER])


def no_ranks() -> Diagnosis:
    gap = Unexamined("black box", "no process of this job joined a process group", "see `check`")
    return diagnosis([], outcome=Outcome.FAILED, exit_code=2, unexamined=[gap], coverage=None)


def unknown() -> Diagnosis:
    nothing = RankSummary(
        None, "", None, None, State.MISSING.value, None, None, None, None, {}, None
    )
    finding = Finding("failed-signal", Severity.CRITICAL, 0.0, "", "", culprits=(Culprit(None),))
    base = diagnosis([nothing], [finding], outcome=Outcome.UNKNOWN, coverage=None)
    job = Job(
        "", (), None, None, None, None, None, (), None, None, Outcome.UNKNOWN, None, None, None
    )
    return replace(base, case=replace(base.case, job=job, ranks=()))


def stopped() -> Diagnosis:
    base = healthy(Outcome.KILLED)
    job = replace(base.case.job, asked="SIGINT", signal=2, exit_code=130)
    return replace(base, case=replace(base.case, job=job))


ALL = {
    "healthy": healthy(),
    "running": healthy(Outcome.RUNNING),
    "stopped": stopped(),
    "straggler": straggler(),
    "straggler-running": straggler(outcome=Outcome.RUNNING),
    "straggler-512": straggler(512, 77),
    "failed": failed(),
    "hang": hang(),
    "no-ranks": no_ranks(),
    "unknown": unknown(),
}
