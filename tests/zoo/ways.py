"""The ways in which a script runs: healthy, with a slow rank, hung, crashed; and what its steps
cost more under the doctor."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import NamedTuple

from tests.matrix.sites import LONGEST, JobEndedError, Site, hanging, parse
from tests.matrix.verdicts import (
    WORKS,
    Observation,
    Outcome,
    Verdict,
    fails,
    judge_crash,
    judge_culprit,
    judge_hang,
    judge_healthy,
    last_error,
    list_warnings,
)
from tests.support.jobs import JOBS, Ended, run
from tests.zoo.catalogue import HANGS_IN, SCRIPTS, Launcher, Script

OWN_LINES = re.compile(r"(?:step \d+ loss|steps \d+|epoch \d+|held out) ?.*")
LASTS = 5.0
"""Seconds that the steps of a run should take whose speed is compared: what mgpu-doctor does once,
at the start, must not count as the cost of a step."""
MOST_STEPS = 4000


class Way(Enum):
    """How a script is run; the value heads a column of the page."""

    HEALTHY = "healthy"
    SLOW = "slow rank"
    HANG = "hang, attached"
    CRASH = "crash"


def run_way(script: Script, way: Way, site: Site) -> Verdict:
    """Runs the script and judges what came of it."""
    if way is Way.HEALTHY:
        return run_healthy(script, site)
    if way is Way.SLOW:
        return run_slow(script, site)
    return run_hung(script, site) if way is Way.HANG else run_crash(script, site)


def run_healthy(script: Script, site: Site) -> Verdict:
    """Once without the doctor and once with it: both print the same, and the doctor is silent."""
    job = make_command(script, site)
    bare = run(site.command(*job[1:]), LONGEST)
    if bare.code:
        return fails(f"without mgpu-doctor: exit code {bare.code}: {last_error(bare.err)}")
    return judge_unchanged(script, bare, site.observe(["run"], ["--", *job]))


def judge_unchanged(script: Script, bare: Ended, seen: Observation) -> Verdict:
    """`bare`: the job without the doctor, which ended well."""
    if seen.ended.code or seen.diagnosis is None:
        return fails(f"exit code {seen.ended.code}: {last_error(seen.ended.err)}")
    expected, printed = find_lines(bare.out, script), find_lines(seen.ended.out, script)
    if expected != printed:
        pairs = zip([*expected, "nothing"], [*printed, "nothing"], strict=False)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), ("nothing", "more"))
        return fails(f"it printed {differing[1]!r} instead of {differing[0]!r}")
    if f"steps {script.steps}" not in printed:
        return fails(f"it did not print that it took {script.steps} steps")
    if script.takes_steps:
        verdict = judge_healthy(
            seen,
            script.steps,
            least_coverage=script.least_coverage,
            costs=script.costs,
            stepless=script.stepless,
        )
        if verdict != WORKS:
            return verdict
    elif loud := list_warnings(seen.diagnosis):
        return fails(f"false alarm: {loud[0]['title']}")
    return Verdict(Outcome.WITHOUT, script.unseen) if script.unseen else WORKS


def find_lines(text: str, script: Script) -> list[str]:
    """What a script printed: everything, or its own lines, if its framework prints, too."""
    lines = text.splitlines()
    if not script.noisy:
        return lines
    return [found[0] for line in lines if (found := OWN_LINES.search(line)) is not None]


def run_slow(script: Script, site: Site) -> Verdict:
    """One rank is slower in every step."""
    if script.slow is None:
        return Verdict(Outcome.NOT_RUN, "one process: no rank is slower than another")
    job = make_command(script, site, "slow")
    seen = site.observe(["run"], ["--", *job])
    return judge_culprit(seen, script.slow.code, script.slow.rank)


def run_hung(script: Script, site: Site) -> Verdict:
    """A job that nothing was prepared for, examined by the process id of what was started."""
    with start_hanging(script, site) as pid:
        ended = site.ask("diagnose", str(pid), "--json")
    diagnosis, place = parse(ended.out), find_hanging_line()
    if script.hang is None:
        ranks = diagnosis["ranks"] if diagnosis is not None else []
        still = [rank for rank in ranks if rank["still_seconds"] and place in str(rank["where"])]
        return Verdict(Outcome.WORKS) if still else fails(f"no process is reported at {place}")
    code, rank = script.hang.code, script.hang.rank
    return judge_hang(diagnosis, ended.err, code, rank=rank, place=place)


def start_hanging(script: Script, site: Site) -> AbstractContextManager[int]:
    """Gives the process id of what was started, once one of its ranks hangs."""
    mark = site.new_path("mark")
    job = make_command(script, site, "hang", "--mark", str(mark))
    return hanging(site.command(*job[1:]), mark)


def run_crash(script: Script, site: Site) -> Verdict:
    """One rank raises an exception."""
    seen = site.observe(["run"], ["--", *make_command(script, site, "crash")])
    return judge_crash(seen, script.crash.code, script.crash.rank)


def find_hanging_line() -> str:
    """`FILE:LINE` at which every script hangs."""
    lines = (SCRIPTS / HANGS_IN).read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, text in enumerate(lines, 1) if "SimpleQueue" in text)
    return f"{HANGS_IN}:{number}"


def make_command(script: Script, site: Site, fault: str = "none", *options: str) -> list[str]:
    """The command that starts the script; its first word is the environment's Python."""
    given = ["--steps", str(script.steps), "--fault", fault, "--rank", str(script.faulty)]
    path, words = str(script.path), [*given, *options]
    if script.launcher is Launcher.TORCHRUN:
        return site.torchrun(path, *words, ranks=script.ranks)
    if script.launcher is Launcher.WORKERS:
        workers = (str(JOBS / "tf_workers.py"), "--workers", str(script.ranks))
        return [site.python, *workers, path, *words]
    if script.launcher is Launcher.HOROVODRUN:
        launcher = ("-m", "horovod.runner.launch", "-np", str(script.ranks), "--gloo")
        return [site.python, *launcher, site.python, path, *words]
    return [site.python, path, *words]


