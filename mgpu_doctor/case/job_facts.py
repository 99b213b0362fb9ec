"""The job: its command, launcher and end, from the recording, its ranks and its console.

`recording_case` calls this. Facts only: nothing here judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from mgpu_probes.outside.jobs.launchers import find_launcher
from msgspec import Meta

from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.lenient_json import Moment, reader
from mgpu_doctor.case.model import AskedHost, Job, JobEnd, Outcome, Rank, Unexamined
from mgpu_doctor.case.outcomes import outcome_of
from mgpu_doctor.case.untrusted_json import Json, moment, text, whole, words
from mgpu_doctor.formatting import name_signal
from mgpu_doctor.recording.layout import GATHERED

SERVED = "ps"
"""The strategy of a job with parameter servers."""
MOST_HOSTS = 16_384


class _EndFile(msgspec.Struct):
    """`end.json`."""

    ended: Moment | None = None
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    asked: Annotated[str, Meta(max_length=20)] | None = None


_read_end = reader(_EndFile)


def ending(content: Mapping[str, Json], until: float | None) -> JobEnd:
    """How the job ended, by `end.json`. `until`: of a replay; before its end the job is running."""
    end = _read_end(content) if content else None
    if end is None or (until is not None and (end.ended is None or end.ended > until)):
        return JobEnd()
    return JobEnd(
        over=True,
        exit_code=end.exit_code,
        signal=end.signal,
        at=end.ended,
        asked=end.asked,
    )


def reported_by_launcher(end: JobEnd, asked: int | None) -> JobEnd:
    """The end, with the signal that asked the launcher to end, by its own output."""
    name = name_signal(asked)
    return end if end.asked is not None or name is None else replace(end, asked=name)


def job_of(
    path: Path,
    info: Mapping[str, Json],
    *,
    end: JobEnd,
    ranks: list[Rank],
    earlier: Sequence[Rank],
    launcher_alive: bool | None,
) -> Job:
    """The job. `launcher_alive`: whether its first process runs; None: unknown on this machine."""
    command = command_of(info)
    begun = [rank.started for rank in (*ranks, *earlier) if rank.started is not None]
    ended = [rank.ended for rank in ranks if rank.ended is not None]
    outcome = outcome_of(end, ranks, launcher_alive)
    hosts = {rank.host for rank in ranks if rank.host} or {text(info.get("host"), 64) or ""}
    return Job(
        id=text(info.get("id"), 200) or path.resolve().name,
        command=command,
        cwd=text(info.get("cwd"), 4000),
        framework=_most_common(rank.metadata.framework for rank in ranks),
        strategy=_strategy(ranks),
        launcher=_launcher(ranks, command),
        world_size=None
        if are_independent(ranks)
        else next(iter(_counted(rank.world_size for rank in ranks)), None),
        hosts=tuple(sorted(host for host in hosts if host)),
        started=moment(info.get("started")) or min(begun, default=None),
        ended=end.at if end.over or outcome is Outcome.RUNNING else max(ended, default=None),
        outcome=outcome,
        exit_code=end.exit_code,
        signal=end.signal,
        asked=end.asked,
        pid=None if info.get("kind") == GATHERED else whole(info.get("job_pid"), 1),
    )


def command_of(info: Mapping[str, Json]) -> tuple[str, ...]:
    """The command line of the job; empty if it was not recorded."""
    return tuple(words(info.get("command")) or ())


def asked_hosts_of(info: Mapping[str, Json]) -> tuple[AskedHost, ...]:
    """The hosts that were asked for ranks of a job that was gathered, as they were at the end."""
    listed = info.get("asked_hosts")
    return tuple(
        AskedHost(
            name,
            text(host.get("node"), 64),
            text(host.get("trouble")),
            text(host.get("remedy")) or "wait for it",
        )
        for host in (listed if isinstance(listed, list) else ())[:MOST_HOSTS]
        if isinstance(host, dict) and (name := text(host.get("name"), 256)) is not None
    )


def gaps_of(hosts: Iterable[AskedHost]) -> Iterator[Unexamined]:
    """Yields which hosts are not seen, why, and what to do."""
    for host in hosts:
        if host.trouble is not None:
            yield Unexamined(f"host {host.name}", host.trouble, host.remedy)


def _launcher(ranks: Iterable[Rank], command: Sequence[str]) -> str | None:
    """The launcher that the ranks report, else the one that the command line names."""
    reported = _most_common(rank.metadata.launcher for rank in ranks)
    if reported not in (None, "none", "environment"):
        return reported
    return find_launcher(command) or (None if reported == "none" else reported)


def _strategy(ranks: list[Rank]) -> str | None:
    """The strategy of most ranks. Only a parameter server itself knows that there is one."""
    reported = [rank.metadata.strategy for rank in ranks]
    return SERVED if SERVED in reported else _most_common(reported)


def _most_common(values: Iterable[Json]) -> str | None:
    common = next(iter(_counted(value for value in values if isinstance(value, str))), None)
    return text(common, 100)


def _counted(values: Iterable[Json]) -> list[Json]:
    return [value for value, _ in Counter(v for v in values if v is not None).most_common()]
