"""`mgpu-doctor treat -- COMMAND`: tries fixes on the unchanged job and says which of them help."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from mgpu_doctor.cli.completers import complete_recording, complete_treatment
from mgpu_doctor.cli.options import FILE, Argument, Dashed, words_after_dashes
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    display_of,
    exit_with,
    print_text,
    progress_line,
    save_text,
)
from mgpu_doctor.launch.messages import print_message

if TYPE_CHECKING:
    from mgpu_doctor.advice.treatment import Value
    from mgpu_doctor.treat.job_treatment import Report
    from mgpu_doctor.treat.trial_report import TrialReport

NOTHING_HELPS = 1
LEAST_BUDGET = 30.0
_PRIVATE_HINT = (
    " In a trial, it has no network and no shared memory of other processes; --yes runs it with "
    "both."
)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@click.command(cls=Dashed)
@click.argument(
    "reference",
    cls=Argument,
    required=False,
    metavar="[RECORDING]",
    shell_complete=complete_recording,
    help_text="Take the command and the working folder of a recording, such as `latest`, instead "
    "of COMMAND.",
)
@click.option("--list", "lists", is_flag=True, help="List the treatments and exit.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_treatment,
    help="Try this treatment; several: these.",
)
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="NAME[=VALUE]",
    shell_complete=complete_treatment,
    help="Try this treatment with this value, even if it does not seem to fit; several: these, "
    "also several values of one.",
)
@click.option(
    "--steps",
    type=click.IntRange(20, 2000),
    show_default="60 or more, for 4 seconds",
    help="Measured steps of each run, after 10 for warm-up.",
)
@click.option(
    "--budget", default="10m", metavar="TIME", help="Time for all runs, such as 90s, 10m or 1h."
)
@click.option(
    "--goal",
    type=click.Choice(("throughput", "memory", "time-per-sample")),
    help="Instead of treatments, try sizes: batches (`throughput`: most samples per second, "
    "`memory`: the largest that fits), or numbers of ranks at the same global batch "
    "(`time-per-sample`). The command must name them, as in `--batch-size 32`. `memory` with "
    "`--only` or `--try`: judge these treatments by memory.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Run the trials in the open: they write what the job writes, and use the network.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--output", "-o", type=FILE, metavar="FILE", help="Write what helps for `run --treat FILE`."
)
@click.pass_context
def treat(
    context: click.Context,
    *,
    reference: str | None,
    lists: bool,
    only: tuple[str, ...],
    tries: tuple[str, ...],
    steps: int | None,
    budget: str,
    goal: str | None,
    yes: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Try fixes on the unchanged training job, and measure what they gain.

    The job runs for some steps as it is and with each treatment that fits, in turns. Its script is
    not changed, and what the trials write is discarded. Exit code: 0 something helps, 1 nothing is
    shown to help, 2 wrong usage, 3 nothing could be tried.

    \b
    Examples:
      mgpu-doctor treat -- torchrun --nproc-per-node 4 train.py
      mgpu-doctor treat latest --budget 5m -o treatment.toml
      mgpu-doctor treat --try loader-workers=8 -- python train.py
      mgpu-doctor treat --goal throughput -- python train.py --batch-size 32
      mgpu-doctor treat --goal memory --only activation-checkpointing -- python train.py
      mgpu-doctor run --treat treatment.toml -- torchrun --nproc-per-node 4 train.py
    """
    if lists:
        from mgpu_doctor.treat.trial_table import render_list

        print_text(render_list(width=display_of(sys.stdout)["width"]))
        return
    wanted = _parse_treatments(only, tries)
    seconds = _parse_budget(budget)
    place = Path.cwd()  # `_find_command` changes to the job's folder
    if output is not None:
        _check_output(output)
    by_memory = goal == "memory" and bool(wanted or only)
    if goal is not None and not by_memory and (only or tries or output is not None):
        exit_with(WRONG_USAGE, f"--goal {goal} tries sizes: leave out --only, --try and --output.")
    command, recording = _find_command(words_after_dashes(context), reference)
    if goal is not None and not by_memory:
        _search_size(command, goal, seconds, steps, private=not yes, as_json=as_json)

    from mgpu_doctor.treat.job_treatment import JobTreatment

    treatment = JobTreatment(command, only, wanted, private=not yes, by_memory=by_memory)

    with _note_signals() as signals:
        _run_trials(
            lambda folder, left, show: treatment.run(
                folder, budget=left, steps=steps, report=show, is_stopped=lambda: bool(signals)
            ),
            seconds,
            private=not yes,
            measured=lambda: treatment.read_report() is not None,
        )
        report = treatment.read_report()
        if report is not None:
            if recording is not None and not by_memory:
                _keep(report, recording)
            _show(report, as_json=as_json)
            if output is not None and report.kept:
                save_text(place / output, _format_file(report), "what helps")
            elif output is not None:
                print_message(f"{output} was not written: nothing is shown to help.")
    if report is None or not report.was_tried:
        _exit(signals, NOTHING_EXAMINED)
    _exit(signals, 0 if report.kept else NOTHING_HELPS)


