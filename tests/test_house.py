"""The house's rules that a machine can hold: import direction, lean start, file sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "mgpu_doctor": ROOT / "mgpu_doctor",
    "mgpu_probes": ROOT / "probes/mgpu_probes",
    "mgpu_trainers": ROOT / "trainers/mgpu_trainers",
}

# Each room may import the rooms after it. What stands together on a line may not import each other.
ROOMS = (
    ("cli",),
    ("api",),
    ("export",),
    ("tui", "check"),
    ("live", "treat"),
    ("settings_files",),
    ("launch", "report", "examine", "plan"),
    ("cluster",),
    ("diagnosis",),
    ("rules",),
    ("findings", "analysis"),
    ("advice",),
    ("case",),
    ("recording", "signatures"),
    ("formatting", "errors", "loop_marks"),
)
ALLOWED_BESIDE = {("findings", "case"), ("rules", "findings"), ("plan", "report")}
FOREIGN = {
    "mgpu_doctor": {"mgpu_probes", "mgpu_trainers"},
    "mgpu_probes": set(),
    "mgpu_trainers": set(),
}
STANDARD_LIBRARY = set(sys.stdlib_module_names) | {"__future__"}
WATCHED_BY_THE_PROBE = {"torch", "keras", "tensorflow"}
ALLOWED_IN_A_RANK = STANDARD_LIBRARY | WATCHED_BY_THE_PROBE | {"mgpu_probes", "_mgpu_probe"}


@cache
def modules(package: str) -> tuple[tuple[str, Path], ...]:
    return tuple(_find_modules(package))


def _find_modules(package: str) -> Iterator[tuple[str, Path]]:
    base = PACKAGES[package]
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        yield ".".join((package, *(p for p in parts if p != "__init__"))), path


class Imports(NamedTuple):
    """Absolute names of the modules that a file imports."""

    everywhere: tuple[str, ...]
    """Wherever in the file."""
    runtime: frozenset[str]
    """Without those that only type checkers execute."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def find_imports(module: str, path: Path) -> Imports:
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = parse(path)
    return Imports(
        tuple(_imported(_statements(tree), package)),
        frozenset(_imported(_statements(tree, runtime_only=True), package)),
    )


def imports(module: str, path: Path) -> tuple[str, ...]:
    """Absolute names of all modules that a file imports, wherever in the file."""
    return find_imports(module, path).everywhere


def _imported(statements: Iterable[ast.AST], package: list[str]) -> Iterator[str]:
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements hold statements; an expression holds no import."""


def _statements(node: ast.AST, *, runtime_only: bool = False) -> Iterator[ast.AST]:
    """All statements of a file; `runtime_only`: without the bodies of `if TYPE_CHECKING:`."""
    for block in BLOCKS:
        if runtime_only and block == "body" and _is_for_types(node):
            continue
        for child in getattr(node, block, ()):
            yield child
            yield from _statements(child, runtime_only=runtime_only)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and _is_type_checking(node.test)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def runtime_imports(module: str, path: Path) -> frozenset[str]:
    """As `imports`, without those that only type checkers execute."""
    return find_imports(module, path).runtime


def room(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "mgpu_doctor" else None


def floor(name: str) -> int | None:
    return next((i for i, names in enumerate(ROOMS) if name in names), None)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_lies_below(package: str) -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules(package)
        for name in imports(module, path)
        if (top := name.split(".")[0]) in PACKAGES
        and top != package
        and top not in FOREIGN[package]
    ]
    assert not wrong


def test_of_the_trainers_only_the_catalogue_is_imported() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in modules("mgpu_doctor")
        for name in imports(module, path)
        if name.startswith("mgpu_trainers.") and not name.startswith("mgpu_trainers.catalogue")
    ]
    assert not wrong


def test_rooms_import_only_rooms_below() -> None:
    wrong = []
    for module, path in modules("mgpu_doctor"):
        own = room(module)
        for name in imports(module, path):
            other = room(name)
            if own is None or other is None or own == other:
                continue
            here, there = floor(own), floor(other)
            if here is None or there is None or (own, other) in ALLOWED_BESIDE:
                continue
            if there <= here:
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_every_room_of_the_doctor_has_a_floor() -> None:
    unknown = {
        own
        for module, _ in modules("mgpu_doctor")
        if (own := room(module)) is not None and floor(own) is None and own != "__main__"
    }
    assert not unknown


def test_the_in_process_probe_needs_the_standard_library_alone() -> None:
    base = PACKAGES["mgpu_probes"]
    wrong = []
    for module, path in modules("mgpu_probes"):
        if base / "outside" in path.parents:
            continue
        for name in imports(module, path):
            top = name.split(".")[0]
            if top and top not in ALLOWED_IN_A_RANK:
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_the_command_line_starts_without_heavy_imports() -> None:
    heavy = ("numpy", "torch", "tensorflow", "textual", "rich.table", "pynvml", "psutil")
    script = (
        f"import sys, mgpu_doctor.cli\nprint([name for name in {heavy!r} if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_nothing_with_threads_is_loaded_before_a_job_starts() -> None:
    """`observe` blocks the signals that it takes. A thread that is there before, as numpy's, would
    receive them instead and end the doctor."""
    script = (
        "import sys, mgpu_doctor.cli.run, mgpu_doctor.cli.train, mgpu_doctor.launch.observe\n"
        "print([name for name in ('numpy', 'torch', 'tensorflow') if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_no_class_has_a_base_beside_named_tuple() -> None:
    """Python 3.10 refuses it when the module is imported; no linter tells."""
    wrong = [
        f"{module}: {node.name}"
        for package in PACKAGES
        for module, path in modules(package)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and len(node.bases) > 1
        if "NamedTuple" in {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    ]
    assert wrong == []


MOST_LINES = 500
SMALL = 60
MOST_SMALL = 60
ENTRY, STRATEGY, VERB = "an entry point", "one file per strategy", "one file per verb"
HOOK, LEAF = "one file per hooked subject", "imported by packages that share nothing else"
SMALL_MODULES = {
    "mgpu_doctor.__main__": ENTRY,
    "mgpu_doctor.case.user_code": LEAF,
    "mgpu_doctor.case.log_matches": "a type that crosses rooms",
    "mgpu_doctor.cli.completion": VERB,
    "mgpu_doctor.cli.explain": VERB,
    "mgpu_doctor.errors": LEAF,
    "mgpu_doctor.launch.box_arrivals": "one interface of the kernel",
    "mgpu_doctor.launch.messages": LEAF,
    "mgpu_doctor.recording.open_files": LEAF,
    "mgpu_doctor.live.finding_history": "a state machine of its own",
    "mgpu_doctor.report.console": LEAF,
    "mgpu_doctor.rules.culprits": LEAF,
    "mgpu_doctor.tui.jobs.detached_start": "a program of its own",
    "mgpu_doctor.tui.line_strips": "the inner loop of all panels",
    "mgpu_doctor.tui.terminal_signals": "signals, apart from screens",
    "mgpu_probes.__main__": ENTRY,
    "mgpu_probes.inject.sitecustomize": ENTRY,
    "mgpu_probes.inprocess.masked_threads": LEAF,
    "mgpu_probes.inprocess.probe_start": ENTRY,
    "mgpu_probes.inprocess.frameworks.torch.torch_checkpoints": HOOK,
    "mgpu_probes.outside.logs.cut_lines": LEAF,
    "mgpu_probes.outside.jobs.ray_workers": "the only part that knows Ray's files",
    "mgpu_probes.outside.node.agent_loader": ENTRY,
    "mgpu_probes.outside.terminal_text": LEAF,
    "mgpu_probes.private": ENTRY,
    "mgpu_trainers.datasets": "data that needs no framework",
    "mgpu_trainers.process_lifetime": LEAF,
    "mgpu_trainers.pytorch.dp": STRATEGY,
    "mgpu_trainers.pytorch.ray_ddp": STRATEGY,
    "mgpu_trainers.pytorch.ray_worker": "what Ray runs in its workers",
    "mgpu_trainers.pytorch.single": STRATEGY,
    "mgpu_trainers.pytorch.tp_fsdp": STRATEGY,
    "mgpu_trainers.pytorch.zero1": STRATEGY,
    "mgpu_trainers.schedule": "arithmetic that needs no framework",
    "mgpu_trainers.tensorflow.common.tf_checkpoints": "as for PyTorch",
    "mgpu_trainers.tensorflow.common.tf_models": "as for PyTorch",
    "mgpu_trainers.tensorflow.tf_mirrored": STRATEGY,
    "mgpu_trainers.tensorflow.tf_multiworker": STRATEGY,
    "mgpu_trainers.tensorflow.tf_plan_models": ENTRY,
    "mgpu_trainers.tensorflow.tf_single": STRATEGY,
}
"""Modules under 60 lines and why they stand alone; a package's `__init__.py` is its face."""


