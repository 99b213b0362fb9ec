"""Why a straggler is slow: how much of its excess each possible cause explains.

A cause is measured in seconds per step beyond the median of the straggler's peers, so what slows
all ranks equally explains nothing. Causes may overlap: an idle thread may wait for a lock or a
disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan

import numpy as np
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD, INPUT, TRANSFER

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, idle, surroundings_of
from mgpu_doctor.analysis.machines.rank_samples import RankSamples
from mgpu_doctor.analysis.statistics.medians import median_of_known
from mgpu_doctor.analysis.steps.host_bound import judge_bound
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.structure.job_structure import Structure
from mgpu_doctor.case.device_times import BoundBy, RunAhead

DECIDES = 0.5
"""Share of the excess that a cause must explain to be reported as the cause."""
MOST_PEERS = 64
"""Maximum number of peers compared, evenly spread; their median represents all."""
FILLED = 0.8
"""Share of its cores' time that a rank must use for the cores to be too few."""
WITH_DATA = (INPUT, TRANSFER, FORWARD, BACKWARD)
"""Phases that take longer with more data."""

BY_CHANCE = 1.1
"""Ratio up to which thread pools of healthy ranks may differ in their time waiting for a core. Many
threads wait at once, so small differences are long compared with a step (seen: below 1 %)."""
PAGING = 1000.0
"""Page faults per second beyond its peers' from which a rank keeps reallocating memory."""
LONGEST_FAULT = 10e-6
"""Maximum seconds per page fault; measured: 1.5 µs for 4 KiB (docs/performance.md)."""

ON_THE_HOST = ("gc", "host-contended", "host-throttled", "host-cores", "host-paging", "idle")
"""Causes that delay a device only where its host is not ahead."""
HOST = ("host-contended", "host-throttled", "host-cores", "host-paging")
"""Causes that lie on the rank's host."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One possible cause. `name` is one of
    data: it fetches more samples or tokens (counted in proportion);
    gc: Python's garbage collector;
    checkpoint, evaluation: the phases of these names;
    host-contended: its main thread waited for a core (of a thread pool: all threads, as far as the
    rank took longer without computing more);
    host-throttled: its control group had used up its CPU quota;
    host-cores: its threads may use fewer cores than its peers';
    host-paging: it returns memory to the kernel and takes it again in every step;
    idle: its main thread neither ran nor waited for a core: it slept or waited for a disk or a lock
    """

    name: str
    seconds: float | None
    """Seconds per step of the excess; None: not measured."""
    share: float | None
    """Share of the excess, 0 or more."""


def explain(
    joined: Joined,
    attribution: Attribution,
    straggler: Straggler,
    sampled: RankSamples,
    structure: Structure | None = None,
    *,
    counted: bool = True,
    ahead: RunAhead | None = None,
) -> tuple[Cause, ...]:
    """All possible causes, the one that explains most first, those not measured last. Peers are the
    ranks that do the same work. `counted`: a rank computes on the samples that it fetched. `ahead`:
    how far the straggler's host is ahead of its device."""
    view = _View(joined, attribution, straggler, sampled, structure or Structure())
    by_cause = {
        "data": view.data() if counted else None,
        "gc": view.beyond(view.collecting),
        "checkpoint": straggler.by_phase.get("checkpoint"),
        "evaluation": straggler.by_phase.get("evaluation"),
        "host-contended": view.waiting_for_core(),
        "host-throttled": view.beyond(view.throttled, view.demand()),
        "host-cores": view.fewer_cores(),
        "host-paging": view.paging(),
        "idle": view.beyond(view.idle),
    }
    if joined.is_device_timed and judge_bound(ahead, straggler.step_seconds) is not BoundBy.HOST:
        by_cause |= dict.fromkeys(ON_THE_HOST)
    causes = [
        Cause(
            name,
            None if seconds is None else max(0.0, seconds),
            None if seconds is None else max(0.0, seconds) / max(straggler.excess, 1e-12),
        )
        for name, seconds in by_cause.items()
    ]
    return tuple(sorted(causes, key=lambda cause: (cause.seconds is None, -(cause.seconds or 0.0))))


