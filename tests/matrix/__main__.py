"""Runs end-to-end checks in fresh environments of other versions: `make matrix`.

    python -m tests.matrix [ENVIRONMENT…] [--only WORD] [--keep] [--folder FOLDER]
    python -m tests.matrix --smoke [--within SECONDS]

Without names it runs all environments, one after the other: hours, and several GB of disk for each,
which are given back; with `--keep` they stay, and are used again. `--list` prints names and checks,
`--page` only writes the page anew. `--smoke` is for CI: a few checks of the oldest and the newest
torch, kept nowhere. Exit code: 1 if a check failed; an environment that cannot be made is said to
be not run, and fails nothing: a network may be the reason.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from tests.matrix.checks import checks_of
from tests.matrix.environments import (
    ENVIRONMENTS,
    Built,
    Environment,
    Framework,
    NotTriedError,
    build,
)
from tests.matrix.page import ORDER, PAGE, RESULTS, render
from tests.matrix.results import Result, count_tries, load, merge, save
from tests.matrix.sites import Site, examine
from tests.matrix.smoke import SMOKE_ENVIRONMENTS, run_smoke
from tests.matrix.verdicts import Outcome, Verdict, describe


def main(words: Sequence[str]) -> int:
    options = _options(words)
    if options.list:
        for environment in ENVIRONMENTS:
            wanted = " ".join(environment.requirements)
            print(f"{environment.name}: Python {environment.python}, {wanted}")
        for framework in Framework:
            names = ", ".join(check.name for check in checks_of(framework))
            print(f"checks of {framework.value}: {names}")
        return 0
    environments = [] if options.page else _choose(options)
    if options.smoke:
        return run_smoke(environments, _holder(options), options.within)
    results = load(RESULTS)
    failed = False
    for environment in environments:
        before = results.get(environment.name)
        for newer in examine_environment(environment, options):
            counted = newer if options.recount else count_tries(before, newer)
            results = load(RESULTS)  # another run may examine another environment
            results[environment.name] = merge(before, counted)
            save(results, RESULTS, ORDER)
            PAGE.write_text(render(results), encoding="utf-8")
            failed |= any(each.outcome is Outcome.FAILS for each in newer.verdicts.values())
    if options.page:
        PAGE.write_text(render(results), encoding="utf-8")
    return int(failed)


def _choose(options: argparse.Namespace) -> Sequence[Environment]:
    names = options.names or (SMOKE_ENVIRONMENTS if options.smoke else [])
    return [each for each in ENVIRONMENTS if not names or each.name in names]


def examine_environment(environment: Environment, options: argparse.Namespace) -> Iterator[Result]:
    """Makes the environment, runs the checks that were asked for, and removes it. Gives the results
    so far after each check."""
    today = date.today().isoformat()
    folder = _holder(options) / environment.name
    try:
        built = _built(environment, folder / "environment", options)
    except NotTriedError as reason:
        print(f"{environment.name}: not tried: {reason}", flush=True)
        _remove(folder, kept=False)
        yield Result(today, reason=str(reason))
        return
    install = (built.seconds, built.size)
    try:
        yield Result(today, built.versions, None, *install)
        verdicts = dict[str, Verdict]()
        site = Site(built.python, folder, environment.variables)
        for check in checks_of(environment.framework):
            if options.only and not any(word in check.name for word in options.only):
                continue
            began = time.monotonic()
            verdicts[check.name] = verdict = examine(check, site)
            took = time.monotonic() - began
            line = f"{check.name}: {describe(verdict)} ({took:.0f} s)"
            print(f"{environment.name}: {line}", flush=True)
            yield Result(today, built.versions, None, *install, dict(verdicts))
    finally:
        _remove(folder, kept=options.keep)


def _built(environment: Environment, folder: Path, options: argparse.Namespace) -> Built:
    _remove(folder.parent, kept=options.keep)
    folder.parent.mkdir(parents=True, exist_ok=True)
    built = build(environment, folder)
    print(f"{environment.name}: {built.summary}", flush=True)
    return built


def _holder(options: argparse.Namespace) -> Path:
    """The folder in which environments are made."""
    return Path(options.folder or tempfile.gettempdir()) / "mgpu-doctor-matrix"


def _remove(folder: Path, *, kept: bool) -> None:
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)


def _options(words: Sequence[str]) -> argparse.Namespace:
    names = [environment.name for environment in ENVIRONMENTS]
    parser = argparse.ArgumentParser("python -m tests.matrix", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ENVIRONMENT", help="none: all")
    parser.add_argument("--only", action="append", metavar="WORD", help="checks with this word")
    parser.add_argument("--smoke", action="store_true", help="a few checks, kept nowhere")
    parser.add_argument(
        "--within",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="what they do not suffice for is not run (--smoke)",
    )
    parser.add_argument("--keep", action="store_true", help="keep, or use again")
    parser.add_argument("--recount", action="store_true", help="forget tries before a defect's fix")
    parser.add_argument("--folder", help="where they are made; default: the temporary folder")
    parser.add_argument("--list", action="store_true", help="print environments and checks")
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    options = parser.parse_args(words)
    if unknown := set(options.names) - set(names):
        parser.error(f"no environment {', '.join(sorted(unknown))}: choose of {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
