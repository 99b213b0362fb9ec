"""The options that name the hosts of a job: `--hosts A,B`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mgpu_doctor.cli.terminal_output import WRONG_USAGE, exit_with

if TYPE_CHECKING:
    from mgpu_doctor.cluster.engine import Engine

HOSTS_OPTION = click.option(
    "--hosts",
    metavar="HOST,HOST...",
    help="Hosts of a job, by the names that `ssh` knows. Nothing needs to be installed on them but "
    "Python 3.10 or newer.",
)


def parse_hosts(given: str) -> tuple[tuple[str, ...], Engine]:
    """The hosts that the option names, each once, and how to reach them; exits with code 2 if a
    name is none."""
    from mgpu_doctor.cluster.openssh import OpenSsh

    engine = OpenSsh()
    hosts = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    for host in hosts:
        if (sentence := engine.check(host)) is not None:
            exit_with(WRONG_USAGE, sentence)
    return hosts, engine