class _View:
    """The steps in which the straggler is slow, and the host of each rank during them."""

    def __init__(
        self,
        joined: Joined,
        attribution: Attribution,
        straggler: Straggler,
        sampled: RankSamples,
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
        self.around = {
            column: surroundings_of(
                sampled, joined.ranks[column], None if since is None else float(begins)
            )
            or UNSEEN
            for column in wanted
        }

    def beyond(self, measure: Callable[[int], float | None], factor: float = 1.0) -> float | None:
        """`measure` of the straggler minus `factor` times the median of its peers."""
        own, others = measure(self.column), self._usual(measure)
        return None if own is None or others is None else own - factor * others

    def demand(self) -> float:
        """Ratio of the straggler's CPU time to its peers', at least 1: a rank that computes more
        also waits longer for a core, which is no contention."""
        own, others = self.ran(self.column), self._usual(self.ran)
        return max(1.0, own / others) if own and others else 1.0

    def _usual(self, measure: Callable[[int], float | None]) -> float | None:
        return median_of_known(measure(peer) for peer in self.peers)

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
        """Seconds per step in which the quota stopped the main thread. The counter covers all
        threads of the group; for the main thread it is part of its time waiting for a core (Linux
        6.18)."""
        surroundings = self.around[column]
        if surroundings.throttled is None:
            return None
        most = surroundings.without_core if surroundings.without_core is not None else 1.0
        return min(surroundings.throttled, most) * self.step

    def contended(self, column: int) -> float | None:
        without_core = self.around[column].without_core
        if without_core is None:
            return None
        return without_core * self.step - (self.throttled(column) or 0.0)

    def waiting_for_core(self) -> float | None:
        """Seconds per step spent waiting for a core. Pool threads that wait at the same time delay
        a step only once, and at most by the time in which none of them computes."""
        if not self.around[self.column].pooled:
            return self.beyond(self.contended, self.demand())
        contended, unserved = self.beyond(self.contended, BY_CHANCE), self.beyond(self.unserved)
        if contended is None:
            return None
        return None if unserved is None else min(contended, unserved)

    def unserved(self, column: int) -> float | None:
        """Own work minus the CPU time of all threads: the time in which none of them ran."""
        own, running = self.own(column), self.around[column].running
        return None if own is None or running is None else own - running * self.step

    def ran(self, column: int) -> float | None:
        return _known(float(np.median(self._field("cpu_s", column))))

    def idle(self, column: int) -> float | None:
        return idle(self.own(column), self.ran(column), self.step, self.around[column])

    def data(self) -> float | None:
        """Seconds explained by its samples or tokens, whichever explain more."""
        values = []
        for name in ("tokens", "samples"):
            own = _amount(self._field(name, self.column))
            amounts = [_amount(self._field(name, peer)) for peer in self.peers]
            usual = median_of_known(amounts)
            if own and usual:
                phases = self.joined.phases[self.start :, self.column, :][:, list(WITH_DATA)]
                work = float(np.median(np.nan_to_num(phases), axis=0).sum())
                values.append(work * (1 - usual / own))
        return max(values, default=None)

    def fewer_cores(self) -> float | None:
        """Seconds saved if its threads ran as parallel as the peers', apart from the time in which
        its main thread had no core; 0 if it does not keep its cores busy."""
        surroundings, own = self.around[self.column], self.own(self.column)
        cores, usual = self.cores(self.column), self._usual(self.cores)
        parallel = self._usual(self._side_by_side)
        if cores is None or usual is None or not surroundings.computes_here:
            return None
        if cores >= usual:
            return 0.0
        if own is None or surroundings.running is None or parallel is None:
            return None
        served = own - (surroundings.queueing or 0.0) * self.step
        used = surroundings.running * self.step
        return served - used / parallel if used >= FILLED * cores * served else 0.0

    def paging(self) -> float | None:
        """Kernel time beyond its peers', if it has page faults that they do not have."""
        faults = self.beyond(lambda column: self.around[column].faulting)
        kernel = self.beyond(lambda column: self.around[column].in_kernel)
        if faults is None or kernel is None:
            return None
        return self.step * min(kernel, LONGEST_FAULT * faults) if faults >= PAGING else 0.0

    def cores(self, column: int) -> float | None:
        cores = self.around[column].cores
        return None if cores is None else len(cores)

    def _side_by_side(self, column: int) -> float | None:
        """CPU seconds per second of own work."""
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
