"""A Case from flight-recorder dumps, memory snapshots or profiler traces alone.

Nothing else is known about such a job, such as how it ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mgpu_probes.outside.traces.trace_columns import NotATraceError
from mgpu_probes.outside.untrusted_files import within_budget

from mgpu_doctor.case.allocator_snapshots import read_snapshots
from mgpu_doctor.case.flight_records import Flight
from mgpu_doctor.case.model import Case, State, Subject, Unexamined
from mgpu_doctor.case.placeholders import blank_job, blank_rank
from mgpu_doctor.case.profiler_traces import MOST_FILES, Trace, UnreadTrace, read_traces


def case_of_flights(flights: Sequence[Flight], reference: str) -> Case:
    """`reference`: what the user named. How the job ended is not known."""
    members = {rank for flight in flights for group in flight.groups.values() for rank in group}
    known = {flight.rank for flight in flights if flight.rank is not None}
    world = len(members | known) or None
    times = [flight.at for flight in flights if flight.at is not None]
    ranks = [
        blank_rank(
            rank=flight.rank,
            world_size=world,
            host=flight.host or "",
            pid=flight.pid,
            state=State.WAITING,
        )
        for flight in flights
    ]
    return Case(
        subject=Subject("trace", reference),
        job=blank_job(
            reference,
            world_size=world,
            hosts=tuple(sorted({flight.host for flight in flights if flight.host})),
        ),
        observed=max(times, default=0.0),
        ranks=tuple(sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0))),
        flights=tuple(flights),
    )


def case_of_snapshots(paths: Sequence[Path]) -> Case:
    """A case from memory snapshots alone. Raises NotASnapshotError."""
    name = str(paths[0])
    with within_budget():
        snapshots = tuple(snapshot for path in paths for snapshot in read_snapshots(path))
    return Case(
        subject=Subject("trace", name),
        job=blank_job(name),
        observed=0.0,
        ranks=(),
        snapshots=snapshots,
    )


def case_of_traces(paths: Sequence[Path]) -> Case:
    """A case from trace files, or folders of them, alone. Raises NotATraceError."""
    name = str(paths[0])
    with within_budget():
        read = list(read_traces(paths))
    traces = _one_a_rank([trace for trace in read if isinstance(trace, Trace)])
    unread = [
        Unexamined(f"trace {trace.source}", trace.reason, "export it again")
        for trace in read
        if isinstance(trace, UnreadTrace)
    ]
    if not traces:
        reason = unread[0].reason if unread else "no file"
        raise NotATraceError(f"{name} contains no trace: {reason}")
    worlds = [trace.world_size for trace in traces if trace.world_size is not None]
    world = max(worlds, default=len(traces))
    return Case(
        subject=Subject("trace", name),
        job=blank_job(
            name,
            framework=traces[0].framework,
            world_size=world,
            hosts=tuple(sorted({trace.host for trace in traces if trace.host})),
        ),
        observed=0.0,
        ranks=tuple(
            blank_rank(
                rank=trace.rank,
                world_size=world,
                host=trace.host or "",
                device=None if trace.on_device else "cpu",
            )
            for trace in traces
        ),
        traces=tuple(traces),
        unexamined=(*unread, *_gaps(traces, world), *_left_out(read, traces)),
    )


def _one_a_rank(traces: Sequence[Trace]) -> list[Trace]:
    """The newest trace of each rank; without rank numbers each trace is a separate rank."""
    newest: dict[object, Trace] = {}
    for trace in traces:
        key = trace.rank if trace.rank is not None else trace.source
        other = newest.get(key)
        if other is None or _begin(trace) > _begin(other):
            newest[key] = trace
    return sorted(
        newest.values(), key=lambda trace: (trace.rank is None, trace.rank or 0, trace.source)
    )


def _begin(trace: Trace) -> int:
    return int(trace.events["start"][0]) if len(trace.events) else -1


def _left_out(read: Sequence[object], kept: Sequence[Trace]) -> Iterator[Unexamined]:
    several = sum(isinstance(trace, Trace) for trace in read) - len(kept)
    if several:
        yield Unexamined(
            "older traces",
            f"{several} of the files belong to ranks with a newer one, which was examined",
            "name one file per rank to examine others",
        )


def _gaps(traces: Sequence[Trace], world: int) -> Iterator[Unexamined]:
    for trace in traces:
        if trace.cut or trace.damaged:
            lost = f"{trace.damaged} of its events could not be understood" if trace.damaged else ""
            why = "; ".join(part for part in (trace.cut, lost) if part)
            yield Unexamined(
                f"rest of {trace.source}", why, "export the trace again, or copy it again"
            )
    known = {trace.rank for trace in traces if trace.rank is not None}
    missing = sorted(set(range(min(world, MOST_FILES))) - known)
    if known and missing:
        listed = ", ".join(map(str, missing[:8]))
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        yield Unexamined(
            "missing ranks",
            f"no trace of rank {listed}{more} of {world}",
            "let every rank export its trace (torch.profiler.tensorboard_trace_handler does), and "
            "name the folder",
        )
