"""The ranks of a job on several hosts, asked through the agents; their traces arrive here."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mgpu_probes.outside.stacks.rank_replies import (
    NoReply,
    RankProcess,
    RankRequest,
    Replies,
    Reply,
)
from mgpu_probes.outside.traces.probe_tracing import EndedTrace
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell

from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.host_request import HostRequest, Keeper, NewFile
from mgpu_doctor.formatting import format_bytes

AHEAD = 3.0
"""Seconds within which all ranks have received a request: agents may be polling, and a round trip
takes a tenth of a second on a slow network."""
SLACK = 5.0
"""Seconds that a reply may take on its way, above what the rank has."""
POLL = 0.05
STILL = 60.0
"""Seconds without a byte after which the traces that have not arrived are given up."""
MOST_TRACE = 1 << 30
"""Bytes of a packed trace. The probe ends a trace when its rank has grown by 2 GiB."""
UNHEARD = "its host does not answer"


class HostRanks:
    """The ranks of `job` whose processes run on these hosts."""

    ahead = AHEAD

    def __init__(self, fleet: Fleet, job: GatheredJob) -> None:
        self._fleet = fleet
        self._channels = {
            hello.host: channel
            for channel in fleet.channels
            if (hello := channel.mirror.hello) is not None
        }
        self.processes: tuple[RankProcess, ...] = tuple(
            RankProcess(box.process[0], host, identity)
            for host, channel in self._channels.items()
            for identity, box in channel.mirror.boxes_of(job).items()
        )
        first = self.ask(RankRequest("trace_state"), self.processes)  # boxes outlive their ranks
        self.processes = tuple(
            rank for rank, reply in first.items() if reply.failure is not NoReply.ENDED
        )

    def ask(self, request: RankRequest, whom: Iterable[RankProcess]) -> Replies:
        asked = {"ask": request.handler, "patience": request.patience, "most": request.most}
        return self._exchange(asked, tuple(whom), request.patience + SLACK, request.most)

    def collect(
        self, ended: Mapping[RankProcess, EndedTrace], folder: Path, tell: Tell
    ) -> list[TakenTrace]:
        """Brings the traces here as packed files, and removes them from their hosts."""
        files: dict[RankProcess, NewFile] = {}
        for rank, trace in ended.items():
            if trace.is_written is not False:
                files[rank] = NewFile(_name(folder, rank, trace.rank, files.values()))
        try:
            return self._fetch(ended, files, tell)
        except BaseException:
            for file in files.values():
                file.path.unlink(missing_ok=True)
            raise

    def _fetch(
        self,
        ended: Mapping[RankProcess, EndedTrace],
        files: Mapping[RankProcess, NewFile],
        tell: Tell,
    ) -> list[TakenTrace]:
        sent = self._send({"fetch": True}, tuple(files), files, MOST_TRACE)
        size, news = 0, time.monotonic()
        while not all(request.over for request in sent) and time.monotonic() - news < STILL:
            self._fleet.poll(POLL)
            if (arrived := sum(request.size for request in sent)) > size:
                size, news = arrived, time.monotonic()
                tell(f"fetching the traces: {format_bytes(size)}")
        failed = self._end(sent)
        here = tuple(rank for request in sent for rank in request.ranks if rank not in failed)
        self._exchange({"remove": True}, here, SLACK, 0)
        for rank in files.keys() - {*here}:
            files[rank].path.unlink(missing_ok=True)
        return [
            TakenTrace(rank.pid, trace.rank, files[rank].path, trace.why, rank.host)
            if rank in here
            else TakenTrace(
                rank.pid, trace.rank, None, _explain(trace, failed.get(rank)), rank.host
            )
            for rank, trace in ended.items()
        ]

    def _exchange(
        self, asked: dict[str, Any], whom: tuple[RankProcess, ...], patience: float, most: int
    ) -> Replies:
        """The reply of each rank, all of them waited for together."""
        bodies = {rank: io.BytesIO() for rank in whom}
        sent = self._send(asked, whom, bodies, most)
        end = time.monotonic() + patience
        while not all(request.over for request in sent) and time.monotonic() < end:
            self._fleet.poll(POLL)
        failed = self._end(sent)
        known = {rank for request in sent for rank in request.ranks}
        unasked = Reply(failure=NoReply.LATE, why=UNHEARD)
        return {
            rank: failed.get(rank) or (Reply(bodies[rank].getvalue()) if rank in known else unasked)
            for rank in whom
        }

    def _send(
        self,
        asked: dict[str, Any],
        whom: tuple[RankProcess, ...],
        keepers: Mapping[RankProcess, Keeper],
        most: int,
    ) -> list[HostRequest]:
        """Sends a request to all hosts that have some of these ranks."""
        sent = []
        of_host: dict[str | None, list[RankProcess]] = {}
        for rank in whom:
            of_host.setdefault(rank.host, []).append(rank)
        for host, ranks in of_host.items():
            channel = self._channels[host or ""]
            known = channel.mirror.number_boxes()
            numbers = {known[rank.box]: rank for rank in ranks if rank.box in known}
            if numbers and channel.mirror.synced:
                request = HostRequest(numbers, keepers, most)
                number = channel.mirror.expect(request)
                channel.send({"id": number, "of": [*numbers], **asked})
                sent.append(request)
        return sent

    def _end(self, sent: list[HostRequest]) -> dict[RankProcess, Reply]:
        """Ends requests; why some ranks have no reply."""
        failed: dict[RankProcess, Reply] = {}
        for request in sent:
            request.abandon("no answer in time")
            failed |= request.failed
        return failed


def _name(folder: Path, rank: RankProcess, number: int | None, others: Iterable[NewFile]) -> Path:
    """The file of a rank's trace, also if two ranks claim the same number."""
    path = folder / (f"rank{number}.json.gz" if number is not None else f"pid{rank.pid}.json.gz")
    if all(path != other.path for other in others):
        return path
    return folder / f"{path.name.partition('.')[0]}-{rank.host}-{rank.pid}.json.gz"


def _explain(trace: EndedTrace, failed: Reply | None) -> str:
    if trace.why is not None and trace.is_written is not True:
        return trace.why
    why = failed.why if failed is not None else UNHEARD
    return f"its trace did not arrive ({why})"
