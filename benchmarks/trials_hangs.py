"""Hangs of `benchmarks.blame`: those that a time-out ends under `run`, and those that are examined
from outside while they last. All are scripts of `tests/jobs`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.trials import Launcher, Trial

BEHIND, MISMATCH = "hang-rank-behind", "hang-collective-mismatch"
TIME_OUT = 5.0
"""Seconds: the shortest time-out that scripts use."""
LIFE = "150"
"""Seconds after which a job ends that nothing else has ended."""


def time_outs(seconds: float = TIME_OUT) -> Iterator[Trial]:
    """Hangs that the collective's own time-out ends: the rank that never came."""
    timed = partial(_timed, seconds)
    for ranks in (2, 3, 4):
        guilty = ranks - 1 if ranks != 3 else 1
        yield timed("sleep", "reduce", ranks, guilty)
        yield timed("lock", "ddp", ranks, guilty)
        yield timed("loader", "ddp", ranks, 0)
        yield timed("poll", "pipeline", ranks, guilty)
        yield timed("sleep", "reduce", ranks, guilty, place="evaluation")
        yield timed("sleep", "ddp", ranks, 0, place="checkpoint")
        yield timed("spin", "ddp", ranks, guilty, place="after-update")
    yield timed("regex", "ddp", 2, 1)
    yield timed("native", "reduce", 3, 2)
    yield timed("child", "async", 3, 0)
    yield timed("gil", "ddp", 4, 2)
    yield timed("other-op", "reduce", 2, 1, code=MISMATCH)
    yield timed("other-op", "reduce", 3, 1, code=MISMATCH)
    yield timed("skip", "reduce", 4, 3, code=MISMATCH)
    yield timed("exhausted", "reduce", 2, 1, code=MISMATCH)
    yield timed("exhausted", "reduce", 3, 0, code=MISMATCH)
    yield timed("exhausted", "ddp", 3, 2, code=MISMATCH)


def _timed(
    seconds: float,
    how: str,
    loop: str,
    ranks: int,
    guilty: int,
    *,
    place: str = "step",
    code: str = BEHIND,
) -> Trial:
    timeout = ("--timeout", f"{seconds:g}")
    options = ("--loop", loop, "--rank", str(guilty), "--place", place, *timeout)
    at = "" if place == "step" else f" in {place}"
    return Trial(
        f"time-out: {how}{at}, {loop}",
        "hangs",
        ranks,
        (how, *options, "--life", LIFE),
        (code,),
        (guilty,),
        fails=True,
    )


def outside() -> Iterator[Trial]:
    """Hangs that nothing ends, and that nobody prepared for."""
    for ranks in (2, 3, 4):
        guilty = ranks - 1 if ranks != 3 else 1
        yield _standing("regex", "reduce", ranks, guilty)
        yield _standing("native", "ddp", ranks, guilty)
        yield _standing("spin", "async", ranks, 0)
        yield _standing("poll", "ddp", ranks, guilty)
    yield _standing("gil", "ddp", 2, 0)
    yield _standing("lock", "pipeline", 3, 2)
    yield _standing("native", "reduce", 3, 0)
    yield _standing("sleep", "ddp", 4, 0, place="checkpoint")
    yield _standing("loader", "reduce", 3, 1)
    yield _standing("other-op", "reduce", 3, 2, code=MISMATCH)
    yield _standing("skip", "reduce", 4, 0, code=MISMATCH)
    yield _standing("other-op", "reduce", 2, None, code=MISMATCH)
    yield _standing("exhausted", "reduce", 2, 1, code=MISMATCH)
    yield _standing("exhausted", "ddp", 3, 1, code=MISMATCH)


def _standing(
    how: str, loop: str, ranks: int, guilty: int | None, *, place: str = "step", code: str = BEHIND
) -> Trial:
    wrong = 1 if guilty is None else guilty
    options = ("--loop", loop, "--rank", str(wrong), "--place", place)
    at = "" if place == "step" else f" in {place}"
    return Trial(
        f"outside: {how}{at}, {loop}",
        "hangs",
        ranks,
        (how, *options, "--life", LIFE),
        (code,),
        () if guilty is None else (guilty,),
        launcher=Launcher.PLAIN,
        outside=True,
    )