def _parse_treatments(only: Sequence[str], tries: Sequence[str]) -> dict[str, list[Value]]:
    """The values of --try; exits with code 2 for a wrong one or an unknown name."""
    from mgpu_doctor.advice.treatment_catalogue import TREATMENTS
    from mgpu_doctor.formatting import suggest

    wanted: dict[str, list[Value]] = {}
    for text in (*only, *tries):
        name, given, value = text.partition("=")
        if name not in TREATMENTS:
            hint = f" {suggest(name, TREATMENTS)}".rstrip()
            exit_with(
                WRONG_USAGE,
                f"there is no treatment {name!r}: see `mgpu-doctor treat --list`.{hint}",
            )
        if given and text in only:
            exit_with(
                WRONG_USAGE, f"--only takes a name alone: to try a value, write --try {text}."
            )
        if text in tries:
            try:
                parsed = TREATMENTS[name].parse_value(value)
                if parsed not in wanted.setdefault(name, []):
                    wanted[name].append(parsed)
            except ValueError as error:
                exit_with(WRONG_USAGE, str(error))
    return wanted


def _parse_budget(text: str) -> float:
    """Seconds; exits with code 2 for anything else."""
    parsed = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,3})?)\s*([a-z]{0,3})\s*", text, re.ASCII)
    seconds = float(parsed[1]) * _UNITS.get(parsed[2], 0.0) if parsed else 0.0
    if seconds < LEAST_BUDGET:
        exit_with(
            WRONG_USAGE, f"--budget takes a time of 30s or more, such as 90s or 10m, not {text!r}."
        )
    return seconds


def _check_output(output: Path) -> None:
    """Exits with code 2 if the file could not be written after all trials."""
    if not output.parent.is_dir():
        exit_with(WRONG_USAGE, f"{output} cannot be written: there is no such folder.")
    if output.is_dir():
        exit_with(WRONG_USAGE, f"{output} cannot be written: it is a folder.")
    try:
        tempfile.TemporaryFile(dir=output.parent).close()
    except OSError as error:
        exit_with(WRONG_USAGE, f"{output} cannot be written ({error.strerror}).")


def _find_command(
    words: Sequence[str] | None, reference: str | None
) -> tuple[list[str], Path | None]:
    """The command to treat, and the recording that it is from; exits with code 2 if there is none
    that can be started."""
    from mgpu_doctor.launch.job_command import CannotStartError, find_program

    if (not words) == (reference is None):
        exit_with(
            WRONG_USAGE,
            "name the command to treat: mgpu-doctor treat -- COMMAND, or mgpu-doctor treat latest.",
        )
    recording = None
    command = list(words or ())
    if reference is not None:
        command, recording = _read_command(reference)
    try:
        find_program(command[0], os.environ)
    except CannotStartError as error:
        exit_with(WRONG_USAGE, str(error))
    return command, recording


def _read_command(reference: str) -> tuple[list[str], Path]:
    """The command of a recording, and its folder; changes to the job's working folder."""
    from mgpu_doctor.cli.diagnose import find_recording
    from mgpu_doctor.recording.layout import INFO

    folder = find_recording(reference).absolute()
    try:
        info = json.loads((folder / INFO).read_text(encoding="utf-8"))
        command = [str(word) for word in info["command"]]
        os.chdir(info["cwd"])
    except (OSError, ValueError, KeyError, TypeError):
        exit_with(NOTHING_EXAMINED, f"{folder} names no command that can be run again here.")
    if not command:
        exit_with(NOTHING_EXAMINED, f"{folder} names no command that can be run again here.")
    return command, folder


def _search_size(
    command: list[str], goal: str, budget: float, steps: int | None, *, private: bool, as_json: bool
) -> NoReturn:
    """Searches the best size and prints the curve."""
    from mgpu_doctor.treat.size_report import is_better, render_json, render_sizes
    from mgpu_doctor.treat.size_search import STEPS, Goal, SizeSearch, UnknownSizeError

    search = SizeSearch(command, Goal(goal), private, steps or STEPS)
    try:
        search.find_settings()
    except UnknownSizeError as error:
        exit_with(WRONG_USAGE, str(error))

    with _note_signals() as signals:
        _run_trials(
            lambda folder, left, show: search.run(
                folder, budget=left, report=show, is_stopped=lambda: bool(signals)
            ),
            budget,
            private=private,
            measured=lambda: bool(search.points),
        )
        if search.points:
            unicode = display_of(sys.stdout)["unicode"]
            print_text(render_json(search) if as_json else render_sizes(search, unicode=unicode))
    code = 0 if is_better(search) else NOTHING_HELPS
    _exit(signals, code if search.points else NOTHING_EXAMINED)


