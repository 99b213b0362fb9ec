"""Flight-recorder dumps for tests: recorded from real jobs, and simulated."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mgpu_probes.outside.flight.flight_dumps import SYMBOLISING

from mgpu_doctor.case.flight_records import Collective, Flight, read_flights

RECORDED = Path(__file__).parents[1] / "recorded/flight"
T0 = 1_790_000_000.0
EVERYONE = "0"


@cache
def _read(kind: str) -> tuple[Flight, ...]:
    return read_flights(RECORDED / kind)


def recorded(kind: str, stood: float = 0.0) -> tuple[Flight, ...]:
    """Dumps of `tests/jobs/mismatches.py` (torch 2.13, gloo), as if their files had been written
    `stood` seconds (and the time that torch needs for call stacks) after the last call."""
    flights = _read(kind)
    last = max(collective.created or 0.0 for flight in flights for collective in flight.collectives)
    return tuple(replace(flight, at=last + flight.slack + stood) for flight in flights)


@dataclass(frozen=True)
class Call:
    group: str
    operation: str = "all_reduce"
    size: int = 8
    line: int = 1
    dtype: str = "Float"
    own: float = 0.01
    """Seconds that the rank works before it calls."""

    @property
    def p2p(self) -> bool:
        return self.operation.startswith(("send ", "recv "))


Programs = Mapping[int, Sequence[Call]]


@dataclass
class _MadeCall:
    call: Call
    sequence: int
    at: float
    over: float | None = None


def simulated(
    programs: Programs,
    groups: Mapping[str, tuple[int, ...]],
    dumped: Callable[[int], float],
    *,
    written: Callable[[int], float] = lambda _: 0.0,
    keep: int = 2000,
    frames: bool = True,
    nccl: bool = False,
) -> tuple[Flight, ...]:
    """The flight records of ranks that wait for each of their collectives.

    A collective ends when all members have called it; if their sizes or operations differ, never.
    `dumped`: rank -> seconds at which it was dumped; `written`: seconds until its file was written.
    """
    calls = _run(programs, groups)
    flights = []
    for rank in sorted(programs):
        dumped_calls = [made_call for made_call in calls[rank] if made_call.at <= dumped(rank)]
        flights.append(
            Flight(
                rank=rank,
                source=f"trace_{rank}",
                version="2.10",
                collectives=tuple(
                    _entry(made_call, dumped(rank), frames, nccl)
                    for made_call in dumped_calls[-keep:]
                ),
                groups={name: members for name, members in groups.items() if rank in members},
                at=T0 + dumped(rank) + written(rank),
                slack=SYMBOLISING if frames else 0.0,
                lost=max(0, len(dumped_calls) - keep),
            )
        )
    return tuple(flights)


def _run(programs: Programs, groups: Mapping[str, tuple[int, ...]]) -> dict[int, list[_MadeCall]]:
    clock = dict.fromkeys(programs, 0.0)
    counts: Counter[tuple[int, str]] = Counter()
    calls: dict[int, list[_MadeCall]] = {rank: [] for rank in programs}
    inside: dict[tuple[str, int], dict[int, _MadeCall]] = {}
    free = set(programs)
    while free:
        rank = min(free, key=lambda waiting: (clock[waiting], waiting))
        free.discard(rank)
        if len(calls[rank]) >= len(programs[rank]):
            continue
        call = programs[rank][len(calls[rank])]
        clock[rank] += call.own
        meeting, members = _meeting_of(call, groups)
        counts[rank, meeting] += 1
        made_call = _MadeCall(call, counts[rank, meeting], clock[rank])
        calls[rank].append(made_call)
        arrived = inside.setdefault((meeting, made_call.sequence), {})
        arrived[rank] = made_call
        if set(arrived) == set(members) and _match(arrived):
            over = max(other.at for other in arrived.values()) + 0.001
            for member, other in arrived.items():
                other.over = over
                clock[member] = over
                free.add(member)
    return calls


def _meeting_of(call: Call, groups: Mapping[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    """The ranks that must call it: the group, or the two ends of `send 0->1` and `recv 1<-0`."""
    if not call.p2p:
        return call.group, groups[call.group]
    first, second = sorted(int(number) for number in re.findall(r"\d+", call.operation))
    upward = f"send {first}" in call.operation or f"<-{first}" in call.operation
    return f"{first} {second} {upward}", (first, second)


def _match(arrived: Mapping[int, _MadeCall]) -> bool:
    kinds = {
        (made_call.call.p2p or made_call.call.operation, made_call.call.size)
        for made_call in arrived.values()
    }
    return len(kinds) == 1


def _entry(made_call: _MadeCall, dumped: float, frames: bool, nccl: bool) -> Collective:
    over = made_call.over is not None and made_call.over <= dumped
    place = ("/home/me/train.py", made_call.call.line, "step")
    around = ("/home/me/train.py", 900, "main")
    started = "started" if nccl else "scheduled"
    return Collective(
        group=EVERYONE if made_call.call.p2p else made_call.call.group,
        sequence=None if made_call.call.p2p else made_call.sequence,
        operation=made_call.call.operation,
        inputs=((made_call.call.size,),),
        outputs=((made_call.call.size,),),
        dtypes=(made_call.call.dtype, made_call.call.dtype),
        state="completed" if over and nccl else started,
        retired=over,
        created=T0 + made_call.at,
        site=place if frames else None,
        frames=(place, around) if frames else (),
        timeout=1800.0,
        p2p=made_call.call.p2p,
        backend="nccl" if nccl else "gloo",
    )


def schedule(
    seed: int, ranks: int, steps: int
) -> tuple[dict[int, list[Call]], dict[str, tuple[int, ...]]]:
    """A healthy random loop: each step calls the same collectives in the same order, some in
    sub-groups, some from lines that depend on the rank."""
    chance = random.Random(seed)
    everyone = tuple(range(ranks))
    groups = {"0": everyone}
    for number in range(1, chance.randint(1, 4)):
        groups[str(number)] = tuple(sorted(chance.sample(everyone, chance.randint(2, ranks))))
    kinds = ("all_reduce", "all_gather", "broadcast", "barrier", "_all_gather_base")
    step = [
        (
            chance.choice([*groups, "0", "0"]),
            chance.choice(kinds),
            chance.choice((1, 8, 64)),
            10 * number,
            chance.random() < 0.2,
        )
        for number in range(chance.randint(2, 9))
    ]
    programs: dict[int, list[Call]] = {rank: [] for rank in everyone}
    for _ in range(steps):
        for group, operation, size, line, by_rank in step:
            for rank in groups[group]:
                own = chance.choice((0.001, 0.01, 0.05))
                at = line + (1 if by_rank and rank == 0 else 0)
                programs[rank].append(Call(group, operation, size, at, own=own))
    return programs, groups
