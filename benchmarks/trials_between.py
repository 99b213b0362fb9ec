"""Slow jobs of `benchmarks.blame` whose cause is not in a phase of every step: work of one rank
between steps, barriers, work that is uneven in changing ranks, replicas that part, and a signal
that nobody accounts for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.trials import Launcher, Trial

TRANSIENT, ALONE = "straggler-transient", "rank0-only-work"


def between() -> Iterator[Trial]:
    """All of them."""
    yield from _work_of_rank_0()
    yield from _barriers()
    yield from _uneven_work()
    yield from _diverged()
    yield from _terminated()


def _work_of_rank_0() -> Iterator[Trial]:
    for ranks in (2, 3, 4):
        yield _stall("evaluation", ranks, 0, ALONE, "--every", "20")
        yield _stall("log", ranks, 0, ALONE, "--every", "25")
        yield _stall("checkpoint", ranks, 0, "checkpoint-stall", "--every", "30")
        yield _stall("sleep", ranks, 1, TRANSIENT, "--every", "20")
    yield _stall("evaluation", 2, 0, ALONE, "--every", "8", "--ms", "150")
    often = ("--every", "2", "--ms", "30")  # in half of the steps: either name is right
    yield replace(_stall("log", 2, 0, ALONE, *often), codes=(ALONE, "straggler-other"))
    yield _stall("evaluation", 3, 0, ALONE, "--every", "50", "--ms", "2000")
    once = ("--once", "--every", "12", "--ms", "2500")
    yield _stall("evaluation", 2, 0, ALONE, *once)
    yield _stall("log", 3, 1, TRANSIENT, *once)
    yield _stall("sleep", 2, 1, TRANSIENT, *once)
    own = ("--steps", "100", "--every", "12", "--who", "0")
    yield _job("recompiling on one rank", "recompiles", 2, "recompiling", *own, who=(0,))


def _stall(kind: str, ranks: int, who: int, code: str, *options: str) -> Trial:
    length = () if "--ms" in options else ("--ms", "300")
    name = f"stalls: {kind} {' '.join(options).replace('--', '')}"
    stall = ("--stall", kind, "--who", str(who), *length, *options)
    return _job(name, "stalls", ranks, code, *stall, who=(who,))


def _job(
    name: str, script: str, ranks: int, code: str, *options: str, who: tuple[int, ...] = ()
) -> Trial:
    return Trial(name, script, ranks, options, (code,), who, launcher=Launcher.PLAIN)


def _barriers() -> Iterator[Trial]:
    small = ("--steps", "100", "--barrier")
    for ranks in (2, 3):
        yield _job("a barrier in each step", "ddp_settings", ranks, "sync-excess", *small)
    both = (*small, "--log-every-step")
    yield _job("a barrier and a reduced loss", "ddp_settings", 2, "sync-excess", *both)


def _uneven_work() -> Iterator[Trial]:
    lengths = ("--uneven", "lengths", "--steps", "100")
    for ranks in (2, 3, 4):
        yield _job("uneven lengths", "uneven_batches", ranks, "imbalance-data", *lengths)
    unseen = (*lengths, "--no-loader")
    for ranks in (2, 3, 4):
        yield _job("uncounted lengths", "uneven_batches", ranks, "imbalance-data", *unseen)
    stages = ("--steps", "80", "--uneven", "stages")
    yield _job("pipeline: uneven stages", "pipeline_1f1b", 2, "imbalance-data", *stages)
    yield _job("pipeline: three uneven stages", "pipeline_1f1b", 3, "imbalance-data", *stages)
    replicas = ("--steps", "80", "--uneven", "replicas", "--replicas", "2")
    yield _job("pipelines: uneven replicas", "pipeline_1f1b", 4, "imbalance-data", *replicas)


def _diverged() -> Iterator[Trial]:
    code = "replicas-diverged"
    for ranks in (2, 3, 4):
        if ranks > 2:  # of two, `causes` has it
            yield _job("no broadcast", "diverging_replicas", ranks, code, "--wrong", "no-broadcast")
        yield _job("a weight forgotten", "diverging_replicas", ranks, code, "--wrong", "forgotten")
    late = ("--wrong", "stale", "--at", "85", "--steps", "90")
    yield _job("one changed late", "diverging_replicas", 2, code, *late)
    yield _job("one changed late", "diverging_replicas", 3, code, *late, "--rank", "2", who=(2,))
    yield _job("one changed late", "diverging_replicas", 4, code, *late, who=(1,))


def _terminated() -> Iterator[Trial]:
    """SIGTERM that no launcher sent."""
    for ranks, guilty in ((2, 1), (3, 0), (4, 2)):
        yield Trial(
            "a SIGTERM nobody accounts for",
            "failing_training",
            ranks,
            ("terminate", "--rank", str(guilty), "--steps", "60"),
            ("failed-killed",),
            (guilty,),
            fails=True,
        )
