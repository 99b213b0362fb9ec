"""The smoke test of CI: does the doctor work at all with the oldest and the newest torch?

Both environments are made at once where the disk has room for both, without Ray, which no check of
the smoke test needs. Checks run one at a time, since they judge timing. Nothing is kept.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.matrix.checks import TORCH
from tests.matrix.environments import (
    LEAST_SPACE,
    Built,
    Environment,
    Framework,
    NotTriedError,
    build,
)
from tests.matrix.sites import TRIES, Site, examine
from tests.matrix.verdicts import Outcome, Verdict, describe

SMOKE_ENVIRONMENTS = ("torch-2.4", "torch-2.15")
"""The oldest and the newest."""
SMOKE_CHECKS = ("healthy job", "slow rank: input")
"""What says in a minute that the doctor works with a version at all."""
LONGEST_INSTALL = 300.0
"""Seconds for each of those that are made at once: one by one they took 71 and 51 with a load
average of 2.5 on two cores, 231 and 130 with 10."""
LONGEST_JOB = 60.0
"""Seconds of a job of a check."""
LEAST_SECONDS = 240.0
"""With less it is not begun."""


def run_smoke(environments: Sequence[Environment], folder: Path, within: float = math.inf) -> int:
    """The exit code: 1 if a check failed. `within`: seconds until it must have ended; what they do
    not suffice for is not run, and fails nothing."""
    began = time.monotonic()
    end = began + within
    if within < LEAST_SECONDS:
        sentence = f"{within:.0f} s are left, and it takes up to {LEAST_SECONDS:.0f}"
        print(f"WARNING: THE SMOKE TEST WAS NOT RUN: {sentence}", flush=True)
        return 0
    counts = Counter[Outcome]()
    for together in _group([_without_ray(each) for each in environments], folder):
        try:
            with ThreadPoolExecutor(len(together)) as pool:
                longest = min(LONGEST_INSTALL * len(together), end - time.monotonic())
                made = pool.map(partial(_make, folder=folder, longest=longest), together)
            for environment, built in zip(together, made, strict=True):
                verdicts = _examine(environment, built, folder, end)
                counts.update(verdict.outcome for verdict in verdicts)
        finally:
            for environment in together:
                shutil.rmtree(folder / environment.name, ignore_errors=True)
    outcomes = ", ".join(f"{outcome.value}: {number}" for outcome, number in counts.items())
    print(f"smoke test: {outcomes} ({time.monotonic() - began:.0f} s)", flush=True)
    return int(counts[Outcome.FAILS] > 0)


def _group(environments: Sequence[Environment], folder: Path) -> list[Sequence[Environment]]:
    """All of them together if the disk has room, else one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = LEAST_SPACE[Framework.TORCH] * len(environments)
    if shutil.disk_usage(folder).free >= needed:
        return [environments]
    return [[environment] for environment in environments]


def _without_ray(environment: Environment) -> Environment:
    kept = [words for words in environment.requirements if not words.startswith("ray")]
    return replace(environment, requirements=tuple(kept))


def _make(environment: Environment, folder: Path, longest: float) -> Built | NotTriedError:
    place = folder / environment.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        return build(environment, place / "environment", longest)
    except NotTriedError as reason:
        return reason


def _examine(
    environment: Environment, built: Built | NotTriedError, folder: Path, end: float
) -> Iterator[Verdict]:
    """The verdicts of its checks, which are printed; not run, if it could not be made."""
    if isinstance(built, NotTriedError):
        print(f"WARNING: {environment.name} WAS NOT RUN: {built}", flush=True)
        yield Verdict(Outcome.NOT_RUN)
        return
    print(f"{environment.name}: {built.summary}", flush=True)
    site = Site(built.python, folder / environment.name, environment.variables, LONGEST_JOB)
    for check in (check for check in TORCH if check.name in SMOKE_CHECKS):
        began = time.monotonic()
        left, needed = end - began, LONGEST_JOB * TRIES
        if left < needed:
            verdict = Verdict(Outcome.NOT_RUN, f"{left:.0f} s are left, {needed:.0f} needed")
        else:
            verdict = examine(check, site)
        took = time.monotonic() - began
        print(f"{environment.name}: {check.name}: {describe(verdict)} ({took:.0f} s)", flush=True)
        yield verdict