def test_modules_hold_one_complete_idea() -> None:
    """Neither god modules nor splinters that a reader must put together."""
    sizes = {
        module: len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for module, path in modules(package)
    }
    faces = {
        module
        for package in PACKAGES
        for module, path in modules(package)
        if path.name == "__init__.py"
    }
    assert {module: size for module, size in sizes.items() if size > MOST_LINES} == {}
    small = {module for module, size in sizes.items() if size < SMALL} - faces
    assert small == SMALL_MODULES.keys()
    assert len(small) <= MOST_SMALL


def test_module_names_are_unique_within_a_package() -> None:
    for package in PACKAGES:
        names = [path.stem for _, path in modules(package) if path.name != "__init__.py"]
        assert {name for name in names if names.count(name) > 1} == set()


def test_a_benchmark_that_is_asked_for_help_measures_nothing() -> None:
    for path in (ROOT / "benchmarks").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__":' in text:
            assert ".parse_args(" in text, path.name


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their basename."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_files_of_quick_tests_import_no_package_that_is_slow_to_load(
    loaded_by_collection: list[str],
) -> None:
    assert loaded_by_collection == []


def import_graph(package: str) -> dict[str, set[str]]:
    """For each module of a package, the modules of the same package that it imports at runtime,
    at its top or within a function."""
    known = dict(modules(package))
    return {
        module: {
            name
            for name in runtime_imports(module, path)
            if name in known and name not in (package, module)
        }
        for module, path in known.items()
    }


def find_import_cycles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """The sets of modules that reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[frozenset[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in order:
                visit(imported)
            if imported in stack:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == order[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                cycles.append(frozenset(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return cycles


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_has_an_import_cycle(package: str) -> None:
    """Imports within functions count; imports for type checkers alone do not."""
    cycles = find_import_cycles(import_graph(package))
    assert [sorted(cycle) for cycle in cycles] == []


def test_a_lazy_import_makes_a_cycle_and_an_import_for_types_does_not(tmp_path: Path) -> None:
    lazy, typed = tmp_path / "lazy.py", tmp_path / "typed.py"
    lazy.write_text("def call():\n    from package import typed\n")
    typed.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import package.lazy\n"
    )
    assert "package.typed" in runtime_imports("package.lazy", lazy)
    assert "package.lazy" not in runtime_imports("package.typed", typed)
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert find_import_cycles(graph) == [frozenset("abc")]
