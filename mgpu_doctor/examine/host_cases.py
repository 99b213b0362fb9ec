"""Jobs on several hosts as cases: gathers their recordings, and says which hosts are missing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.stacks.hang_analysis import analyse_hang
from mgpu_doctor.case.job_facts import gaps_of
from mgpu_doctor.case.model import Case, Unexamined
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.cluster.engine import Engine
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_channel import HostState, Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.examine.live_targets import CONFIRM_AFTER, Tell
from mgpu_doctor.examine.subjects import UnknownSubject
from mgpu_doctor.formatting import format_seconds

SECONDS_TO_ANSWER = 30.0
"""Seconds for all hosts together: connecting gives up after ten, and boxes of a whole node are some
megabytes."""
POLL = 0.25
SECONDS_FOR_STACKS = 8.0
"""The agent gives up after five."""
MOST_LISTED = 8
CLOCK_IS_OFF = 0.1
"""Seconds from which it is said that a clock differs. A choice: above what NTP leaves."""
_RECORD_IT = "start it on each host with `mgpu-doctor run -- COMMAND`"


def load_host_cases(hosts: Sequence[str], engine: Engine, tell: Tell) -> list[Case]:
    """The cases of the jobs on these hosts. Raises UnknownSubject, which says why there is none."""
    with Fleet(hosts, engine, POLL) as fleet:
        tell(f"reading {', '.join(hosts[:MOST_LISTED])}")
        fleet.wait_until_read(SECONDS_TO_ANSWER)
        states = fleet.states()
        gaps = (*list_host_gaps(states), *_list_unrecorded(fleet, states))
        try:
            found = [_load(job, fleet, tell) for job in fleet.jobs]
        except (NotARecording, OSError) as error:
            raise UnknownSubject(f"what the hosts sent cannot be read: {error}") from None
    cases = [case for case in found if case.ranks]  # else nothing of it could be written here
    if not cases:
        raise UnknownSubject(explain_nothing(states, gaps))
    asked = tuple(state.asked for state in states)
    return [
        replace(case, asked_hosts=asked, unexamined=with_gaps(case.unexamined, gaps))
        for case in cases
    ]


def _load(job: GatheredJob, fleet: Fleet, tell: Tell) -> Case:
    """The case of a job. If it runs, its stacks are read on all hosts, and again while they show a
    hang."""
    if job.over:
        tell(f"examining {job.folder.name}")
        return load_recording(job.folder)
    started = time.monotonic()
    for seconds in (0.0, *CONFIRM_AFTER):
        tell(f"reading the stacks of {job.folder.name}")
        while (left := started + seconds - time.monotonic()) > 0:
            fleet.poll(left)
        joined = fleet.take_snapshot(job, SECONDS_FOR_STACKS)
        if not seconds:
            started = time.monotonic()  # of the first one: connecting takes its time
        case = load_recording(job.folder)
        if not joined:
            return replace(case, unexamined=(*case.unexamined, _UNREAD_STACKS))
        if seconds and analyse_hang(case.job_snapshots) is None:
            break
    return case


_UNREAD_STACKS = Unexamined(
    "stacks",
    "they were not read in time",
    "run `mgpu-doctor diagnose` on the hosts",
)


def with_gaps(
    unexamined: Iterable[Unexamined], gaps: Sequence[Unexamined]
) -> tuple[Unexamined, ...]:
    """`unexamined` with `gaps`, which are newer than those of the same hosts in the recording."""
    newer = {gap.probe for gap in gaps}
    return (*(gap for gap in unexamined if gap.probe not in newer), *gaps)


def list_host_gaps(states: Iterable[HostState]) -> tuple[Unexamined, ...]:
    """What cannot be seen of hosts, why, and what to do."""
    return tuple(gap for state in states for gap in _list_gaps(state))


def _list_gaps(state: HostState) -> Iterable[Unexamined]:
    for gap in gaps_of([state.asked]):
        heard = state.age is not None and state.age >= 1
        ago = f"; last heard {format_seconds(state.age)} ago" if heard and state.age else ""
        yield replace(gap, reason=gap.reason + ago)
    if state.lost:
        reason = f"{state.lost} records of black boxes were overwritten before they were read"
        yield Unexamined(f"host {state.name}", reason, "nothing: the others were examined")
    if state.refused:
        reason = f"{len(state.refused)} cannot be read: {state.refused[0]}"
        remedy = "record the job again, or use one version of mgpu-doctor on all hosts"
        yield Unexamined(f"black boxes of {state.name}", reason, remedy)
    if abs(state.corrected) >= CLOCK_IS_OFF:
        side = "ahead of" if state.corrected > 0 else "behind"
        error = "the delay of its first message"
        if state.clock_error is not None:
            error = format_seconds(state.clock_error)
        yield Unexamined(
            f"clock of {state.name}",
            f"it is {format_seconds(abs(state.corrected))} {side} this machine's; its times were "
            f"corrected by that, to within {error}",
            "synchronise the clocks of the hosts (chrony, ntpd)",
        )


def _list_unrecorded(fleet: Fleet, states: Iterable[HostState]) -> Iterable[Unexamined]:
    unrecorded = fleet.unrecorded
    busy = {host for host, _ in unrecorded} | {name for job in fleet.jobs for name in job.hosts}
    idle = [state for state in states if not {state.name, state.node} & busy]
    for host, facts in unrecorded[:MOST_LISTED]:
        name = f"{facts.launcher or 'job'} {facts.pid} on {host}"
        if facts.launcher is not None and not facts.ranks:
            yield _describe_waiting_launcher(name, idle)
            continue
        refused = f" ({facts.refused[0]})" if facts.refused else ""
        numbers = sorted(rank for rank, _ in facts.ranks if rank is not None)
        what = f"ranks {', '.join(map(str, numbers[:MOST_LISTED]))}" if numbers else "its ranks"
        yield Unexamined(name, f"{what} have no black boxes that can be read{refused}", _RECORD_IT)


def _describe_waiting_launcher(name: str, idle: Sequence[HostState]) -> Unexamined:
    """A launcher that has started no rank: those of all hosts first wait for each other. `idle`:
    hosts that run no job, or are not seen."""
    absent = ", ".join(state.name for state in idle[:MOST_LISTED])
    where = f", and no launcher is seen on {absent}" if absent else ""
    return Unexamined(
        name,
        f"it runs no rank: the launchers of a job wait for each other first{where}",
        f"start the job on {absent or 'all of its hosts'}, with the same address, port and number "
        "of hosts",
    )


def explain_nothing(states: Sequence[HostState], gaps: Sequence[Unexamined]) -> str:
    """Why there is no job to examine: one sentence for each reason."""
    texts = [f"{gap.probe}: {gap.reason}: {gap.remedy}." for gap in gaps[:MOST_LISTED]]
    seen = [state.name for state in states if state.link is Link.LIVE]
    if seen:
        names = ", ".join(seen[:MOST_LISTED])
        texts.insert(
            0,
            f"no training job with black boxes runs on {names}: start it on each host with "
            "`mgpu-doctor run -- COMMAND`.",
        )
    return " ".join(texts)
