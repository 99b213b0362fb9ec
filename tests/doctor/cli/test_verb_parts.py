"""Parts of verbs: words after `--`, arguments in the help, suggestions, Ctrl-C."""

from __future__ import annotations

from pathlib import Path

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


def test_the_help_lists_every_verb_in_full_after_the_first_steps() -> None:
    result = CliRunner().invoke(app, ["--help"], terminal_width=80)
    first, _, verbs = result.stdout.partition("Commands:\n")
    verbs = verbs.partition("\nOptions:\n")[0]
    listed = [line.split()[0] for line in verbs.splitlines() if not line.startswith("    ")]
    assert listed == list(VERBS)
    assert "..." not in verbs
    assert "mgpu-doctor run -- " in first.partition("First steps:\n")[2]
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("diagnos", "diagnose"),
        ("diagnose --jsn", "--json"),
        ("explain straggler-inptu", "straggler-input"),
        ("train torch-fdsp", "torch-fsdp"),
        ("train torch-ddp --modle cnn-nano", "--model"),
        ("train torch-ddp --model cnn-nan", "cnn-nano"),
        ("train torch-ddp --fault sloww:rank=1", "slow"),
        ("plan cnn-nan", "cnn-nano"),
        ("plan torch-ddp --model cnn-nan", "cnn-nano"),
        ("plan cnn-nano --gpu H100-80G", "H100-80GB"),
        ("diagnose latst", "latest"),
        ("diagnose 20261127-train", "20261127-train-1a2b"),
        ("report lastest -o x.html", "latest"),
        ("treat --only loader-wokers -- true", "loader-workers"),
        ("runs pruen --keep 3", "prune"),
    ],
)
def test_a_slip_is_put_right(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs/20261127-train-1a2b").mkdir(parents=True)
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))
    slip = CliRunner().invoke(app, typed.split())
    assert slip.exit_code in (2, 3)
    _, asked, hint = slip.stderr.partition("Did you mean ")
    assert asked, slip.stderr
    assert meant in hint.split("?")[0]


def test_nothing_is_suggested_for_what_is_near_nothing() -> None:
    assert "Did you mean" not in CliRunner().invoke(app, ["--nothing"]).stderr
    assert "Did you mean" not in CliRunner().invoke(app, ["plan", "zzzz"]).stderr


def test_ctrl_c_exits_as_the_signal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explaining, "print_text", interrupted)
    done = CliRunner().invoke(app, ["explain"])
    assert (done.exit_code, done.output) == (130, "")


def completed(words: str, *, home: str = "") -> list[str]:
    """What bash offers for the last word of a command line."""
    asked = {
        "_MGPU_DOCTOR_COMPLETE": "bash_complete",
        "COMP_WORDS": f"mgpu-doctor {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        "MGPU_DOCTOR_HOME": home,
    }
    done = CliRunner().invoke(app, env=asked, prog_name="mgpu-doctor")
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_a_shell_completes_verbs_options_and_values(tmp_path: Path) -> None:
    (tmp_path / "runs/20261127-train-1a2b").mkdir(parents=True)
    assert completed("di") == ["diagnose"]
    assert completed("top --re") == ["--replay", "--record", "--readonly"]
    assert completed("explain straggler-in") == ["straggler-input"]
    assert "latest" in completed("diagnose la", home=str(tmp_path))
    assert "20261127-train-1a2b" in completed("report 2026", home=str(tmp_path))
    assert completed("plan gpt2") == ["gpt2-small", "gpt2"], "the second stands for files"
    assert completed("plan gpt2-small --gpu H2") == ["H200"]
    assert completed("train torch-dd") == ["torch-ddp"]
    assert "--model" in completed("train torch-ddp --mo")
    assert completed("train torch-ddp --steps 9 --model cnn") == ["cnn-nano"]
    assert completed("train torch-ddp --fault slow-") == ["slow-loader:"]
    assert completed("runs sh") == ["show"]
    assert completed("run --on-hang st") == ["stop"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_calls_the_command(shell: str) -> None:
    script = CliRunner().invoke(app, ["completion", shell])
    assert script.exit_code == 0
    assert f"_MGPU_DOCTOR_COMPLETE={shell}_complete" in script.stdout
