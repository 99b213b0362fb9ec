"""Why a straggler is slow: how much of its excess each thing around it explains.

Every cause is the straggler's seconds a step beyond the median of its peers', so what slows all
ranks alike explains nothing. Causes may overlap (what is idle may be idle for a lock or a disk).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD, INPUT, TRANSFER

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, Surroundings, idle
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.structure.job_structure import Structure

DECIDES = 0.5
"""Share of the excess that a cause must explain to be given as the cause."""
MOST_PEERS = 64
"""Evenly chosen; their median stands for all."""
FILLED = 0.8
"""Share of its cores' time that a rank must use for these to be too few."""
WITH_DATA = (INPUT, TRANSFER, FORWARD, BACKWARD)
"""Phases that take longer with more data."""

BY_CHANCE = 1.1
"""How much longer the threads of one healthy rank's pool may stand ready than another's: many wait
at once, so little is large beside a step (seen: less than a hundredth)."""
PAGING = 1000.0
"""Page faults a second beyond its peers' from which a rank's memory comes and goes."""
LONGEST_FAULT = 10e-6
"""Seconds; measured 1.5 µs for a page of 4 KiB (docs/performance.md)."""

HOST = ("host-contended", "host-throttled", "host-cores", "host-paging")
"""Causes that lie on the rank's host."""


@dataclass(frozen=True, slots=True)
class Cause:
    """`name`: one of
    data: it fetches more samples or tokens (in proportion);
    gc: Python's garbage collector;
    checkpoint, evaluation: the phases of these names;
    host-contended: its main thread stood ready and others had its cores; of a pool of threads, all
    together, as far as it took longer without computing more;
    host-throttled: the same because its control group had used up its quota;
    host-cores: its threads have fewer cores than its peers';
    host-paging: it gives memory back to the kernel and takes it anew in every step;
    idle: its main thread neither ran nor stood ready: it slept or waited for a disk, a lock, ….
    """

    name: str
    seconds: float | None
    """Of the excess, a step; None: not measured."""
    share: float | None
    """The same as a share of the excess."""


def explain(
    joined: Joined,
    attribution: Attribution,
    straggler: Straggler,
    around: Mapping[int, Surroundings],
    structure: Structure | None = None,
    *,
    counted: bool = True,
) -> tuple[Cause, ...]:
    """The causes that were looked at, the one that explains most first, those not measured last.
    Peers are the ranks that do the same work. `counted`: a rank computes on what it fetched."""
    view = _View(joined, attribution, straggler, around, structure or Structure())
    found = {
        "data": view.data() if counted else None,
        "gc": view.beyond(view.collecting),
        "checkpoint": straggler.by_phase.get("checkpoint"),
        "evaluation": straggler.by_phase.get("evaluation"),
        "host-contended": view.held_up(),
        "host-throttled": view.beyond(view.throttled, view.demand()),
        "host-cores": view.fewer_cores(),
        "host-paging": view.paging(),
        "idle": view.beyond(view.idle),
    }
    causes = [
        Cause(
            name,
            None if seconds is None else max(0.0, seconds),
            None if seconds is None else max(0.0, seconds) / max(straggler.excess, 1e-12),
        )
        for name, seconds in found.items()
    ]
    return tuple(sorted(causes, key=lambda one: (one.seconds is None, -(one.seconds or 0.0))))


