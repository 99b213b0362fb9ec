"""The command that reaches a host by ssh, and what its messages mean."""

from __future__ import annotations

import pytest

from mgpu_doctor.cluster.openssh import MOST_HOSTS, OpenSsh, parse_hosts
from mgpu_doctor.errors import DoctorError

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Host key for node-b has changed and you have requested strict checking.
Host key verification failed.
"""


def test_no_question_and_no_option_can_come_from_a_name() -> None:
    command = OpenSsh().command("node-b", "exec sh")
    assert command[0] == "ssh"
    assert "BatchMode=yes" in command
    assert command[-3:] == ["--", "node-b", "exec sh"]
    for name in ("-oProxyCommand=x", "a b", "a\nb", "a\x1b[31m", "x" * 300):
        with pytest.raises(DoctorError, match="is not a host name") as raised:
            parse_hosts(f"node-b,{name}")
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 200
    for nothing in ("", ",", "node-b,,node-c", "node-b, "):
        with pytest.raises(DoctorError, match=f"'{nothing}' has an empty host name: name hosts as"):
            parse_hosts(nothing)
    names = ("node-b", "me@node-b", "10.0.0.7", "ssh://me@node-b:2222")
    assert parse_hosts(", ".join((*names, "node-b")))[0] == names
    assert parse_hosts("nöde")[0] == ("nöde",)


@pytest.mark.parametrize(
    ("code", "text", "reason", "remedy"),
    [
        (255, CHANGED, "REMOTE HOST IDENTIFICATION HAS CHANGED!", "ssh-keygen -R node-b"),
        (255, "Host key verification failed.\n", "Host key", "connect once with `ssh node-b`"),
        (255, "me@node-b: Permission denied (publickey).\n", "Permission denied", "ssh-copy-id"),
        (
            255,
            "ssh: Could not resolve hostname node-b: Name or service not known\n",
            "Could not resolve hostname node-b",
            "~/.ssh/config",
        ),
        (
            255,
            "ssh: connect to host node-b port 22: Connection refused\n",
            "ssh fails with 'Connection refused (node-b port 22)'",
            "no ssh server answers",
        ),
        (
            255,
            "ssh: connect to host node-b port 22: Connection timed out\n",
            "Connection timed out",
            "cannot be reached",
        ),
        (255, "Timeout, server node-b not responding.\n", "Timeout", "cannot be reached"),
        (255, "client_loop: send disconnect: Broken pipe\n", "Broken pipe", "ssh node-b true"),
        (126, "", "exit code 126", "ssh node-b true"),
        (255, "", "the agent there was killed", "dmesg"),
        (
            255,
            "ssh: Could not resolve hostname n\\303\\266de: Name or service not known\n",
            r"'Could not resolve hostname n\303\266de: Name",
            "~/.ssh/config",
        ),
        (127, "sh: 1: exec: python3: not found\n", "finds no python3", "install Python 3.10"),
    ],
)
def test_messages(code: int, text: str, reason: str, remedy: str) -> None:
    trouble = OpenSsh().explain("node-b", code, text)
    assert reason in trouble.reason
    assert remedy in trouble.remedy


def test_more_hosts_than_ssh_processes_make_sense() -> None:
    names = ",".join(f"node{number}" for number in range(MOST_HOSTS + 1))
    assert len(parse_hosts(names.rpartition(",")[0])[0]) == MOST_HOSTS
    with pytest.raises(DoctorError, match=r"^513 hosts would take as many processes of ssh here"):
        parse_hosts(names)
