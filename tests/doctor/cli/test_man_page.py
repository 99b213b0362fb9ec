"""The manual page has every verb and option, in valid macros."""

from __future__ import annotations

import re

import click

from mgpu_doctor.cli import VERBS, app
from mgpu_doctor.cli.man_page import make_page

MACROS = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}


def test_every_verb_and_option_is_on_the_page() -> None:
    page = make_page().replace("\\-", "-")
    context = click.Context(app, info_name="mgpu-doctor")
    for name in VERBS:
        verb = app.get_command(context, name)
        assert verb is not None
        assert re.search(rf"^\.SS mgpu-doctor {name}( |$)", page, re.M)
        for param in verb.params:
            assert all(option in page for option in param.opts if option.startswith("-"))
    assert ".SS mgpu-doctor runs prune [OPTIONS]" in page


def test_text_never_becomes_a_macro() -> None:
    lines = make_page().splitlines()
    assert {line.split()[0] for line in lines if line.startswith((".", "'"))} == MACROS
    assert not any(re.search(r"(?<!\\)-", line) for line in lines if not line.startswith(".TH"))
    assert "\b" not in make_page()
