"""How a command is started on a host: one small protocol, one file per engine."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Sequence
from reprlib import Repr
from typing import NamedTuple, Protocol, runtime_checkable

from mgpu_probes.outside.terminal_text import clean

from mgpu_doctor.cluster.agent_program import OLDEST, TOO_OLD, remote_command
from mgpu_doctor.errors import NOTHING_EXAMINED, WRONG_USAGE, DoctorError

SECONDS_TO_LIST = 30.0
"""After which a command that lists hosts is given up."""
MOST_TEXT = 64 << 20
MOST_ERROR = 4096
"""Bytes of what a command prints on standard error that are read."""
_QUOTER = Repr()
_QUOTER.maxstring = 80
_NOT_FOUND = re.compile(r"python3.{0,40}not found|not found.{0,40}python3", re.IGNORECASE)
_OLD = re.compile(re.escape(TOO_OLD).replace("%d", r"(\d{1,4})"))


class Trouble(NamedTuple):
    """Why a host cannot be seen, and what to do: parts of a sentence. `silent`: nothing answers
    there, as if the machine were off."""

    reason: str
    remedy: str
    silent: bool = False


class Engine(Protocol):
    """Starts commands on hosts through what the user has already: ssh, srun, kubectl, Ray."""

    name: str

    def command(self, host: str, remote: str) -> list[str]:
        """The command that runs the shell command `remote` on a host. Its standard input and output
        are the channel."""
        ...

    def describe_trial(self, host: str) -> str:
        """A command that a user can type to see whether a command runs on a host."""
        ...

    def explain(self, host: str, code: int, text: str) -> Trouble:
        """Why the channel to a host ended, and what to do. `code`: its exit code; `text`: the last
        lines that it printed on standard error."""
        ...


@runtime_checkable
class StepEngine(Engine, Protocol):
    """An engine that also starts one command on many hosts at once."""

    most_alone: int
    """Hosts that are to be reached at the same time by a command each; if there are more, one
    command reaches them."""

    def step_command(self, hosts: Sequence[str], remote: str) -> list[str]:
        """The command that runs `remote` on each of these hosts. Its standard input goes to all of
        them; its output is as `step_output` describes."""
        ...


def quote(given: str) -> str:
    """What a user gave, in quotes and short, with escapes for what cannot be printed."""
    return _QUOTER.repr(given)


def start_agent(engine: Engine, host: str) -> subprocess.Popen[bytes] | Trouble:
    """Starts the command that runs an agent on a host: its child process, which reads the agent's
    program from its standard input, or why there is none."""
    return start_command(engine.command(host, remote_command()))


def start_step(engine: StepEngine, hosts: Sequence[str]) -> subprocess.Popen[bytes] | Trouble:
    """The same for agents on several hosts."""
    return start_command(engine.step_command(hosts, remote_command()))


def start_command(command: Sequence[str]) -> subprocess.Popen[bytes] | Trouble:
    """Starts a command of an engine: its child process, or why there is none."""
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # no terminal to ask on, and none of its signals
        )
    except OSError as error:
        remedy = _REMEDIES.get(
            error.errno or 0, f"install it, so that `{command[0]}` is found on PATH"
        )
        return Trouble(f"{command[0]} cannot be started: {error.strerror}", remedy)


_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (`ulimit -n`), or name fewer hosts",
    errno.ENFILE: "name fewer hosts",
    errno.EAGAIN: "raise the limit of processes (`ulimit -u`), or name fewer hosts",
    errno.ENOMEM: "name fewer hosts",
}


def require_at_most(most: int, hosts: int, command: str) -> None:
    """Raises DoctorError if there are more hosts than commands may run here at the same time."""
    if hosts > most:
        raise DoctorError(
            f"{hosts:,} hosts would take as many processes of {command} here, and {most} is the "
            "most: name some of them, or name a Slurm job with --slurm, whose nodes are reached "
            "together.",
            WRONG_USAGE,
        )


def not_understood(engine: Engine, host: str, error: str) -> Trouble:
    """The trouble with a host that sends something else than an agent's frames."""
    remedy = f"try `{engine.describe_trial(host)}`: it must print nothing"
    return Trouble(f"what it sends is not understood: {error}", remedy)


class Listing(NamedTuple):
    """What a command of an engine printed, and its exit code."""

    code: int
    out: str
    error: str


def run_listing(command: Sequence[str], where: str) -> Listing:
    """Runs a command that lists a job's hosts. `where`: from where to run mgpu-doctor if the
    command does not exist. Raises DoctorError."""
    name = command[0]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=SECONDS_TO_LIST,
            start_new_session=True,  # it cannot ask on the terminal
        )
    except subprocess.TimeoutExpired:
        sentence = f"`{name}` gave no answer for {SECONDS_TO_LIST:.0f} s: try it by hand."
        raise DoctorError(sentence, NOTHING_EXAMINED) from None
    except OSError as error:
        sentence = f"{name} cannot be started ({error.strerror}): run mgpu-doctor {where}."
        raise DoctorError(sentence, NOTHING_EXAMINED) from None
    text = clean(ended.stderr[-MOST_ERROR:].decode("utf-8", "replace"), MOST_ERROR)
    return Listing(ended.returncode, ended.stdout[:MOST_TEXT].decode("utf-8", "replace"), text)


def find_python_trouble(text: str, code: int) -> Trouble | None:
    """Whether a host has no Python that is new enough, by what its shell printed."""
    if old := _OLD.search(text):
        return Trouble(
            f"it has Python {old[1]}.{old[2]}, and the agent needs 3.{OLDEST} or newer",
            f"install a newer Python there, as python3.{OLDEST} for example",
        )
    if _NOT_FOUND.search(text) or code == 127:
        return Trouble("its shell finds no python3", f"install Python 3.{OLDEST} or newer there")
    return None


def last_line(text: str, code: int) -> str:
    """The last line of an error in quotes, or the exit code."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"'{lines[-1]}'" if lines else f"exit code {code}"
