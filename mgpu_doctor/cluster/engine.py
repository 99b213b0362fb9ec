"""How a command is started on a host: one small protocol, one file per engine."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Trouble(NamedTuple):
    """Why a host cannot be seen, and what to do: parts of a sentence."""

    reason: str
    remedy: str


class Engine(Protocol):
    """Starts commands on hosts through what the user has already: ssh, srun, kubectl, Ray."""

    name: str

    def check(self, host: str) -> str | None:
        """Why this name cannot be a host, as a sentence; None if it can."""
        ...

    def command(self, host: str, remote: str) -> list[str]:
        """The command that runs the shell command `remote` on a host. Its standard input and output
        are the channel."""
        ...

    def explain(self, host: str, code: int, text: str) -> Trouble:
        """Why the channel to a host ended, and what to do. `code`: its exit code; `text`: the last
        lines that it printed on standard error."""
        ...
