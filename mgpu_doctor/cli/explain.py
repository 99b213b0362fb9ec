"""`mgpu-doctor explain`: what a finding means, how it is measured, what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from mgpu_doctor.cli import app
from mgpu_doctor.cli.output import leave, put

WRONG_USAGE = 2


@app.command()
def explain(
    code: Annotated[str | None, typer.Argument(help="A finding's code; none: the list.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="All of them, as the reference in docs/findings.md.")
    ] = False,
) -> None:
    """What a finding means, how it is measured, its thresholds and fixes.

    \b
    Examples:
      mgpu-doctor explain
      mgpu-doctor explain straggler-input
    """
    import difflib

    from mgpu_doctor.report import explained
    from mgpu_doctor.rules.catalogue import OWN, catalogue

    if markdown:
        put(explained.reference(OWN))
        return
    rules = {rule.code: rule for rule in catalogue().rules}
    if code is None:
        put(f"{explained.listed(rules.values())}\n")
        return
    if code not in rules:
        near = difflib.get_close_matches(code, rules, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "`mgpu-doctor explain` lists them."
        leave(f"no finding has the code {code}: {hint}", WRONG_USAGE)
    put(f"{explained.explained(rules[code])}\n")