class _View:
    """The steps since the straggler is one, and what surrounds each rank in them."""

    def __init__(
        self,
        joined: Joined,
        attribution: Attribution,
        straggler: Straggler,
        around: Mapping[int, Surroundings],
        structure: Structure,
    ) -> None:
        self.joined, self.attribution = joined, attribution
        self.column = joined.ranks.index(straggler.rank)
        since = straggler.since
        place = 0 if since is None else int(np.searchsorted(joined.steps, since))
        self.start = min(place, len(joined.steps) - 1)
        self.peers = _peers(joined, straggler.rank, structure)
        self.step = float(np.median(joined.wall[self.start :, self.column]))
        begins = self._field("end_ns", self.column)[0] * 1e-9 + joined.offsets[self.column]
        wanted = (self.column, *self.peers)
        known = {column: around.get(joined.ranks[column], UNSEEN) for column in wanted}
        late = {column: one.since(float(begins)) for column, one in known.items()}
        self.around = known if since is None else late

    def beyond(self, measure: Callable[[int], float | None], factor: float = 1.0) -> float | None:
        """What `measure` gives for the straggler beyond `factor` times the median of what it gives
        for its peers."""
        own, others = measure(self.column), self._usual(measure)
        return None if own is None or others is None else own - factor * others

    def demand(self) -> float:
        """How many times as long as its peers' the straggler's main thread was on a core, where it
        was longer: whoever computes more stands ready for longer, too, and is itself the cause."""
        own, others = self.ran(self.column), self._usual(self.ran)
        return max(1.0, own / others) if own and others else 1.0

    def _usual(self, measure: Callable[[int], float | None]) -> float | None:
        known = [value for peer in self.peers if (value := measure(peer)) is not None]
        return float(np.median(known)) if known else None

    def _field(self, name: str, column: int) -> Floats:
        values: Floats = self.joined.cells.column(name, column)[self.start :]
        return values

    def collecting(self, column: int) -> float | None:
        return _known(float(np.mean(self._field("gc_s", column))))

    def own(self, column: int) -> float | None:
        own = self.attribution.own[self.start :, column]
        known = own[~np.isnan(own)]
        return float(np.median(known)) if len(known) else None

    def throttled(self, column: int) -> float | None:
        """The quota holds up all threads of a group; of the main thread, it is a part of the time
        in which that stands ready (so Linux 6.18 counts it, and those before)."""
        one = self.around[column]
        if one.throttled is None:
            return None
        most = one.without_core if one.without_core is not None else 1.0
        return min(one.throttled, most) * self.step

    def contended(self, column: int) -> float | None:
        without_core = self.around[column].without_core
        if without_core is None:
            return None
        return without_core * self.step - (self.throttled(column) or 0.0)

    def held_up(self) -> float | None:
        """By others on its cores. Threads of a pool that stand ready at the same time hold a step
        up only once, and no longer than it takes beyond what they compute."""
        if not self.around[self.column].pooled:
            return self.beyond(self.contended, self.demand())
        found, unserved = self.beyond(self.contended, BY_CHANCE), self.beyond(self.unserved)
        if found is None:
            return None
        return None if unserved is None else min(found, unserved)

    def unserved(self, column: int) -> float | None:
        """Own work that lasts while none of its threads runs, if they run one at a time."""
        own, running = self.own(column), self.around[column].running
        return None if own is None or running is None else own - running * self.step

    def ran(self, column: int) -> float | None:
        return _known(float(np.median(self._field("cpu_s", column))))

    def idle(self, column: int) -> float | None:
        return idle(self.own(column), self.ran(column), self.step, self.around[column])

    def data(self) -> float | None:
        """Of its samples or tokens, what explains more."""
        found = []
        for name in ("tokens", "samples"):
            own = _amount(self._field(name, self.column))
            amounts = [_amount(self._field(name, peer)) for peer in self.peers]
            known = [amount for amount in amounts if amount is not None]
            usual = float(np.median(known)) if known else None
            if own and usual:
                phases = self.joined.phases[self.start :, self.column, :][:, list(WITH_DATA)]
                work = float(np.median(np.nan_to_num(phases), axis=0).sum())
                found.append(work * (1 - usual / own))
        return max(found, default=None)

    def fewer_cores(self) -> float | None:
        """What its work would take less if its threads ran side by side as the peers' do, beside
        the time in which its main thread had no core at all; nothing if its cores are not busy
        with it."""
        one, own = self.around[self.column], self.own(self.column)
        cores, usual = self.cores(self.column), self._usual(self.cores)
        parallel = self._usual(self._side_by_side)
        if cores is None or usual is None or not one.computes_here:
            return None
        if cores >= usual:
            return 0.0
        if own is None or one.running is None or parallel is None:
            return None
        served = own - (one.queueing or 0.0) * self.step
        used = one.running * self.step
        return served - used / parallel if used >= FILLED * cores * served else 0.0

    def paging(self) -> float | None:
        """Its time in the kernel beyond its peers', where it takes pages there that they do not."""
        faults = self.beyond(lambda column: self.around[column].faulting)
        kernel = self.beyond(lambda column: self.around[column].in_kernel)
        if faults is None or kernel is None:
            return None
        return self.step * min(kernel, LONGEST_FAULT * faults) if faults >= PAGING else 0.0

    def cores(self, column: int) -> float | None:
        cores = self.around[column].cores
        return None if cores is None else len(cores)

    def _side_by_side(self, column: int) -> float | None:
        """CPU seconds a second of own work."""
        running, own = self.around[column].running, self.own(column)
        return running * self.step / own if running and own else None


def _peers(joined: Joined, rank: int, structure: Structure) -> list[int]:
    role = structure.roles.get(rank)
    alike = [
        column
        for column, other in enumerate(joined.ranks)
        if other != rank and structure.roles.get(other) == role
    ]
    spread = np.linspace(0, len(alike) - 1, min(MOST_PEERS, len(alike))).astype(int)
    return [alike[at] for at in spread]


def _amount(values: Floats) -> float | None:
    known = values[values > 0]
    return float(np.mean(known)) if len(known) > len(values) / 2 else None


def _known(value: float) -> float | None:
    return None if isnan(value) else value
