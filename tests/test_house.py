"""The house's rules that a machine can hold: import direction, lean start, file sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
    ("export",),
    ("tui", "check"),
    ("live",),
    ("launch", "report", "examine", "plan"),
    ("diagnose",),
    ("rules",),
    ("findings", "analysis"),
    ("case",),
    ("recording", "signatures"),
    ("formatting",),
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


def modules(package: str) -> Iterator[tuple[str, Path]]:
    base = PACKAGES[package]
    for path in sorted(base.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        yield ".".join((package, *(p for p in parts if p != "__init__"))), path


def imports(module: str, path: Path) -> Iterator[str]:
    """Absolute names of all modules that a file imports, wherever in the file."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


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
    seen = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert seen.stdout.strip() == "[]"


def test_nothing_with_threads_is_loaded_before_a_job_starts() -> None:
    """`observe` blocks the signals that it takes. A thread that is there before, as numpy's, would
    receive them instead and end the doctor."""
    script = (
        "import sys, mgpu_doctor.cli.run, mgpu_doctor.cli.train, mgpu_doctor.launch.observe\n"
        "print([name for name in ('numpy', 'torch', 'tensorflow') if name in sys.modules])"
    )
    seen = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert seen.stdout.strip() == "[]"


MOST_LINES = 500
SMALL = 60
MOST_SMALL = 254
"""Being lowered room by room; in the end each small module is listed here with its reason."""


def test_modules_hold_one_complete_idea() -> None:
    """Neither god modules nor splinters that a reader must put together."""
    sizes = {
        module: len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for module, path in modules(package)
    }
    assert not {module: size for module, size in sizes.items() if size > MOST_LINES}
    assert sum(size < SMALL for size in sizes.values()) <= MOST_SMALL


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their basename."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def import_graph(package: str) -> dict[str, set[str]]:
    """For each module of a package, those of the same package that it imports, wherever."""
    known = dict(modules(package))
    graph = {}
    for module, path in known.items():
        graph[module] = {
            name
            for name in imports(module, path)
            if name in known and name not in (package, module)
        }
    return graph


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


MOST_CYCLES = {"mgpu_doctor": 3, "mgpu_probes.outside": 2}
"""Circles that are still there; the number may only fall. Everywhere else there are none."""


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_do_not_import_each_other_in_a_circle(package: str) -> None:
    """Neither at the top of a module nor within a function."""
    cycles = find_import_cycles(import_graph(package))
    for part, most in MOST_CYCLES.items():
        known = [cycle for cycle in cycles if all(name.startswith(part) for name in cycle)]
        assert len(known) <= most
        cycles = [cycle for cycle in cycles if cycle not in known]
    assert cycles == []
