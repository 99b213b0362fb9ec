"""Shares of lines and of branches that the quick tests execute, by package: `make coverage`.

Reads the data of the last `coverage run`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "mgpu_doctor", ROOT / "probes" / "mgpu_probes", ROOT / "trainers/mgpu_trainers")


def package_of(file: Path) -> str:
    """The package below `mgpu_doctor` and the like that holds a file."""
    for package in PACKAGES:
        if package in file.parents:
            below = file.relative_to(package).parts
            return "/".join((package.name, *below[:-1][:1]))
    return str(file.parent)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    measured = coverage.Coverage()
    measured.load()
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name in sorted(measured.get_data().measured_files()):
        if not Path(name).is_file():
            continue  # a module that the probe's import hook loaded under a name of its own
        numbers = measured._analyze(name).numbers
        for column, count in enumerate(
            (
                numbers.n_statements,
                numbers.n_executed,
                numbers.n_branches,
                numbers.n_executed_branches,
            )
        ):
            counts[package_of(Path(name))][column] += count
    print(f"{'package':<32} {'lines':>7} {'covered':>8} {'branches':>9} {'covered':>8}")
    for package, (lines, executed, branches, branches_taken) in sorted(counts.items()):
        share, branch_share = executed / max(lines, 1), branches_taken / max(branches, 1)
        print(f"{package:<32} {lines:>7} {share:>8.1%} {branches:>9} {branch_share:>8.1%}")


if __name__ == "__main__":
    main()
