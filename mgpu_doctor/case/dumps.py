"""Dumps of flight recorders as a Case of their own: a job of which nothing else is at hand."""

from __future__ import annotations

from collections.abc import Sequence

from mgpu_doctor.case.blank import blank_job, blank_rank
from mgpu_doctor.case.flights import Flight
from mgpu_doctor.case.model import Case, State, Subject


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
        ranks=tuple(sorted(ranks, key=lambda one: (one.rank is None, one.rank or 0))),
        flights=tuple(flights),
    )
