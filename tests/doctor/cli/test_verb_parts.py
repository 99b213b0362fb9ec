"""Parts of verbs: words after `--`, arguments in the help, suggestions, Ctrl-C."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from mgpu_doctor.cli import VERBS, app
from mgpu_doctor.cli import explain as explaining
from mgpu_doctor.cli.options import Argument, Dashed, words_after_dashes


@click.command(cls=Dashed)
@click.argument("word", cls=Argument, default="", metavar="[WORD]", help_text="Any [b]word[/b].")
@click.option("--job")
@click.pass_context
def verb(context: click.Context, job: str | None, word: str) -> None:
    click.echo(f"{job} {word!r} {words_after_dashes(context)}")


@pytest.mark.parametrize(
    ("typed", "seen"),
    [
        ([], "None '' None"),
        (["--job", "x", "w"], "x 'w' None"),
        (["--job", "x", "--", "torchrun", "--job", "y", "--", "z"],
         "x '' ('torchrun', '--job', 'y', '--', 'z')"),
        (["w", "--"], "None 'w' ()"),
    ],
    ids=["nothing", "no dashes", "a command", "no command"],
)  # fmt: skip
def test_what_follows_the_dashes_is_set_aside(typed: list[str], seen: str) -> None:
    assert CliRunner().invoke(verb, typed).stdout.strip() == seen


def test_the_help_explains_arguments_once_before_the_options() -> None:
    told = CliRunner().invoke(verb, ["--help"]).stdout
    _, explained, options = told.partition("Arguments:\n  WORD  Any [b]word[/b].\n")
    assert explained
    assert "--job" in options
    assert told.count("Any ") == 1


def test_the_help_lists_every_verb_and_a_slip_is_put_right() -> None:
    result = CliRunner().invoke(app, ["--help"])
    listed = [line.split()[0] for line in result.stdout.partition("Commands:\n")[2].splitlines()]
    assert listed == list(VERBS)
    slip = CliRunner().invoke(app, ["diagnos"])
    assert slip.exit_code == 2
    assert slip.stderr.endswith("Error: No such command 'diagnos'. Did you mean 'diagnose'?\n")
    assert "Did you mean" not in CliRunner().invoke(app, ["--nothing"]).stderr


def test_ctrl_c_exits_as_the_signal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explaining, "print_text", interrupted)
    done = CliRunner().invoke(app, ["explain"])
    assert (done.exit_code, done.output) == (130, "")


def test_a_shell_completes_verbs_and_options() -> None:
    def completed(words: str, place: str) -> list[str]:
        asked = {
            "_MGPU_DOCTOR_COMPLETE": "bash_complete",
            "COMP_WORDS": f"mgpu-doctor {words}",
            "COMP_CWORD": place,
        }
        done = CliRunner().invoke(app, env=asked, prog_name="mgpu-doctor")
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("di", "1") == ["diagnose"]
    assert completed("top --re", "2") == ["--replay", "--record", "--readonly"]
