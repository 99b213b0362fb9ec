"""A request to ranks of one host, and what has arrived of their replies.

What arrives is untrusted: bounded, kept as bytes, and parsed by whoever asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mgpu_probes.outside.node.channel_frames import BadStream
from mgpu_probes.outside.stacks.rank_replies import NoReply, RankProcess, Reply

from mgpu_doctor.cluster.agent_messages import RankReplied


class Keeper(Protocol):
    """Keeps the bytes of one reply. Raises OSError."""

    def write(self, data: bytes) -> object: ...


class NewFile:
    """A private file that is made by the first write, and is appended to by each further one: a
    thousand ranks would take more descriptors than there are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = False

    def write(self, data: bytes) -> None:
        how = os.O_APPEND if self._begun else os.O_CREAT | os.O_EXCL
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags | how, 0o600)
        self._begun = True
        with open(descriptor, "ab") as file:
            file.write(data)


class HostRequest:
    """A request to ranks of one host. `ranks`: what the agent calls their boxes -> rank;
    `keepers`: where their replies go; `most`: bytes of a reply."""

    def __init__(
        self, ranks: Mapping[int, RankProcess], keepers: Mapping[RankProcess, Keeper], most: int
    ) -> None:
        self.failed: dict[RankProcess, Reply] = {}
        """Why some ranks replied nothing."""
        self.size = 0
        """Bytes that have arrived."""
        self.ranks = tuple(ranks.values())
        self._waited_for = dict(ranks)
        self._keepers = keepers
        self._most = most
        self._sizes = dict.fromkeys(ranks, 0)

    @property
    def over(self) -> bool:
        return not self._waited_for

    def add(self, message: RankReplied, part: bytes) -> None:
        """Takes in a part of a reply. Raises BadStream."""
        rank = self._waited_for.get(message.box)
        if rank is None:
            raise BadStream("it sends a reply that nobody waits for")
        self._sizes[message.box] += len(part)
        self.size += len(part)
        if self._sizes[message.box] > self._most:
            raise BadStream("it sends a reply that is longer than any is")
        if message.failure is not None:
            self.failed[rank] = Reply(failure=message.failure, why=message.why)
        elif rank not in self.failed:
            try:
                self._keepers[rank].write(part)
            except OSError as error:
                why = f"it cannot be written here: {error.strerror or error}"
                self.failed[rank] = Reply(failure=NoReply.FAILED, why=why)
        if message.last:
            del self._waited_for[message.box]

    def abandon(self, why: str, failure: NoReply = NoReply.LATE) -> None:
        """Gives up the replies that have not arrived."""
        for rank in self._waited_for.values():
            self.failed[rank] = Reply(failure=failure, why=why)
        self._waited_for.clear()
