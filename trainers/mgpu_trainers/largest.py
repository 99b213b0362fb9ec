"""Finds the largest batch that fits, then becomes the command in which it stands for `auto`.

    python -m mgpu_trainers.largest torch-ddp --ranks 2 -- COMMAND --batch auto …

Batches are tried in a process of its own, which may not take more than a rank's part of the memory
that is free. Imports no framework.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from mgpu_trainers import catalogue, room, schedule, trying
from mgpu_trainers.options import AUTO, BATCH
from mgpu_trainers.search import Found, largest

SPARED = 0.2
"""Share of the free memory that is left alone: for the loader, and for what others will need."""
PATIENCE = 4.0
"""Seconds of a step from which larger batches are not tried."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m mgpu_trainers.largest")
    parser.add_argument("trainer", help="its name")
    parser.add_argument("--ranks", type=int, default=1)
    parser.usage = "%(prog)s TRAINER --ranks N -- COMMAND, with --batch auto in it"
    whole = list(sys.argv[1:] if argv is None else argv)
    cut = whole.index("--") if "--" in whole else len(whole)
    given, command = parser.parse_args(whole[:cut]), whole[cut + 1 :]
    try:
        trainer = catalogue.find(given.trainer)
    except catalogue.UsageError as error:
        parser.error(str(error))
    if trainer.module not in command:
        parser.error(f"the command after -- must be one that starts {trainer.module}")
    options = catalogue.parser_of(trainer).parse_args(command[command.index(trainer.module) + 1 :])
    if options.batch != AUTO:
        parser.error("there is no --batch auto in the command")
    found, where = find(trainer.name, given.ranks, options)
    print(said(trainer.name, found, where), file=sys.stderr, flush=True)
    os.execv(command[0], settled(command, found.size))


def find(name: str, ranks: int, options: argparse.Namespace) -> tuple[Found, str]:
    """The largest batch, and in how much memory it was tried. Ends the process where none fits or
    where nothing tells how much is free."""
    parts = schedule.replicas(name, ranks, None)
    device, bytes_each, where = _share(name, ranks, options.device)
    with trying.trial(options, device, bytes_each) as one:
        most = one.samples // parts
        found = largest(one.fits, most, PATIENCE, BATCH[options.model])
    if found is None:
        sys.exit(f"{name}: not one sample fits into {where}")
    return found, where


def settled(command: Sequence[str], size: int) -> list[str]:
    """The command with a number in place of `auto`."""
    at = list(command).index("--batch") + 1
    return [*command[:at], str(size), *command[at + 1 :]]


def said(name: str, found: Found, where: str) -> str:
    """What was chosen, and why, as one sentence."""
    tried = f"a step takes {found.tried.seconds:.2g} s and {_mega(found.tried.memory)} at most"
    why = {
        "memory": f"the largest that fits into {where}",
        "data": "all the samples that a rank has; memory would have had room for more",
        "time": f"it fits; larger ones were not tried, as a step takes long enough (in {where})",
    }[found.limit]
    return f"{name}: --batch {found.size}: {why}; {tried}"


def _share(name: str, ranks: int, wanted: str) -> tuple[str, int, str]:
    """The device, and the bytes there that a rank may take, in words, too."""
    count, least = (0, 0) if wanted == "cpu" else trying.gpus()
    if count >= ranks:
        each = int(least * (1 - SPARED))
        return "cuda", each, f"{_mega(each)}, what is free on the fullest GPU less a fifth"
    if wanted == "cuda":
        sys.exit(f"{name}: {count} GPUs are too few; try --device cpu")
    known = room.free()
    if known is None:
        sys.exit(f"{name}: --batch auto: this system does not tell its free memory; give a number")
    each = int(known[0] * (1 - SPARED) / ranks)
    return "cpu", each, f"{_mega(each)}, a rank's part of what is free of {known[1]} less a fifth"


def _mega(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
