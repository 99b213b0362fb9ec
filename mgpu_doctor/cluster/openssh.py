"""Hosts over OpenSSH. Jump hosts, users and keys are those of the user's own ~/.ssh/config.

The messages are OpenSSH's (ssh.c, sshconnect.c, sshconnect2.c of 9.x); a host's shell adds its
own."""

from __future__ import annotations

import re
import shlex

from mgpu_doctor.cluster.engine import (
    Trouble,
    find_python_trouble,
    last_line,
    quote,
    require_at_most,
)
from mgpu_doctor.errors import WRONG_USAGE, DoctorError

MOST_HOSTS = 512
"""Each takes an ssh process here, of 1.9 MB (measured with OpenSSH 9.2): 1 GB. Hosts do not pass
on what other hosts send: that would need keys on them."""
SECONDS_TO_CONNECT = 10
OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # a question would wait for ever
    *("-o", f"ConnectTimeout={SECONDS_TO_CONNECT}"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"),
    *("-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"),
)
_LINES = 6
SSH_FAILED = 255
"""The exit code of ssh if it fails, or if what it runs is killed by a signal."""
_PLACE = re.compile(r"connect to host (\S+) port (\d+): (.+)")


_HOST = re.compile(r"[^-\s,][^\s,]{0,254}")
"""Names that ssh would read as options are no hosts."""


class OpenSsh:
    """`--hosts`: each host by the name that `ssh` knows."""

    name = "ssh"

    def command(self, host: str, remote: str) -> list[str]:
        return ["ssh", *OPTIONS, "--", host, remote]

    def describe_trial(self, host: str) -> str:
        return f"ssh {shlex.quote(host)} true"

    def explain(self, host: str, code: int, text: str) -> Trouble:
        last = [line for line in text.splitlines() if line.strip()][-_LINES:]
        if trouble := find_python_trouble(text, code):
            return trouble
        for mark, remedy in _REMEDIES:
            if mark in text:
                reason = f"ssh fails with '{_line_with(mark, last)}'"
                return Trouble(reason, remedy.format(host=shlex.quote(host)), mark in _SILENT)
        if code == SSH_FAILED and not last:  # about its own failures ssh says something
            return Trouble(
                "the agent there was killed",
                "it is started again; `dmesg` on it shows whether its memory was full",
            )
        reason = f"ssh fails with {last_line(text, code)}"
        return Trouble(reason, f"`{self.describe_trial(host)}` must work without a question")


_REMEDIES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "ask who runs it whether its key changed, then remove the old one with "
        "`ssh-keygen -R {host}`",
    ),
    (
        "Host key verification failed",
        "its key is not known here: connect once with `ssh {host}` and compare the key",
    ),
    (
        "Permission denied",
        "it must work without a password: add your key with `ssh-copy-id {host}`, or load it with "
        "`ssh-add`",
    ),
    ("Could not resolve hostname", "check the name, or add it to ~/.ssh/config"),
    ("Connection refused", "no ssh server answers there: check the host and the port"),
    ("Connection timed out", "it cannot be reached from here: check the network and the host"),
    ("not responding", "it cannot be reached from here any more: check the network and the host"),
    ("No route to host", "it cannot be reached from here: check the network and the host"),
)

_SILENT = ("Connection timed out", "not responding", "No route to host")


def parse_hosts(given: str) -> tuple[tuple[str, ...], OpenSsh]:
    """The hosts that a list with commas names, each once, and how to reach them. Raises
    DoctorError."""
    hosts = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    for host in hosts:
        if not (host.isprintable() and _HOST.fullmatch(host)):
            what = (
                f"{quote(host)} is not a host name"
                if host
                else f"{quote(given)} has an empty host name"
            )
            sentence = f"--hosts: {what}: name hosts as for ssh, such as node1,node2."
            raise DoctorError(sentence, WRONG_USAGE)
    require_at_most(MOST_HOSTS, len(hosts), "ssh")
    return hosts, OpenSsh()


def _line_with(mark: str, lines: list[str]) -> str:
    """The line with this text, without frames of `@`. What went wrong comes first: a narrow screen
    cuts the rest off."""
    line = next((line for line in lines if mark in line), mark)
    return _PLACE.sub(r"\3 (\1 port \2)", line.strip(" @\t\r").removeprefix("ssh: "))
