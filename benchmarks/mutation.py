"""Mutation check: how many small faults in `analysis` and `rules` do their tests find?

    python -m benchmarks.mutation --seed 1 --count 300

A mutant is the code with one operator, comparison, condition or number changed. Each one runs, in a
copy of the tree, the quick tests of its own package that execute the changed line. It is killed if
one of them fails or takes too long. A line that no test executes leaves its mutants alive.
Exit code 1: the share of killed mutants is below `--least`.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import coverage
import pytest

ROOT = Path(__file__).parents[1]
TESTS_OF = {
    "mgpu_doctor/analysis": ("tests/doctor/analysis",),
    "mgpu_doctor/rules": ("tests/doctor/rules", "tests/doctor/test_signatures.py"),
}
COPIED = ("mgpu_doctor", "probes", "trainers", "tests", "benchmarks", "docs", "pyproject.toml")
LEAST_SHARE = 0.8
MAX_SECONDS = 120.0
"""For the tests of one mutant. They take seconds, so a mutant that exceeds this loops forever."""

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
    """`killed`, `timeout`, `survived` or `not executed`."""


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
        other = changed(node)
        if other is None or node.end_lineno is None or node.end_col_offset is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        file = str(path.relative_to(ROOT))
        yield Mutant(file, node.lineno, start, end, ast.unparse(node), f"({ast.unparse(other)})")


def sample(count: int, seed: int) -> list[Mutant]:
    """A seeded sample of all mutants."""
    every = [
        mutant
        for package in TESTS_OF
        for path in sorted((ROOT / package).rglob("*.py"))
        for mutant in mutants_of(path)
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


class _Contexts:
    """A pytest plugin that marks what is executed with the test function that is running."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._measured.switch_context(item.nodeid.partition("[")[0])


def record_lines(package: str, to: Path) -> int:
    """Runs a package's tests and writes which test functions execute each line of each file."""
    measured = coverage.Coverage(data_file=None, source=[str(ROOT / package)])
    measured.start()
    code = pytest.main(["-q", "-p", "no:cacheprovider", *TESTS_OF[package]], [_Contexts(measured)])
    measured.stop()
    data = measured.get_data()
    lines = {
        str(Path(file).relative_to(ROOT)): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    to.write_text(json.dumps(lines), encoding="utf-8")
    return int(code)


class Coverers:
    """Which test functions execute a line of a tree."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self._lines: dict[str, dict[str, list[str]]] = {}
        for number, package in enumerate(TESTS_OF):
            to = folder / f"lines-{number}.json"
            command = [sys.executable, "-m", "benchmarks.mutation", "--record", package, str(to)]
            done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"the tests of {package} fail without a mutant:\n{done.stdout[-4000:]}")
            self._lines |= json.loads(to.read_text(encoding="utf-8"))

    def of(self, mutant: Mutant) -> list[str]:
        """Those that execute the mutant's line; for one that is executed at import, those that
        execute any line of its file."""
        lines = self._lines.get(mutant.file, {})
        own = set(lines.get(str(mutant.line), ()))
        if "" in own:
            own = {test for tests in lines.values() for test in tests}
        return sorted(own - {""})


def copy_of_the_tree(folder: Path) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored, symlinks=True)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def judge(mutant: Mutant, tests: list[str], tree: Path) -> Result:
    """Runs the tests on the mutant in a copy of the tree, which is as before afterwards."""
    if not tests:
        return Result(mutant, "not executed")
    file = tree / mutant.file
    source = file.read_bytes()
    file.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
    plain = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-B", "-m", "pytest", *plain, *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, timeout=MAX_SECONDS, check=False
        )
        return Result(mutant, "killed" if done.returncode else "survived")
    except subprocess.TimeoutExpired:
        return Result(mutant, "timeout")
    finally:
        file.write_bytes(source)


def judge_all(mutants: list[Mutant], jobs: int) -> Iterator[Result]:
    """The results in the order of the mutants, `jobs` at once."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        copies = [copy_of_the_tree(folder / f"tree-{number}") for number in range(jobs)]
        coverers = Coverers(copies[0], folder)
        trees: Queue[Path] = Queue()
        for copy in copies:
            trees.put(copy)

        def one(mutant: Mutant) -> Result:
            tree = trees.get()
            try:
                return judge(mutant, coverers.of(mutant), tree)
            finally:
                trees.put(tree)

        yield from pool.map(one, mutants)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=LEAST_SHARE, help="share, 0 to 1")
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        package, to = options.record
        return record_lines(package, Path(to))
    killed = tried = 0
    for result in judge_all(sample(options.count, options.seed), options.jobs):
        tried += 1
        killed += result.outcome in ("killed", "timeout")
        if result.outcome not in ("killed", "timeout"):
            print(f"{result.outcome}: {result.mutant.label}", flush=True)
    share = killed / max(tried, 1)
    print(f"{killed} of {tried} mutants killed ({share:.0%})")
    return int(share < options.least)


if __name__ == "__main__":
    sys.exit(main())
