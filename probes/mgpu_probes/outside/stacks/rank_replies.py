"""What ranks reply to requests through their sockets, on this host or passed on by an agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import NamedTuple, Protocol

from mgpu_probes.outside import processes
from mgpu_probes.outside.stacks import worker_socket

AT_ONCE = 32


class NoReply(str, Enum):
    """Why a rank replied nothing. The values are sent by agents."""

    LATE = "late"
    """It did not answer in time: it may write a trace, or code in C holds Python's lock."""
    UNKNOWN = "unknown"
    """Its probe does not know the request."""
    ENDED = "ended"
    """Its process has ended."""
    FAILED = "failed"
    """It could not be asked; `why` says more."""


class RankProcess(NamedTuple):
    """A rank that can be asked. `host`: None: this one; `box`: identity of its black box there."""

    pid: int
    host: str | None = None
    box: str = ""


class Reply(NamedTuple):
    """A rank's reply. `body`: empty if `failure` says why there is none."""

    body: bytes = b""
    failure: NoReply | None = None
    why: str = ""


class RankRequest(NamedTuple):
    """`handler`: of the probe's server; `patience`: seconds to wait; `most`: bytes of a reply."""

    handler: str
    patience: float = 3.0
    most: int = 4096


Replies = Mapping[RankProcess, Reply]


class Ranks(Protocol):
    """Ranks that can be asked, all at once."""

    @property
    def processes(self) -> tuple[RankProcess, ...]: ...

    def ask(self, request: RankRequest, whom: Iterable[RankProcess]) -> Replies:
        """The reply of each of them."""
        ...


def ask_rank(path: str, process: tuple[int, int | None], request: RankRequest) -> Reply:
    """The reply of the rank whose socket is at `path`. `process`: its pid and start ticks."""
    try:
        return Reply(
            worker_socket.ask_worker(path, request.handler, request.patience, request.most)
        )
    except TimeoutError:
        return Reply(failure=NoReply.LATE)
    except worker_socket.NoHandlerError as error:
        return Reply(failure=NoReply.UNKNOWN, why=str(error))
    except OSError as error:
        ended = not processes.is_alive(*process)
        why = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            why = "its probe takes no requests"
        return Reply(failure=NoReply.ENDED if ended else NoReply.FAILED, why=why)


def ask_at_once(
    asked: Iterable[tuple[str, tuple[int, int | None]]], request: RankRequest
) -> list[Reply]:
    """The replies of several ranks, each given by its socket and process, in their order."""
    with ThreadPoolExecutor(AT_ONCE, "ask") as pool:
        return list(pool.map(lambda rank: ask_rank(rank[0], rank[1], request), asked))
