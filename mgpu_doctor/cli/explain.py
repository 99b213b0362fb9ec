"""`mgpu-doctor explain`: what a finding means, how it is detected, and how to fix it."""

from __future__ import annotations

import click

from mgpu_doctor.cli.completers import complete_code
from mgpu_doctor.cli.options import Argument, Verb
from mgpu_doctor.cli.terminal_output import WRONG_USAGE, exit_with, print_text


@click.command(cls=Verb)
@click.argument(
    "code",
    cls=Argument,
    required=False,
    metavar="[CODE]",
    shell_complete=complete_code,
    help_text="The code of a finding. By default, list all codes.",
)
@click.option(
    "--markdown", is_flag=True, help="Print all findings as Markdown, as in docs/findings.md."
)
def explain(code: str | None, markdown: bool) -> None:
    """Explain a finding: what it means, how it is detected, its thresholds and fixes.

    \b
    Examples:
      mgpu-doctor explain
      mgpu-doctor explain straggler-input
    """
    from mgpu_doctor.formatting import suggest
    from mgpu_doctor.report import rule_reference
    from mgpu_doctor.rules.catalogue import OWN, catalogue

    if markdown:
        print_text(rule_reference.reference_page(OWN))
        return
    rules = {rule.code: rule for rule in catalogue().rules}
    if code is None:
        print_text(f"{rule_reference.list_rules(rules.values())}\n")
        return
    if code not in rules:
        hint = suggest(code, rules, most=3) or "`mgpu-doctor explain` lists all codes."
        exit_with(WRONG_USAGE, f"no finding has the code {code}. {hint}")
    print_text(f"{rule_reference.explain_rule(rules[code])}\n")
