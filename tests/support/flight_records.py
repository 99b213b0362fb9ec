"""Flight-recorder dumps for tests: those recorded from real jobs, and simulated ones."""

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
    `stood` seconds after the last call, and the time that torch needs for call stacks besides."""
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
    """Seconds that the rank takes before it calls."""

    @property
    def p2p(self) -> bool:
        return self.operation.startswith(("send ", "recv "))


Programs = Mapping[int, Sequence[Call]]


@dataclass
class _Made:
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
    """What the recorders hold where each rank waits for each of its collectives.

    One is over when all members have called it, whatever they have called, unless sizes or
    operations differ: then it never is. `dumped`: rank -> seconds at which it was dumped,
    `written`: how much later its file was.
    """
    made = _run(programs, groups)
    flights = []
    for rank in sorted(programs):
        held = [one for one in made[rank] if one.at <= dumped(rank)]
        flights.append(
            Flight(
                rank=rank,
                source=f"trace_{rank}",
                version="2.10",
                collectives=tuple(_entry(one, dumped(rank), frames, nccl) for one in held[-keep:]),
                groups={name: members for name, members in groups.items() if rank in members},
                at=T0 + dumped(rank) + written(rank),
                slack=SYMBOLISING if frames else 0.0,
                lost=max(0, len(held) - keep),
            )
        )
    return tuple(flights)


def _run(programs: Programs, groups: Mapping[str, tuple[int, ...]]) -> dict[int, list[_Made]]:
    clock = dict.fromkeys(programs, 0.0)
    counts: Counter[tuple[int, str]] = Counter()
    made: dict[int, list[_Made]] = {rank: [] for rank in programs}
    inside: dict[tuple[str, int], dict[int, _Made]] = {}
    free = set(programs)
    while free:
        rank = min(free, key=lambda one: (clock[one], one))
        free.discard(rank)
        if len(made[rank]) >= len(programs[rank]):
            continue
        call = programs[rank][len(made[rank])]
        clock[rank] += call.own
        circle, members = _circle(call, groups)
        counts[rank, circle] += 1
        one = _Made(call, counts[rank, circle], clock[rank])
        made[rank].append(one)
        arrived = inside.setdefault((circle, one.sequence), {})
        arrived[rank] = one
        if set(arrived) == set(members) and _fit(arrived):
            over = max(other.at for other in arrived.values()) + 0.001
            for member, other in arrived.items():
                other.over = over
                clock[member] = over
                free.add(member)
    return made


def _circle(call: Call, groups: Mapping[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    """Who must call it: the group, or the two ends of `send 0->1` and `recv 1<-0`."""
    if not call.p2p:
        return call.group, groups[call.group]
    first, second = sorted(int(number) for number in re.findall(r"\d+", call.operation))
    upward = f"send {first}" in call.operation or f"<-{first}" in call.operation
    return f"{first} {second} {upward}", (first, second)


def _fit(arrived: Mapping[int, _Made]) -> bool:
    kinds = {(one.call.p2p or one.call.operation, one.call.size) for one in arrived.values()}
    return len(kinds) == 1


def _entry(one: _Made, dumped: float, frames: bool, nccl: bool) -> Collective:
    over = one.over is not None and one.over <= dumped
    place = ("/home/me/train.py", one.call.line, "step")
    around = ("/home/me/train.py", 900, "main")
    started = "started" if nccl else "scheduled"
    return Collective(
        group=EVERYONE if one.call.p2p else one.call.group,
        sequence=None if one.call.p2p else one.sequence,
        operation=one.call.operation,
        inputs=((one.call.size,),),
        outputs=((one.call.size,),),
        dtypes=(one.call.dtype, one.call.dtype),
        state="completed" if over and nccl else started,
        retired=over,
        created=T0 + one.at,
        site=place if frames else None,
        frames=(place, around) if frames else (),
        timeout=1800.0,
        p2p=one.call.p2p,
        backend="nccl" if nccl else "gloo",
    )


def schedule(
    seed: int, ranks: int, steps: int
) -> tuple[dict[int, list[Call]], dict[str, tuple[int, ...]]]:
    """A healthy random loop: a step of some collectives, in sub-groups too, always in one order,
    some from places in the code that depend on the rank."""
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
