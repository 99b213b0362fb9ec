"""What `mgpu-doctor train` tells of the built-in trainers: all of them, or one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mgpu_trainers.catalogue import Option, Trainer


def everything() -> str:
    """All trainers, the options of any of them, and the faults."""
    from mgpu_trainers.catalogue import TRAINERS

    lines = [f"{trainer.name:<16}{trainer.summary}" for trainer in TRAINERS]
    lines.append("\nOptions (without names of trainers: of all):")
    for option in dict.fromkeys(option for trainer in TRAINERS for option in trainer.options):
        lines.append(f"  --{option.name:<14}{_told(option)}{_takers(option, TRAINERS)}")
    lines.append("\nFaults (--fault KIND:KEY=VALUE,…):")
    lines += [f"  {kind:<14}{keys}" for kind, keys in _faults()]
    return "\n".join(lines)


def of(name: str) -> str | None:
    """One trainer with its own options; None for a name that is none."""
    from mgpu_trainers import catalogue

    trainer = next((one for one in catalogue.TRAINERS if one.name == name), None)
    if trainer is None:
        return None
    several = [trainer.ranks] if trainer.launcher != "python" else []
    page = click.HelpFormatter()
    page.write_usage(f"mgpu-doctor train {name}", "[OPTIONS]")
    page.write_paragraph()
    page.write_text(trainer.summary)
    with page.section("Options"):
        page.write_dl([(f"--{one.name}", _told(one)) for one in (*several, *trainer.options)])
    with page.section("Faults (--fault KIND:KEY=VALUE,…)"):
        page.write_dl(_faults())
    page.write_paragraph()
    page.write_text("`mgpu-doctor train --help` tells of those that all trainers take: --sweep, …")
    return page.getvalue().rstrip("\n")


def _told(option: Option) -> str:
    default = "" if option.default is None else f" (default {option.default})"
    choices = f": {', '.join(option.choices)}" if option.choices else ""
    return f"{option.help}{choices}{default}"


def _takers(option: Option, trainers: Sequence[Trainer]) -> str:
    takers = [one.name for one in trainers if option in one.options]
    others = [one.name for one in trainers if option not in one.options]
    if not others:
        return ""
    if takers == [one.name for one in trainers if one.framework == "torch"]:
        return " [all of PyTorch]"
    if len(others) < len(takers) / 2:
        return f" [not {', '.join(others)}]"
    return f" [{', '.join(takers)}]"


def _faults() -> list[tuple[str, str]]:
    from mgpu_trainers import catalogue

    return [(kind, ", ".join(keys)) for kind, keys in catalogue.fault_keys().items()]