@contextmanager
def _note_signals() -> Iterator[list[int]]:
    """Yields the signals that asked to stop, as they arrive. They interrupt nothing: a trial is
    ended, and what was measured is kept and shown, whenever and however often they arrive."""
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in asking}
    handled = {
        number: handler
        for number, handler in before.items()
        if handler not in (signal.SIG_IGN, None)  # as with `nohup`
    }
    for number in handled:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def _run_trials(
    try_all: Callable[[Path, float, Report], None],
    budget: float,
    *,
    private: bool,
    measured: Callable[[], bool],
) -> None:
    """Runs all trials. Says why they ended early, and whether anything was `measured` by then."""
    from mgpu_doctor.formatting import format_seconds
    from mgpu_doctor.treat.job_treatment import why_not_private
    from mgpu_doctor.treat.trial_folder import trial_folder
    from mgpu_doctor.treat.trial_runner import Problem, StoppedError
    from mgpu_doctor.treat.trial_session import BaselineError

    began = time.monotonic()
    try:
        with trial_folder() as folder, progress_line() as show:
            why = why_not_private(folder) if private else None
            if why is not None:
                exit_with(NOTHING_EXAMINED, _explain_open_trials(why))

            def report(action: str, left: float) -> None:
                show(f"trying {action}, {format_seconds(max(0.0, round(left)))} left")

            try_all(folder, budget - time.monotonic() + began, report)
    except BaselineError as error:
        lacks = private and error.first is not None and error.first.problem is Problem.CRASHED
        print_message(f"{error}{_PRIVATE_HINT if lacks else ''}")
    except OSError as error:
        print_message(f"the trials cannot be run ({error.strerror or error}).")
    except StoppedError:
        follows = "what was measured so far follows" if measured() else "nothing was measured yet"
        print_message(f"stopped; {follows}.")


def _explain_open_trials(why: str) -> str:
    return (
        f"trials cannot be kept from writing files here: {why}. In the open, each would write what "
        "the job writes in its first steps (checkpoints, logs, trackers) over what is there. Add "
        "--yes to run them all the same."
    )


def _show(report: TrialReport, *, as_json: bool) -> None:
    if as_json:
        from mgpu_doctor.treat.trial_report import render_json

        print_text(render_json(report))
        return
    from mgpu_doctor.treat.trial_table import render_report

    display = display_of(sys.stdout)
    print_text(render_report(report, width=display["width"], unicode=display["unicode"]))


def _keep(report: TrialReport, recording: Path) -> None:
    """Keeps the report in the recording, where `diagnose`, `report` and `top` show it, with what
    earlier trials showed of other treatments."""
    from mgpu_doctor.case.untrusted_json import read_object
    from mgpu_doctor.recording.layout import TRIALS
    from mgpu_doctor.recording.write import write_whole
    from mgpu_doctor.treat.trial_report import render_json

    try:
        earlier = read_object(recording / TRIALS, root=recording)
    except (OSError, ValueError):
        earlier = {}  # there are none that can be read
    try:
        write_whole(recording / TRIALS, render_json(report, earlier).encode())
    except OSError as error:
        print_message(f"{recording / TRIALS} cannot be written ({error.strerror}).")


def _format_file(report: TrialReport) -> str:
    from mgpu_doctor.case.treatment_proofs import ShareSaved
    from mgpu_doctor.formatting import format_share
    from mgpu_doctor.treat.treatment_file import format_treatments

    what = "memory" if report.by_memory else "step time"
    remarks = {
        name: f"saves {format_share(saving.share)} of the {what} "
        f"({format_share(saving.low)} to {format_share(saving.high)})"
        for outcome in report.outcomes
        if len(outcome.values) == 1 and (saving := outcome.decisive) is not None
        for name, value in outcome.values.items()
        if report.kept.get(name) == value
    }
    best = next((each for each in report.outcomes if dict(each.values) == dict(report.kept)), None)
    saved = best.saved if best is not None else None
    shares = None if saved is None else ShareSaved(saved.share, saved.low, saved.high)
    return format_treatments(report.kept, remarks, shares)


def _exit(signals: Sequence[int], code: int) -> NoReturn:
    """Exits as the first signal asked, else with this code."""
    raise click.exceptions.Exit(128 + signals[0] if signals else code)
