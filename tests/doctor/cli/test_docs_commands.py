"""Every command in the README and the docs is accepted by the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from mgpu_trainers import catalogue

from mgpu_doctor.cli import app
from mgpu_doctor.cli.train import _parse_options
from tests.support.loops import over

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCES = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*mgpu-doctor (.*)$")
ANYTHING = re.compile(r"…|\[[A-Z]")
"""What stands for something else."""
MENTIONED = re.compile(r"(?<!`)`mgpu-doctor ([a-z]+)([^`]*)`")


def commands(page: Path) -> Iterator[str]:
    """Those in code blocks."""
    for block in FENCES.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if (found := COMMAND.match(line.strip())) and not ANYTHING.search(found[1]):
                yield found[1]


SHOWN = sorted({(page.name, command) for page in PAGES for command in commands(page)})


def verb(name: str) -> click.Command:
    assert isinstance(app, click.Group)
    found = app.get_command(click.Context(app), name)
    assert found is not None, f"there is no verb {name}"
    return found


def parsed(shown: str) -> click.Context:
    words = shlex.split(shown, comments=True)
    for end in ("|", ">", "2>", "&&", ";", "&"):
        words = words[: words.index(end)] if end in words else words
    name, *rest = words
    return verb(name).make_context(name, rest, parent=click.Context(app))


def test_there_are_commands_to_look_at() -> None:
    assert len({page for page, _ in SHOWN}) >= 5
    assert len(SHOWN) >= 50


@over("page, shown", SHOWN)
def test_the_command_line_takes_what_is_shown(page: str, shown: str) -> None:  # noqa: ARG001
    context = parsed(shown)
    if context.info_name == "train" and not context.params["sweep"]:
        trainer = catalogue.find(context.params["name"])
        assert catalogue.command(trainer, context.params["ranks"], _parse_options(context.args))


@pytest.mark.parametrize("shown", ["diagnose --quick", "plan --batch x", "compare", "top --only"])
def test_what_it_does_not_take_would_be_found(shown: str) -> None:
    with pytest.raises(click.UsageError):
        parsed(shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_sentences_mention_exists(page: Path) -> None:
    for name, rest in MENTIONED.findall(FENCES.sub("", page.read_text(encoding="utf-8"))):
        known = {
            option for param in verb(name).params for option in (*param.opts, *param.secondary_opts)
        }
        options = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", rest.partition(" -- ")[0]))
        taken = verb(name).context_settings.get("ignore_unknown_parse_options")
        assert taken or options <= {*known, "--help"}, f"mgpu-doctor {name}{rest}"
