"""`python -m tests.fuzz --format FORMAT --count N --seed N`."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import mgpu_probes

import mgpu_doctor
from tests.fuzz import corpus
from tests.fuzz.campaign import Campaign, Fault

ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The order of sets must be the same each time, and a process that forks has one thread."""
LEFT_OUT = (
    "mgpu_doctor.__main__",
    "mgpu_doctor.export.optional_formats",
    "mgpu_doctor.plan",
    "mgpu_doctor.tui.app",
    "mgpu_probes.__main__",
    "mgpu_probes.inprocess",
)
"""What runs or starts a thread when it is loaded, and what no view needs."""
EVERY = 10.0
"""Seconds between two lines of progress."""
MOST_SHOWN = 3
"""Inputs of each kind of fault."""


def main(words: Sequence[str]) -> int:
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.environ |= ENVIRONMENT
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz", *words])
    options = _options(words)
    formats = options.format or corpus.FORMATS
    folder = Path(tempfile.mkdtemp(prefix="mgpu-doctor-fuzz-"))
    kept = options.keep or folder / "failed"
    try:
        warm()
        faults = [fault for format in formats for fault in _all_of(format, options, folder, kept)]
        for line in describe_faults(faults):
            print(line)
        if faults:
            print(f"{len(faults)} faults; what failed is kept in {kept}")
        return int(bool(faults))
    finally:
        for inner in folder.iterdir():
            if inner != kept:
                shutil.rmtree(inner, ignore_errors=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def warm() -> None:
    """Loads what the command line loads for the views, so that each process begins with it."""
    for package in (mgpu_doctor, mgpu_probes):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(LEFT_OUT):
                importlib.import_module(found.name)
    gc.collect()
    gc.freeze()


def describe_faults(faults: Sequence[Fault]) -> list[str]:
    """A paragraph for each kind of fault: how often, and the first inputs."""
    kinds: dict[str, list[Fault]] = {}
    for fault in faults:
        kinds.setdefault(fault.kind, []).append(fault)
    lines = []
    for same in sorted(kinds.values(), key=len, reverse=True):
        lines.append(f"{len(same)} times: {same[0].format}: {same[0].fault}")
        for fault in same[:MOST_SHOWN]:
            lines += [f"    {fault.command}", f"        {fault.change[:300]}"]
    return lines


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--format", action="append", choices=corpus.FORMATS, help="none: all")
    parser.add_argument("--count", type=int, default=300, help="inputs of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", type=int, help="this input alone")
    parser.add_argument("--views", default="2", help="of each input: a number, a name, or all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="folder for what failed")
    parser.add_argument("--honest", action="store_true", help="the seeds themselves, unchanged")
    return parser.parse_args(words)


def _all_of(format: str, options: argparse.Namespace, folder: Path, kept: Path) -> list[Fault]:
    """The faults of one format, its inputs shared among some processes."""
    many = len(corpus.seeds(format)) if options.honest else options.count
    indices = range(many) if options.index is None else [options.index]
    wanted = options.views
    count = int(wanted) if wanted.isdigit() else None if wanted == "all" else wanted
    jobs = max(1, min(options.jobs, len(indices)))
    began = time.monotonic()
    pipes = []
    for job in range(jobs):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            _work(
                Campaign(format, options.seed, folder / f"{format}-{job}", count, kept),
                indices[job::jobs],
                options.honest,
                writer,
            )
        os.close(writer)
        pipes.append(reader)
    found, done, over, codes = _heard(pipes, format, len(indices))
    if over < jobs:
        found.append(Fault(format, options.seed, -1, "all", "fuzzer: a process of it failed", ""))
    seconds = time.monotonic() - began
    ended = ", ".join(f"{code}: {many}" for code, many in sorted(codes.items()))
    print(f"{format}: {done} inputs in {seconds:.0f} s, {len(found)} faults, exit codes {ended}")
    return sorted(found, key=lambda fault: fault.index)


def _work(campaign: Campaign, indices: Sequence[int], honest: bool, writer: int) -> NoReturn:
    """Says the faults of each input, a line each."""
    examine = campaign.honest if honest else campaign.examine
    try:
        with open(writer, "w", buffering=1) as say:
            for index in indices:
                say.write(_line(examine(index)))
            campaign.close()
            say.write(json.dumps({str(code): many for code, many in campaign.codes.items()}) + "\n")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _heard(pipes: list[int], format: str, count: int) -> tuple[list[Fault], int, int, Counter[str]]:
    """What the processes say, until all are over: faults, inputs done, processes that came to
    their end, and how often commands ended by each exit code."""
    found: list[Fault] = []
    codes: Counter[str] = Counter()
    done = over = 0
    shown = time.monotonic()
    unread = dict.fromkeys(pipes, b"")
    while unread:
        for pipe in select.select(list(unread), [], [])[0]:
            raw = os.read(pipe, 1 << 16)
            if not raw:
                os.close(pipe)
                del unread[pipe]
                continue
            *lines, unread[pipe] = (unread[pipe] + raw).split(b"\n")
            for line in map(json.loads, lines):
                if isinstance(line, list):
                    done += 1
                    found += [Fault(**one) for one in line]
                else:  # the last one of each process
                    over += 1
                    codes.update(line)
        if time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            print(f"{format}: {done} of {count}, {len(found)} faults", file=sys.stderr)
    for _ in pipes:
        os.wait()
    return found, done, over, codes


def _line(faults: list[Fault]) -> str:
    return json.dumps([asdict(fault) for fault in faults]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
