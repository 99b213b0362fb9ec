"""Passes requests of the reader on to ranks of this host, and sends their traces.

Only the requests that `mgpu-doctor trace` makes are passed on. A trace is removed here once the
reader has all of it."""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from mgpu_probes.outside import processes
from mgpu_probes.outside.node.channel_frames import MOST_BODY, pack_frame
from mgpu_probes.outside.node.node_jobs import NodeBox
from mgpu_probes.outside.stacks.rank_replies import NoReply, RankRequest, Reply, ask_at_once

HANDLERS = frozenset(
    {
        "trace_state",
        "trace_begin",
        "trace_cancel",
        "collective_timing",
        "collective_timing_begin",
        "fr_trace_plain",
    }
)
MOST_PATIENCE = 30.0
MOST_WHY = 300
_GZIP = 31
"""`wbits` of zlib for a gzip file."""
Json = dict[str, Any]


class RankRequests:
    """Answers requests about boxes, each given by its number."""

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}
        """Box -> when its rank was last asked to begin a trace."""

    def answer(self, request: Json, boxes: Mapping[int, NodeBox]) -> Iterator[bytes]:
        """Yields the frames that answer a request; none if it is not understood."""
        number, wanted = request.get("id"), request.get("of")
        if type(number) is not int or not isinstance(wanted, list):
            return
        chosen = [boxes[box] for box in wanted if type(box) is int and box in boxes]
        match request:
            case {"ask": str(handler), "patience": int() | float() as patience, "most": int(most)}:
                if handler.partition("?")[0] in HANDLERS:
                    asked = RankRequest(handler, min(patience, MOST_PATIENCE), most)
                    yield from self._ask(number, asked, chosen)
            case {"fetch": True}:
                for box in chosen:
                    yield from self._send_trace(number, box)
            case {"remove": True}:
                for box in chosen:
                    with suppress(OSError):
                        os.unlink(box.trace)
                    yield _pack(number, box, Reply(), last=True)

    def _ask(self, number: int, request: RankRequest, boxes: list[NodeBox]) -> Iterator[bytes]:
        if request.handler.startswith("trace_begin"):
            self._begun |= dict.fromkeys((box.number for box in boxes), time.time())
        replies = ask_at_once([(box.socket, box.process) for box in boxes], request)
        for box, reply in zip(boxes, replies, strict=True):
            parts = range(0, len(reply.body) or 1, MOST_BODY)
            for at in parts:
                part = Reply(reply.body[at : at + MOST_BODY], reply.failure, reply.why)
                yield _pack(number, box, part, last=at == parts[-1])

    def _send_trace(self, number: int, box: NodeBox) -> Iterator[bytes]:
        """Sends the file that a rank wrote, packed. A rank that has ended must have written it
        after it was asked to."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(box.trace, flags), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    raise OSError("it is no file of this user")
                begun = self._begun.get(box.number, float("inf"))
                if not processes.is_alive(*box.process) and status.st_mtime < begun:
                    raise OSError("it is of an earlier trace")
                packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
                while piece := file.read(MOST_BODY):
                    if packed := packer.compress(piece):
                        yield _pack(number, box, Reply(packed), last=False)
            yield _pack(number, box, Reply(packer.flush()), last=True)
        except OSError as error:
            failed = Reply(failure=NoReply.FAILED, why=error.strerror or str(error))
            yield _pack(number, box, failed, last=True)


def _pack(number: int, box: NodeBox, reply: Reply, *, last: bool) -> bytes:
    failure = None if reply.failure is None else reply.failure.value
    facts: Json = {"id": number, "box": box.number, "failure": failure, "last": last}
    return pack_frame("reply", reply.body, **facts, why=reply.why[:MOST_WHY])