def measure_overhead(script: Script, site: Site, pairs: int) -> str:
    """What a step costs more under the doctor, from runs in turn: CPU time in ms of a step, and
    wall time in percent, each of the lower quartile of a run's steps; the median of the pairs, the
    least and the most, and how busy the machine was before."""
    load, found = os.getloadavg()[0], list[tuple[_StepTime, _StepTime]]()
    short = _time_steps(script, site, script.steps, observed=False)
    steps = min(max(script.steps, math.ceil(LASTS / short.seconds)), MOST_STEPS)
    for number in range(pairs):
        order: Sequence[bool] = (False, True) if number % 2 == 0 else (True, False)
        times = {each: _time_steps(script, site, steps, observed=each) for each in order}
        found.append((times[False], times[True]))
    more = [1000 * (observed.cpu_seconds - bare.cpu_seconds) for bare, observed in found]
    percent = [100 * (observed.seconds / bare.seconds - 1) for bare, observed in found]
    cpu = 1000 * statistics.median(bare.cpu_seconds for bare, _ in found)
    step = 1000 * statistics.median(bare.seconds for bare, _ in found)
    return (
        f"CPU {_spread(more, 2)} of {cpu:.1f} ms; wall {_spread(percent, 1)} % of {step:.1f} ms; "
        f"{pairs} pairs of {steps} steps, load average {load:.1f}"
    )


def _spread(values: Sequence[float], digits: int) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:+.{digits}f} [{least:+.{digits}f} … {most:+.{digits}f}]"


class _StepTime(NamedTuple):
    """Lower quartiles of the steps of the rank that reports: wall time, and CPU time of all of its
    threads."""

    seconds: float
    cpu_seconds: float


def _time_steps(script: Script, site: Site, steps: int, *, observed: bool) -> _StepTime:
    """Raises JobEndedError if the loop did not end. A job that fails at its exit was timed."""
    times = site.new_path("times")
    more = ("--steps", str(steps), "--times", str(times))
    job = make_command(script, site, "none", *more)
    doctor = ("run", "--quiet", "--dir", str(site.new_path("recording")), "--")
    command = site.doctor(*doctor, *job) if observed else site.command(*job[1:])
    ended = run(command, LONGEST)
    if not times.exists():
        raise JobEndedError(last_error(ended.err))
    seconds, cpu_seconds = times.read_text(encoding="utf-8").split()
    return _StepTime(float(seconds), float(cpu_seconds))
