"""`mgpu-doctor explain`: what a finding means, how it is measured, what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from mgpu_doctor.cli import app

WIDTH = 88


@app.command()
def explain(
    code: Annotated[str | None, typer.Argument(help="A finding's code; none: the list.")] = None,
) -> None:
    """What a finding means, how it is measured, its thresholds and fixes."""
    import difflib
    import functools
    import textwrap

    from mgpu_doctor.rules.catalogue import catalogue

    fill = functools.partial(textwrap.fill, break_on_hyphens=False)
    rules = {rule.code: rule for rule in catalogue().rules}
    if code is None:
        width = max(len(name) for name in rules)
        for rule in sorted(rules.values(), key=lambda rule: (rule.family, rule.code)):
            indent = " " * (width + 2)
            line = f"{rule.code:<{width}}  {rule.summary}"
            typer.echo(fill(line, WIDTH, subsequent_indent=indent))
        return
    if code not in rules:
        near = difflib.get_close_matches(code, rules, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "`mgpu-doctor explain` lists them."
        typer.echo(f"No finding has the code {code}: {hint}", err=True)
        raise typer.Exit(2)
    rule = rules[code]
    typer.echo(f"{rule.code} ({rule.family})\n{fill(rule.summary, WIDTH)}")
    for title, text in (
        ("How it is measured", rule.measured),
        ("Thresholds", rule.thresholds),
        ("What to do", rule.fixes),
    ):
        typer.echo(f"\n{title}\n{textwrap.indent(fill(text, WIDTH - 2), '  ')}")
