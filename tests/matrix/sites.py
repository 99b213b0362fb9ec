"""A place where jobs run for checks: a Python with its packages, and a folder. Checks and their
examination."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.matrix.environments import NOT_INHERITED, ROOT
from tests.matrix.verdicts import (
    Observation,
    Outcome,
    Verdict,
    fails,
    last_error,
    without_paths,
)
from tests.support.jobs import JOBS, Ended, run, started, until

LONGEST = 300.0
"""Seconds of a job."""
LONGEST_QUESTION = 120.0
"""Seconds of a question about a running job."""
TRIES = 2
"""Of a check that fails: a busy machine may disturb a job's timing."""
FEWER_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Site:
    """An environment in which jobs run, with a folder for what they leave. `longest`: seconds of an
    observed job."""

    def __init__(
        self,
        python: Path,
        folder: Path,
        variables: Mapping[str, str],
        longest: float = LONGEST,
    ) -> None:
        self.python, self.longest = str(python), longest
        self.folder = folder
        home = {"MGPU_DOCTOR_HOME": str(folder / "home")}
        self.variables = {**FEWER_THREADS, **home, **variables}
        self._numbers = count()

    def command(self, *words: str) -> list[str]:
        """A Python command of this environment, which sees nothing of the repository's own."""
        unset = [word for name in NOT_INHERITED for word in ("-u", name)]
        given = [f"{name}={value}" for name, value in self.variables.items()]
        return ["env", "-C", str(self.folder), *unset, *given, self.python, *words]

    def doctor(self, *words: str) -> list[str]:
        return self.command("-m", "mgpu_doctor", *words)

    def plain(self, script: str, *options: str, ranks: int = 2) -> list[str]:
        """A script of tests/jobs on several ranks, as a home-made launcher starts them."""
        launcher = str(JOBS / "env_ranks.py")
        return [self.python, launcher, "--ranks", str(ranks), script, *options]

    def torchrun(self, script: str, *options: str, ranks: int = 2) -> list[str]:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        return [self.python, *launcher, str(JOBS / script), *options]

    def new_path(self, name: str) -> Path:
        """That nothing has used yet, also no earlier site with this folder."""
        paths = (self.folder / f"{name}-{number}" for number in self._numbers)
        return next(path for path in paths if not path.exists())

    def observe(self, verb: Sequence[str], job: Sequence[str]) -> Observation:
        """Runs a job to its end under `run` or `train NAME`."""
        recording, file = self.new_path("recording"), self.new_path("diagnosis")
        options = ["--quiet", "--dir", str(recording), "--json-out", str(file)]
        ended = run(self.doctor(*verb, *options, *job), self.longest)
        diagnosis = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        shutil.rmtree(recording, ignore_errors=True)
        return Observation(ended, diagnosis)

    def ask(self, *words: str) -> Ended:
        """Runs the doctor beside a job that runs already."""
        ended = subprocess.run(
            self.doctor(*words),
            capture_output=True,
            text=True,
            timeout=LONGEST_QUESTION,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)


@dataclass(frozen=True)
class Check:
    """`name`: as the page shows it."""

    name: str
    examine: Callable[[Site], Verdict]


class JobEndedError(Exception):
    """A job ended before it could be examined; the message is its last error."""


@contextmanager
def hanging(command: Sequence[str], mark: Path) -> Iterator[int]:
    """Runs a job, and yields the process id of what was started once one of its ranks has written
    the mark, as it does when it hangs. Raises JobEndedError."""
    with started(command) as process:
        until(lambda: process.poll() is not None or (mark.exists() and mark.read_text() != ""))
        if process.poll() is not None:
            raise JobEndedError(last_error(process.communicate()[1]))
        yield process.pid


def examine(check: Check, site: Site) -> Verdict:
    """The verdict, without this machine's paths, with what earlier tries gave; a job that does not
    end in time fails."""
    own = (str(site.folder), str(ROOT), sys.base_prefix, str(Path.home()))
    earlier = list[str]()
    for _ in range(TRIES):
        try:
            verdict = check.examine(site)
        except (subprocess.TimeoutExpired, TimeoutError):
            verdict = fails("it did not end in time")
        except JobEndedError as error:
            verdict = fails(f"the job ended early: {error}")
        verdict = Verdict(verdict.outcome, without_paths(verdict.detail, own), tuple(earlier))
        if verdict.outcome is not Outcome.FAILS:
            break
        earlier.append(verdict.detail)
    return verdict


def parse(text: str) -> dict[str, Any] | None:
    """The JSON object of a command's output; None: it printed something else."""
    try:
        parsed: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return parsed
