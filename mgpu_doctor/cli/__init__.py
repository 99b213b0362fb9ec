"""The command line: one file per verb, which parses, calls and prints."""

from __future__ import annotations

import gc
import importlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from mgpu_doctor import __version__
from mgpu_doctor.cli.options import Suggesting
from mgpu_doctor.cli.terminal_output import guard_streams
from mgpu_doctor.errors import DoctorError
from mgpu_doctor.launch.messages import make_one_line, print_message

VERBS = (
    "top",
    "run",
    "train",
    "diagnose",
    "trace",
    "report",
    "compare",
    "treat",
    "export",
    "explain",
    "plan",
    "runs",
    "check",
    "preflight",
    "completion",
)
FIRST_STEPS = (
    ("mgpu-doctor run -- torchrun train.py", "Start a job, then diagnose it."),
    ("mgpu-doctor top", "Watch it, in another terminal."),
    ("mgpu-doctor diagnose", "Diagnose what is running."),
    ("mgpu-doctor diagnose latest", "Diagnose the last recorded job."),
    ("mgpu-doctor check", "See what can be measured here."),
)
"""What a new user needs, above the list of all verbs."""
INTERRUPTED = 130
"""128 + SIGINT."""


class Verbs(Suggesting):
    """Imports only the verb that is called; all of them only for the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"mgpu_doctor.cli.{cmd_name}")
        verb: click.Command = getattr(module, cmd_name)
        return verb

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("First steps"):
            formatter.write_dl(FIRST_STEPS, col_max=40)
        rows = []
        for name in VERBS:
            verb = self.get_command(ctx, name)
            rows.append((name, verb.get_short_help_str(limit=1000) if verb is not None else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def main(self, *args: Any, **options: Any) -> Any:
        undo = guard_streams()
        try:
            return super().main(*args, **options)
        finally:
            undo()

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _errors_on_one_line():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with _errors_on_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except DoctorError as error:
            print_message(str(error))
            raise click.exceptions.Exit(error.exit_code) from None


@contextmanager
def _errors_on_one_line() -> Iterator[None]:
    """Keep Click's messages on one line: they repeat arguments, such as names of foreign files."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # its message is the help
    except click.UsageError as error:
        message = error.format_message()
        if make_one_line(message) == message:
            raise
        raise click.UsageError(make_one_line(message), error.ctx) from None


@click.group(
    "mgpu-doctor",
    cls=Verbs,
    help="Find the slow or failing rank in multi-GPU training: cause, evidence and fix.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(
    __version__, message="mgpu-doctor %(version)s", help="Print the version and exit."
)
def app() -> None:
    pass


def main() -> None:
    """Runs the verb of this process's command line, and exits."""
    guard_streams()  # until the exit: tracebacks can contain foreign text, too
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # as whoever began this left it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else no child's exit status is kept
    try:
        app(prog_name="mgpu-doctor")
    finally:
        gc.freeze()  # else Python searches everything that is loaded four times before it exits
