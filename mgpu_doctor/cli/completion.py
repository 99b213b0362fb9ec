"""`mgpu-doctor completion`: the script that makes a shell complete verbs, options and values."""

from __future__ import annotations

import click

from mgpu_doctor.cli.options import Argument, Verb
from mgpu_doctor.cli.terminal_output import print_text

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MGPU_DOCTOR_COMPLETE"
"""Set by the script when a shell asks; Click reads it."""


@click.command(cls=Verb)
@click.argument(
    "shell",
    cls=Argument,
    type=click.Choice(SHELLS),
    help_text="bash (4.4 or newer), zsh or fish.",
)
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, options, codes and recordings.

    \b
    For bash, add this line to ~/.bashrc:
      eval "$(mgpu-doctor completion bash)"
    For zsh, add this line to ~/.zshrc, after compinit:
      eval "$(mgpu-doctor completion zsh)"
    For fish, run this once:
      mgpu-doctor completion fish > ~/.config/fish/completions/mgpu-doctor.fish
    """
    from click.shell_completion import get_completion_class

    from mgpu_doctor.cli import app

    kind = get_completion_class(shell)
    assert kind is not None  # SHELLS are those that Click knows
    source = kind(app, {}, "mgpu-doctor", VARIABLE)
    print_text(f"{source.source_template % source.source_vars()}\n")
