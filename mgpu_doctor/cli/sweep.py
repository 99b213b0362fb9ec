"""`mgpu-doctor train NAME --sweep KEY=VALUE,…`: one run after another, then a table of all."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NoReturn

import click

from mgpu_doctor.cli import compare
from mgpu_doctor.cli.observed import refuse
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.observe import Turns

if TYPE_CHECKING:
    from mgpu_doctor.analysis.comparing.comparison import Comparison

MOST = 16
STRATEGY, RANKS = "strategy", "ranks"
SWEEP = click.option(
    "--sweep",
    multiple=True,
    metavar="KEY=A,B,…",
    help="Run one after the other with ranks=1,2,4, strategy=torch-ddp,torch-fsdp or any option of "
    "the trainer, and compare; several --sweep: all combinations, 16 at most.",
)
Options = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Planned:
    """One run. `words`: of `mgpu-doctor train`."""

    label: str
    words: tuple[str, ...]

    def recording(self, directory: Path | None, place: int) -> Path:
        """Its folder: among the others that are kept, or in `directory`, where names sort as they
        ran: `02-torch-ddp-2-ranks`."""
        from mgpu_doctor.recording import home

        if directory is None:
            now = time.time()
            try:
                return home.new_recording(self.label, now)
            except OSError:  # `train` says so, and runs without a recording
                return home.runs() / home.new_id(self.label, now)
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", self.label).strip("-")[:60]
        return directory / f"{place + 1:02d}-{slug}"


def run_sweep(
    name: str | None,
    sweeps: Sequence[str],
    *,
    ranks: int | None,
    options: Options,
    directory: Path | None,
    json_out: Path | None = None,
    quiet: bool = False,
) -> NoReturn:
    """Run all combinations, print their comparison, and leave: with the code of the first run that
    failed, 128 + the signal where one was asked for, else 0."""
    planned = plan(name, axes(sweeps), ranks, options)
    if directory is not None:
        _make(directory)
    codes: list[int] = []
    recordings: list[Path] = []
    with Turns() as turns:
        took: list[float] = []
        for place, one in enumerate(planned):
            if not quiet:
                print_message(
                    f"run {place + 1} of {len(planned)}: {one.label}{_left(took, len(planned))}"
                )
            began = time.monotonic()
            recordings.append(one.recording(directory, place))
            command = [sys.executable, "-m", "mgpu_doctor", "train", *one.words]
            codes.append(turns.run([*command, "--quiet", "--dir", str(recordings[-1])]))
            took.append(time.monotonic() - began)
            if turns.asked is not None:
                print_message(f"ended by {turns.asked.name}; what was run is kept.")
                break
            if codes[-1]:
                print_message(
                    f"{one.label} ended with exit code {codes[-1]}: "
                    f"`mgpu-doctor diagnose {recordings[-1]}` says why."
                )
    _tell(recordings, json_out)
    print_message(
        f"recordings: {directory or ' '.join(recording.name for recording in recordings)}"
    )
    if turns.asked is not None:
        raise click.exceptions.Exit(128 + turns.asked)
    raise click.exceptions.Exit(next((code for code in codes if code), 0))


def axes(sweeps: Sequence[str]) -> dict[str, list[str]]:
    """`KEY=A,B` each as key and different values; leaves with exit code 2 for anything else."""
    found: dict[str, list[str]] = {}
    for sweep in sweeps:
        key, given, values = sweep.partition("=")
        key = key.strip().removeprefix("--")
        several = list(dict.fromkeys(value.strip() for value in values.split(",")))
        if not (key and given and all(several)):
            refuse(f"--sweep takes a name and values such as ranks=1,2,4, not {sweep!r}.")
        if key in found:
            refuse(f"--sweep {key} is given twice: put its values into one list.")
        found[key] = several
    return found


def plan(
    name: str | None, swept: Mapping[str, Sequence[str]], ranks: int | None, options: Options
) -> list[Planned]:
    """All combinations, each checked before anything is started; leaves with exit code 2 where one
    makes no sense. A trainer of one process runs once, whatever the ranks."""
    names = list(swept.get(STRATEGY, ()))
    if name is not None and name not in names:
        names.insert(0, name)
    if not names:
        refuse("which trainer? Name one, or sweep over several with --sweep strategy=…")
    others = {key: values for key, values in swept.items() if key != STRATEGY}
    found: dict[tuple[str, ...], Planned] = {}
    for trainer in names:
        for values in itertools.product(*others.values()):
            chosen = dict(zip(others, values, strict=True))
            one = _planned(trainer, chosen, ranks, options)
            found.setdefault(one.words, one)
    if len(found) > MOST:
        refuse(f"these are {len(found)} runs; a sweep takes {MOST} at most.")
    if len(found) < 2:
        refuse("a sweep needs two different runs or more, as in --sweep ranks=1,2.")
    return list(found.values())


def _planned(name: str, chosen: dict[str, str], ranks: int | None, options: Options) -> Planned:
    from mgpu_trainers import catalogue

    count = chosen.pop(RANKS, None)
    try:
        trainer = catalogue.find(name)
        wanted = ranks if count is None else int(catalogue.RANKS.read(count))
        if trainer.launcher == "python":
            wanted = None  # it is one process
        given = {**options, **{key: [value] for key, value in chosen.items()}}
        catalogue.command(trainer, wanted, given)
    except catalogue.UsageError as error:
        refuse(f"{str(error).rstrip('.')}.")
    if why := catalogue.missing(trainer):
        refuse(f"{name} {why}.")
    words = [name] if wanted is None else [name, "--ranks", str(wanted)]
    words += [f"--{key}={value}" for key, values in given.items() for value in values]
    many = "" if wanted is None else f", {wanted} {'rank' if wanted == 1 else 'ranks'}"
    more = "".join(f", {key} {value}" for key, value in chosen.items())
    return Planned(f"{name}{many}{more}", tuple(words))


def _make(directory: Path) -> None:
    """A new or empty folder for the recordings."""
    from mgpu_doctor.recording.write import OccupiedError, make_empty

    try:
        make_empty(directory)
    except OccupiedError as error:
        refuse(f"{error} Name a new or empty folder with --dir.")
    except OSError as error:
        refuse(f"{directory} cannot be made ({error.strerror}); name another with --dir.")


def _left(took: Sequence[float], planned: int) -> str:
    if not took:
        return ""
    from mgpu_doctor.formatting import format_seconds

    return f" (about {format_seconds(round(mean(took) * (planned - len(took))))} left)"


def _tell(recordings: Sequence[Path], json_out: Path | None) -> None:
    from mgpu_doctor.report.text import line

    found = compare.compare_recordings(recordings)
    if isinstance(found, tuple):
        why = "; ".join(f"{line(one.name)}: {line(one.reason)}" for one in found)
        print_message(f"fewer than two runs can be compared{f' ({why})' if why else ''}.")
    else:
        compare.show(found)
        if json_out is not None:
            _write(json_out, found)


def _write(file: Path, found: Comparison) -> None:
    from mgpu_doctor.recording.write import write_whole
    from mgpu_doctor.report import comparison_json

    try:
        write_whole(file, comparison_json.render(found).encode())
    except OSError as error:
        print_message(f"{file} cannot be written ({error.strerror}).")
