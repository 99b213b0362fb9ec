"""`mgpu-doctor report`: a file with the diagnosis of a recording, for tickets and archives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.completers import complete_recording
from mgpu_doctor.cli.diagnose import diagnose_recording, find_recording
from mgpu_doctor.cli.host_options import HostsRequest, host_options, propose_option
from mgpu_doctor.cli.options import FILE, Argument, Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    exit_with,
    pause_garbage_collection,
    print_text,
    progress_line,
    save_text,
)

if TYPE_CHECKING:
    from mgpu_doctor.findings import Diagnosis

ENDINGS = (".html", ".md", ".json")


@click.command(cls=Verb)
@click.argument(
    "reference",
    cls=Argument,
    required=False,
    metavar="[RECORDING]",
    shell_complete=complete_recording,
    help_text="A recording's folder, its id, or `latest`.",
)
@click.option(
    "--output",
    "-o",
    type=FILE,
    metavar="FILE",
    help="Write to FILE: .html, .md or .json. By default, print Markdown.",
)
@click.option(
    "--no-redact",
    is_flag=True,
    help="Keep host names, user names, addresses and paths in Markdown. HTML always keeps them.",
)
@host_options
@pause_garbage_collection()
def report(
    reference: str | None, output: Path | None, *, hosts: HostsRequest | None, no_redact: bool
) -> None:
    """Write a report of a job: one file with the diagnosis and its evidence.

    \b
    Examples:
      mgpu-doctor report latest -o report.html
      mgpu-doctor report runs/today -o report.md
      mgpu-doctor report --hosts node1,node2 -o report.html
      mgpu-doctor report latest | gh issue create --title "slow rank" --body-file -
    """
    ending = ".md" if output is None else output.suffix.lower()
    if ending not in ENDINGS:
        exit_with(WRONG_USAGE, f"{output} must end in .html, .md or .json.")

    if hosts is not None and reference is None:
        diagnosis = _diagnose_hosts(hosts)
    elif hosts is None and reference is not None:
        diagnosis = diagnose_recording(find_recording(reference))
    else:
        option = "--hosts" if hosts is None else hosts.option
        exit_with(
            WRONG_USAGE,
            f"name either a recording or {option}.",
            propose_option(os.environ) or "",
        )
    with progress_line() as report_progress:
        report_progress("writing the report")
        text = _render(diagnosis, ending, redact=not no_redact)
    if output is None:
        print_text(text)
        return
    save_text(output, text, "the report")


def _diagnose_hosts(hosts: HostsRequest) -> Diagnosis:
    """The diagnosis of the only job on these hosts; exits with code 3 if there is none or more."""
    from mgpu_doctor.api.verb_requests import diagnose_cases
    from mgpu_doctor.examine.host_cases import load_host_cases

    names, engine = hosts.find()
    with progress_line() as report_progress:
        diagnoses = diagnose_cases(
            lambda tell: load_host_cases(names, engine, tell), report_progress
        )
    if len(diagnoses) > 1:
        ids = ", ".join(diagnosis.case.job.id for diagnosis in diagnoses)
        exit_with(
            NOTHING_EXAMINED,
            f"{len(diagnoses)} jobs run there, and their recordings are here now: report one of "
            f"them: {ids}.",
        )
    return diagnoses[0]


def _render(diagnosis: Diagnosis, ending: str, *, redact: bool) -> str:
    from mgpu_doctor.report import diagnosis_json, html, markdown

    if ending == ".html":
        return html.render(diagnosis)
    if ending == ".json":
        return diagnosis_json.render(diagnosis)
    return markdown.render(diagnosis, redact=redact, home=os.path.expanduser("~"))
