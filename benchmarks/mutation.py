"""Mutation check: how many small faults in `analysis` and `rules` do their tests find?

    python -m benchmarks.mutation --seed 1 --count 300

A mutant is the code with one operator, comparison, condition or number changed. Each one runs the
quick tests of both packages that execute the changed line, the quickest first. It is killed if one
of them fails or takes too long. A line that no test executes leaves its mutants alive.
A mutant exists only in the memory of its own process, which is forked from one that has loaded the
libraries; processes that tests start run the original.
Exit code 1: the share of killed mutants is below `--least`.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import CodeType
from typing import cast

import coverage
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("mgpu_doctor/analysis", "mgpu_doctor/rules")
TESTS = ("tests/doctor/analysis", "tests/doctor/rules", "tests/doctor/test_signatures.py")
LIBRARIES = ("hypothesis.strategies", "msgspec", "numpy", "psutil", "rich.console", "textual.app")
OPTIONS = ("-q", "-p", "no:cacheprovider")
FORKS = multiprocessing.get_context("fork")
LEAST_SHARE = 0.8
MAX_SECONDS = 60
"""For one test of a mutant: quick tests take at most a few, so it loops forever."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed expression: the bytes `start` to `end` of a file become `after`."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def label(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    outcome: str
    """`killed`, `survived` or `not executed`."""


def changed(node: ast.expr) -> ast.expr | None:  # noqa: PLR0911 - one case per kind
    """The expression with its outermost operation or value changed; None if there is none."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(ast.And(), values):
            return ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            return ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Call(ast.Name(name), arguments, keywords) if name in FUNCTIONS:
            return ast.Call(ast.Name(FUNCTIONS[name]), arguments, keywords)
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(number) | float(number)):
            return ast.Constant(number + 1)
    return None


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that are computed: no annotations, decorators, formatted texts or assertions."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Assert):
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from expressions(child)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a file, in the order of its text."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in expressions(ast.parse(source)):
        replacement = changed(node)
        if replacement is None or node.end_lineno is None or node.end_col_offset is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        file = str(path.relative_to(ROOT))
        yield Mutant(
            file, node.lineno, start, end, ast.unparse(node), f"({ast.unparse(replacement)})"
        )


def sample(count: int, seed: int) -> list[Mutant]:
    """A seeded sample of all mutants."""
    every = [
        mutant
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for mutant in mutants_of(path)
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


@dataclass(frozen=True, slots=True)
class Coverers:
    """Which test functions execute a line, and how long they take."""

    lines: dict[str, dict[str, list[str]]]
    """By file and number of the line; what is executed at import belongs to the test ""."""
    seconds: dict[str, float]

    def of(self, mutant: Mutant) -> list[str]:
        """Those that execute the mutant's line, the quickest first; for one that is executed at
        import, those that execute any line of its file."""
        lines = self.lines.get(mutant.file, {})
        tests_of_line = set(lines.get(str(mutant.line), ()))
        if "" in tests_of_line:
            tests_of_line = {test for tests in lines.values() for test in tests}
        return sorted(tests_of_line - {""}, key=lambda test: (self.seconds[test], test))


class _Recorder:
    """A pytest plugin that marks what is executed with the test function that is running."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._measured.switch_context(item.nodeid.partition("[")[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("[")[0]] += report.duration


def record_coverers(to: Path) -> int:
    """Runs all tests, writes the fields of `Coverers` and returns pytest's exit code."""
    measured = coverage.Coverage(data_file=None, source=[str(ROOT / name) for name in PACKAGES])
    recorder = _Recorder(measured)
    measured.start()
    code = pytest.main([*OPTIONS, *TESTS], [recorder])
    measured.stop()
    data = measured.get_data()
    lines = {
        str(Path(file).relative_to(ROOT)): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    to.write_text(json.dumps({"lines": lines, "seconds": recorder.seconds}), encoding="utf-8")
    return int(code)


def measure_coverers() -> Coverers:
    """Which tests execute which lines, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "coverers.json"
        process = FORKS.Process(target=lambda: sys.exit(record_coverers(to)))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit("the tests fail without a mutant")
        return Coverers(**json.loads(to.read_text(encoding="utf-8")))


def run_tests(mutant: Mutant, tests: Sequence[str]) -> None:
    """Runs the tests on the mutant, which this process imports instead of its file, and exits."""
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silence, stream)
    file = ROOT / mutant.file
    source = file.read_bytes()
    source = source[: mutant.start] + mutant.after.encode() + source[mutant.end :]
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return compile(source, file, "exec") if loader.path == str(file) else original(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    sys.exit(pytest.main([*OPTIONS, "-x", f"--timeout={MAX_SECONDS}", *tests]))


def judge_all(mutants: list[Mutant], coverers: Coverers, jobs: int) -> Iterator[Result]:
    """The results as they come, `jobs` mutants at once."""
    running: dict[int, tuple[Mutant, ForkProcess]] = {}
    waiting = mutants[::-1]
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            tests = coverers.of(mutant)
            if not tests:
                yield Result(mutant, "not executed")
                continue
            process = FORKS.Process(target=run_tests, args=(mutant, tests))
            process.start()
            running[process.sentinel] = mutant, process
        for sentinel in wait(list(running)):
            mutant, process = running.pop(cast(int, sentinel))
            process.join()
            yield Result(mutant, "killed" if process.exitcode else "survived")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=LEAST_SHARE, help="share, 0 to 1")
    options = parser.parse_args()
    os.chdir(ROOT)
    coverers = measure_coverers()
    for library in LIBRARIES:
        import_module(library)
    killed = tried = 0
    for result in judge_all(sample(options.count, options.seed), coverers, options.jobs):
        tried += 1
        killed += result.outcome == "killed"
        if result.outcome != "killed":
            print(f"{result.outcome}: {result.mutant.label}", flush=True)
    share = killed / max(tried, 1)
    print(f"{killed} of {tried} mutants killed ({share:.0%})")
    return int(share < options.least)


if __name__ == "__main__":
    sys.exit(main())
