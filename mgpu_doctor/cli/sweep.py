"""`mgpu-doctor train NAME --sweep KEY=VALUE,…`: several runs in a row, then their comparison."""

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
from mgpu_doctor.cli.terminal_output import print_text
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.launch.observe import JobSequence

if TYPE_CHECKING:
    from mgpu_doctor.analysis.comparing.comparison import Comparison

MAX_RUNS = 16
STRATEGY, RANKS = "strategy", "ranks"
SWEEP = click.option(
    "--sweep",
    multiple=True,
    metavar="KEY=A,B,…",
    help="Run once per value, such as ranks=1,2,4 or strategy=torch-ddp,torch-fsdp, and compare "
    "the runs. KEY can be any option of the trainer. Several --sweep run all combinations, 16 at "
    "most.",
)
Options = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of the sweep: its label and the arguments for `mgpu-doctor train`."""

    label: str
    words: tuple[str, ...]

    def recording(self, directory: Path | None, place: int) -> Path:
        """Its folder: among the user's recordings, or in `directory`, where names sort by `place`:
        `02-torch-ddp-2-ranks`."""
        from mgpu_doctor.recording import home

        if directory is None:
            created = time.time()
            try:
                return home.new_recording(self.label, created)
            except OSError:  # `train` reports this and runs without a recording
                return home.runs() / home.new_id(self.label, created)
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
    """Run all combinations, print their comparison, and exit: with the exit code of the first
    failed run, with 128 + N if signal N stopped the sweep, else with 0."""
    planned = plan(name, axes(sweeps), ranks, options)
    if directory is not None:
        _make_folder(directory)
    codes: list[int] = []
    recordings: list[Path] = []
    with JobSequence() as sequence:
        took: list[float] = []
        for place, run in enumerate(planned):
            if not quiet:
                time_left = _estimate_time_left(took, len(planned))
                print_message(f"run {place + 1} of {len(planned)}: {run.label}{time_left}")
            began = time.monotonic()
            recordings.append(run.recording(directory, place))
            command = [sys.executable, "-m", "mgpu_doctor", "train", *run.words]
            codes.append(sequence.run([*command, "--quiet", "--dir", str(recordings[-1])]))
            took.append(time.monotonic() - began)
            if sequence.asked is not None:
                print_message(f"stopped by {sequence.asked.name}; the recordings so far are kept.")
                break
            if codes[-1]:
                print_message(
                    f"{run.label} ended with exit code {codes[-1]}: "
                    f"`mgpu-doctor diagnose {recordings[-1]}` says why."
                )
    _report_comparison(recordings, json_out)
    print_message(
        f"recordings: {directory or ' '.join(recording.name for recording in recordings)}"
    )
    if sequence.asked is not None:
        raise click.exceptions.Exit(128 + sequence.asked)
    raise click.exceptions.Exit(next((code for code in codes if code), 0))


def axes(sweeps: Sequence[str]) -> dict[str, list[str]]:
    """Keys and their different values from texts `KEY=A,B`; exits with code 2 for anything else."""
    values_of: dict[str, list[str]] = {}
    for sweep in sweeps:
        key, separator, values = sweep.partition("=")
        key = key.strip().removeprefix("--")
        different = list(dict.fromkeys(value.strip() for value in values.split(",")))
        if not (key and separator and all(different)):
            refuse(f"--sweep takes a name and values such as ranks=1,2,4, not {sweep!r}.")
        if key in values_of:
            refuse(f"--sweep {key} is given twice: put its values into one list.")
        values_of[key] = different
    return values_of


def plan(
    name: str | None, swept: Mapping[str, Sequence[str]], ranks: int | None, options: Options
) -> list[PlannedRun]:
    """All combinations, checked before anything starts; exits with code 2 if one is invalid. A
    trainer with a single process runs once, whatever the number of ranks."""
    names = list(swept.get(STRATEGY, ()))
    if name is not None and name not in names:
        names.insert(0, name)
    if not names:
        refuse("which trainer? Name one, or compare several with --sweep strategy=A,B.")
    swept_options = {key: values for key, values in swept.items() if key != STRATEGY}
    runs: dict[tuple[str, ...], PlannedRun] = {}
    for trainer in names:
        for values in itertools.product(*swept_options.values()):
            chosen = dict(zip(swept_options, values, strict=True))
            run = _plan_run(trainer, chosen, ranks, options)
            runs.setdefault(run.words, run)
    if len(runs) > MAX_RUNS:
        refuse(f"{len(runs)} runs are too many: a sweep has {MAX_RUNS} at most.")
    if len(runs) < 2:
        refuse("a sweep needs at least two different runs, as in --sweep ranks=1,2.")
    return list(runs.values())


def _plan_run(name: str, chosen: dict[str, str], ranks: int | None, options: Options) -> PlannedRun:
    from mgpu_trainers import catalogue

    count = chosen.pop(RANKS, None)
    try:
        trainer = catalogue.find(name)
        wanted = ranks if count is None else int(catalogue.RANKS.read(count))
        if trainer.launcher == "python":
            wanted = None  # it is one process
        all_options = {**options, **{key: [value] for key, value in chosen.items()}}
        catalogue.command(trainer, wanted, all_options)
    except catalogue.UsageError as error:
        refuse(f"{str(error).rstrip('.')}.")
    if why := catalogue.missing(trainer, all_options):
        refuse(f"{name} {why}.")
    arguments = [name] if wanted is None else [name, "--ranks", str(wanted)]
    arguments += [f"--{key}={value}" for key, values in all_options.items() for value in values]
    rank_count = "" if wanted is None else f", {wanted} {'rank' if wanted == 1 else 'ranks'}"
    choices = "".join(f", {key} {value}" for key, value in chosen.items())
    return PlannedRun(f"{name}{rank_count}{choices}", tuple(arguments))


def _make_folder(directory: Path) -> None:
    """Make a folder for the recordings; exits with code 2 if it cannot be made or has content."""
    from mgpu_doctor.recording.write import OccupiedError, make_empty

    try:
        make_empty(directory)
    except OccupiedError as error:
        refuse(f"{error} Name a new or empty folder with --dir.")
    except OSError as error:
        refuse(f"{directory} cannot be created ({error.strerror}); name another folder with --dir.")


def _estimate_time_left(took: Sequence[float], planned: int) -> str:
    if not took:
        return ""
    from mgpu_doctor.formatting import format_seconds

    return f" (about {format_seconds(round(mean(took) * (planned - len(took))))} left)"


def _report_comparison(recordings: Sequence[Path], json_out: Path | None) -> None:
    from mgpu_doctor.report.text import line

    comparison = compare.compare_recordings(recordings)
    if isinstance(comparison, tuple):
        why = "; ".join(
            f"{line(unusable.name)}: {line(unusable.reason)}" for unusable in comparison
        )
        print_message(f"fewer than two runs can be compared{f' ({why})' if why else ''}.")
    else:
        print_text(compare.render_text(comparison))
        if json_out is not None:
            _write_json(json_out, comparison)


def _write_json(file: Path, comparison: Comparison) -> None:
    from mgpu_doctor.recording.write import write_whole
    from mgpu_doctor.report import comparison_json

    try:
        write_whole(file, comparison_json.render(comparison).encode())
    except OSError as error:
        print_message(f"{file} cannot be written ({error.strerror}).")
