"""Hosts over OpenSSH. Jump hosts, users and keys are those of the user's own ~/.ssh/config.

The messages are OpenSSH's (ssh.c, sshconnect.c, sshconnect2.c of 9.x); a host's shell adds its
own."""

from __future__ import annotations

import re

from mgpu_doctor.cluster.agent_program import OLDEST, TOO_OLD
from mgpu_doctor.cluster.engine import Trouble

SECONDS_TO_CONNECT = 10
OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # a question would wait for ever
    *("-o", f"ConnectTimeout={SECONDS_TO_CONNECT}"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"),
    *("-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no", "-o", "ForwardX11=no"),
)
_NOT_FOUND = re.compile(r"python3.{0,40}not found|not found.{0,40}python3", re.IGNORECASE)
_OLD = re.compile(re.escape(TOO_OLD).replace("%d", r"(\d{1,4})"))
_LINES = 6


class OpenSsh:
    """`--hosts`: each host by the name that `ssh` knows."""

    name = "ssh"

    def check(self, host: str) -> str | None:
        """Names that ssh would read as options are no hosts."""
        if re.fullmatch(r"[^-\s,][^\s,]{0,254}", host):
            return None
        return (
            f"{host!r} is no name of a host: name hosts as ssh does, such as --hosts node1,node2."
        )

    def command(self, host: str, remote: str) -> list[str]:
        return ["ssh", *OPTIONS, "--", host, remote]

    def explain(self, host: str, code: int, text: str) -> Trouble:
        last = [line for line in text.splitlines() if line.strip()][-_LINES:]
        if old := _OLD.search(text):
            return Trouble(
                f"it has Python {old[1]}.{old[2]}, and the agent needs 3.{OLDEST} or newer",
                f"install a newer Python there, as python3.{OLDEST} for example",
            )
        if _NOT_FOUND.search(text) or code == 127:
            return Trouble(
                "its shell finds no python3", f"install Python 3.{OLDEST} or newer there"
            )
        for mark, remedy in _REMEDIES:
            if mark in text:
                reason = f"ssh fails with {_line_with(mark, last)!r}"
                return Trouble(reason, remedy.format(host=host))
        said = repr(last[-1].strip()) if last else f"exit code {code}"
        return Trouble(f"ssh fails with {said}", f"`ssh {host} true` must work without a question")


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


def _line_with(mark: str, lines: list[str]) -> str:
    """The line with this text, without frames of `@`."""
    line = next((line for line in lines if mark in line), mark)
    return line.strip(" @\t\r").removeprefix("ssh: ")
