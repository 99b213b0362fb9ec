"""`mgpu-doctor preflight`: short tests before a launch that name the slow host, GPU or link."""

from __future__ import annotations

import sys

import click

from mgpu_doctor.cli.host_options import HostsRequest, host_options, suggest_option
from mgpu_doctor.cli.options import Verb
from mgpu_doctor.cli.terminal_output import (
    NOTHING_EXAMINED,
    WRONG_USAGE,
    display_of,
    exit_with,
    print_text,
    progress_line,
)

OFF = 1
MOST_HOSTS = 512
"""Each takes a process here, of ssh or srun. A choice."""


@click.command(cls=Verb)
@click.option(
    "--pairs",
    is_flag=True,
    help="Test the links between the hosts, too. Opens a port on each host during its tests.",
)
@click.option(
    "--data",
    metavar="DIR",
    help="Read files of this folder on each host, where the training data is. By default, a "
    "temporary file.",
)
@click.option("--interface", metavar="NAME", help="The network interface that the job will use.")
@click.option(
    "--python",
    metavar="PATH",
    help="The Python with PyTorch on each host. By default the one that runs mgpu-doctor, else "
    "`python3`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@host_options
def preflight(
    data: str | None,
    interface: str | None,
    python: str | None,
    *,
    pairs: bool,
    as_json: bool,
    hosts: HostsRequest | None,
) -> None:
    """Test this machine, or the hosts of a job, before a launch.

    Short tests of cores, memory, disk, GPUs, links and collectives, in less than two minutes.
    Hosts, GPUs and links are compared with each other. A busy host is not blamed. Exit code: 0
    nothing looks off, 1 something does, 2 wrong usage, 3 nothing could be tested.

    \b
    Examples:
      mgpu-doctor preflight
      mgpu-doctor preflight --hosts node1,node2,node3
      mgpu-doctor preflight --hosts node1,node2 --pairs --interface ib0
      mgpu-doctor preflight --slurm 4711
      mgpu-doctor preflight --k8s jobset.sigs.k8s.io/jobset-name=llama -n training --pairs
      mgpu-doctor preflight --data /data/imagenet --json
    """
    from mgpu_doctor.check import check_report, preflight_verdicts
    from mgpu_doctor.check.preflight_channel import ThisMachine
    from mgpu_doctor.check.preflight_session import Options, run_preflight

    if pairs and hosts is None:
        exit_with(WRONG_USAGE, "--pairs needs --hosts, --slurm, --k8s or --ray.")
    if hosts is None:
        suggest_option()
    names, engine = (("this machine",), ThisMachine()) if hosts is None else hosts.find(whole=True)
    if len(names) > MOST_HOSTS:
        exit_with(
            WRONG_USAGE,
            f"{len(names):,} hosts take as many processes here, and {MOST_HOSTS} is the most: name "
            "some of them with --hosts.",
        )
    options = Options(pairs=pairs, data=data, interface=interface, python=python)
    with progress_line() as report_progress:
        tests = run_preflight(names, engine, options, report_progress)
    if all(host.trouble is not None for host in tests.hosts):
        reasons = [
            f"{host.name}: {host.trouble.reason}: {host.trouble.remedy}."
            for host in tests.hosts
            if host.trouble is not None
        ]
        exit_with(NOTHING_EXAMINED, " ".join(reasons[:8]))
    results = preflight_verdicts.judge(tests)
    print_text(
        preflight_verdicts.render_json(results, tests)
        if as_json
        else check_report.render_text(
            results,
            headline=preflight_verdicts.make_headline(results, tests),
            **display_of(sys.stdout),
        )
    )
    raise click.exceptions.Exit(OFF if any(result.is_improvable for result in results) else 0)
