"""Runs small scripts in the style of what people run, healthy and with faults: `make zoo`.

    python -m tests.zoo [SCRIPT…] [--only WAY] [--overhead PAIRS] [--keep] [--folder FOLDER]

Without names it runs all scripts, one after the other: about a minute each. Packages that the
development environment lacks go into environments on top of it, which are removed, or kept and used
again with `--keep`. `--list` prints the scripts, `--page` only writes the table anew. Exit code: 1
if something failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path

from tests.matrix.environments import NotTriedError, build_on_top, read_versions
from tests.matrix.results import Result, load, merge, save
from tests.matrix.sites import Check, JobEndedError, Site, examine
from tests.matrix.verdicts import Outcome, Verdict, describe
from tests.zoo.catalogue import CATALOGUE, DEVELOPMENT, Packages, Script
from tests.zoo.page import ORDER, PAGE, RESULTS, insert_table, render
from tests.zoo.ways import Way, measure_overhead, run_way


def main(words: Sequence[str]) -> int:
    options = _options(words)
    if options.list:
        for script in CATALOGUE:
            print(f"{script.name}: {script.style} (environment: {script.packages.name})")
        return 0
    results = load(RESULTS)
    failed = False
    chosen = [] if options.page else options.names or [script.name for script in CATALOGUE]
    scripts = [script for script in CATALOGUE if script.name in chosen]
    for name, newer in run_scripts(scripts, options):
        results[name] = merge(results.get(name), newer)
        save(results, RESULTS, ORDER)
        failed |= any(each.outcome is Outcome.FAILS for each in newer.verdicts.values())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(insert_table(page, results), encoding="utf-8")
    print(render({name: results[name] for name in chosen or results if name in results}))
    return int(failed)


def run_scripts(
    scripts: Sequence[Script], options: argparse.Namespace
) -> Iterator[tuple[str, Result]]:
    """Environment by environment, each made once. Gives the results so far after each run."""
    today = date.today().isoformat()
    holder = Path(options.folder or tempfile.gettempdir()) / "mgpu-doctor-zoo"
    for packages in dict.fromkeys(script.packages for script in scripts):
        own = [script for script in scripts if script.packages is packages]
        folder = holder / packages.name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            python = _make_environment(packages, folder)
            for script in own:
                yield from _run_script(script, python, folder, options, today)
        except NotTriedError as reason:
            print(f"{packages.name}: not tried: {reason}", flush=True)
            yield from ((script.name, Result(today, reason=str(reason))) for script in own)
        finally:
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)


def _make_environment(packages: Packages, folder: Path) -> Path:
    """Its Python. Raises NotTriedError."""
    if packages is DEVELOPMENT:
        return Path(sys.executable)
    place = folder / "environment"
    built = build_on_top(packages.words, place, packages.variables, [packages.name])
    size, seconds = f"{built.size / 1e6:.0f} MB", built.seconds
    took = f"kept, {size}" if seconds is None else f"{size} in {seconds:.0f} s"
    print(f"{packages.name}: {took}", flush=True)
    return built.python


def _run_script(
    script: Script, python: Path, folder: Path, options: argparse.Namespace, today: str
) -> Iterator[tuple[str, Result]]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # py-spy is there
    site = Site(python, folder, {"PATH": path, **script.packages.variables, **script.variables})
    versions = read_versions(python, script.shown)
    verdicts = dict[str, Verdict]()
    for way in Way:
        if options.only and not any(word in way.value for word in options.only):
            continue
        began = time.monotonic()
        check = Check(way.value, partial(run_way, script, way))
        verdicts[way.value] = verdict = examine(check, site)
        took = time.monotonic() - began
        print(f"{script.name}: {way.value}: {describe(verdict)} ({took:.0f} s)", flush=True)
        yield script.name, Result(today, versions, verdicts=dict(verdicts))
    if options.overhead:
        try:
            cost = measure_overhead(script, site, options.overhead)
        except JobEndedError as error:
            cost = f"not measured: {error}"
        print(f"{script.name}: {cost}", flush=True)
        yield script.name, Result(today, versions, verdicts=dict(verdicts), overhead=cost)


def _options(words: Sequence[str]) -> argparse.Namespace:
    names = [script.name for script in CATALOGUE]
    parser = argparse.ArgumentParser("python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help="none: all")
    parser.add_argument("--only", action="append", metavar="WAY", help="ways with this word")
    parser.add_argument("--overhead", type=int, default=0, metavar="PAIRS", help="of runs in turn")
    parser.add_argument("--keep", action="store_true", help="keep environments, or use them again")
    parser.add_argument("--folder", help="where they are made; default: the temporary folder")
    parser.add_argument("--list", action="store_true", help="print the scripts")
    parser.add_argument("--page", action="store_true", help="only write the table anew")
    options = parser.parse_args(words)
    if unknown := set(options.names) - set(names):
        parser.error(f"no script {', '.join(sorted(unknown))}: choose of {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
