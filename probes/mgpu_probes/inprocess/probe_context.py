"""What the hooks of a process share: who it is, its box, and the steps that go into it.

`probe_start` makes the one of this process; the adapters of the frameworks hand it to their hooks.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from math import nan
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from . import BOXES_VARIABLE, device_progress, layout
from .blackbox import Writer
from .device_clock import DeviceStep, DeviceTimer
from .failed_waits import FailedWait
from .memory_samples import Memory
from .phase_ledger import NOWHERE, PHASE_WORD, SINCE_WORD, Ledger
from .step_engine import Steps
from .step_fast_path import StepFastPath
from .step_marks import Data, Mark
from .step_segments import UPDATE, Facts, Step
from .training_objects import TrainingObjects
from .wrap import around

if TYPE_CHECKING:
    from .device_clock import DeviceClock

_GC_EVENT_NS = 1_000_000
"""A garbage collection of 1 ms is an event of its own; shorter ones only count in their step."""
_EARLY_METADATA = (2, 10, 50)
"""Steps after which the process metadata is renewed: loaders, optimizers, shapes are known then."""
_METADATA_LASTS_NS = 30_000_000_000
"""After that it is renewed with a step: it holds counters too."""
_FIRST_LOOK, _LOOKS_APART = 5, 500
"""`on_step` is called at this step, at twice, four times, … as many, and then so many apart. A
sample of the weights takes 0.7 ms (64 parameters, cold caches): 1.4 µs per step then."""
_PROBE_COST_WORD = layout.PROBE_COST // 8
_SECONDS = (1e-9).__mul__
_COLD = 6
"""A hook between the operations of a step finds the caches cold, and costs this many times what it
does in a row (benchmarks/probe_cost.py against `_calibrate`, torch 2.13, CPU: a step's record is in
it). A machine with other caches differs; what the hooks displace from them is left out."""
_CALIBRATIONS, _CALIBRATION_ROUNDS = 5, 20
"""The quickest counts: in the midst of the others the machine may have run something else."""


def number(*names: str, default: int = -1) -> int:
    """The first of these environment variables that holds a whole number >= 0."""
    for name in names:
        value = os.environ.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return default


class FrameworkAdapter(Protocol):
    """How one framework is watched."""

    name: str
    modules: Collection[str]
    """Modules of the framework; `attach` is called as each is imported."""

    def attach(self, context: ProbeContext, name: str, module: ModuleType) -> None:
        """Patches the module `name`; its hooks set their marks on `context`."""

    def describe(self, context: ProbeContext) -> dict[str, Any]:
        """Adds to the process metadata, each time that it is written. Starts no device."""


class ProbeContext:
    """One a process. Marks are taken from the thread that trains, and no other."""

    def __init__(self) -> None:
        self.on = False
        self.clock = time.monotonic_ns
        self.box: Writer | None = None
        self.describe: Callable[[], dict[str, Any]] = dict
        """The process metadata."""
        self.adapters: list[FrameworkAdapter] = []
        """Of the frameworks that were imported, by name."""
        self.objects = TrainingObjects()
        self.record_exception: Callable[[BaseException, TracebackType | None], None] = _ignore
        """Writes an exception down as the reason for which this rank ends."""
        self.metadata_parts: list[Callable[[], dict[str, Any]]] = []
        """What adapters add to the process metadata each time that it is written; a nested
        dictionary is added to one that is there. Each part bounds its size."""
        self.sends: Callable[[], bool] = bool
        """Whether this rank sends to others point to point."""
        self.on_open: list[Callable[[], None]] = []
        self.on_step: list[Callable[[], None]] = []
        """Called after a recorded step that is due for a closer look."""
        self.on_end: list[Callable[[], None]] = []
        """Called when a process that reports no failure ends."""
        self.every_step: Callable[[], None] | None = None
        """Called after every recorded step, while a trace is asked for."""
        self.is_data_worker: Callable[[], bool] = bool
        self.sequence: Callable[[], int] = int
        self.device_clock = "host"
        """`cpu`: the host does the work that it times. `device`: a device does, whose own clock
        times some of the steps. `host`: a device does and is not timed, or nobody knows."""
        self.device_timer: DeviceTimer | None = None
        """Of the device that this process computes on; None: there is none, or it is not timed."""
        self.why_untimed: str | None = None
        """Why the device is not timed; None: it is, there is none, or it was not tried."""
        self.runs_backward: Callable[[], bool] = bool
        """Whether the calling thread is the framework's own that runs the backward pass."""
        self.accelerator: str | None = None
        """The device that this process was first seen to compute on, as `cuda:0`; None: none."""
        self.thread_clock: Callable[[], Any] = time.thread_time_ns
        """CPU time of the thread that trains, ns; NaN where its work is done by others."""
        self._retired: list[DeviceTimer | None] = []
        """Timers that are not used any more, with their events."""
        self.rank = self.world_size = -1
        self.memory = Memory()
        self._start()

    def _start(self) -> None:
        self.owner = threading.get_ident()
        self.gc_ns = 0
        self._gc_since = 0
        self.recorded = 0
        """Steps so far."""
        self.spent_ns = 0
        """What the probe has cost beside its marks."""
        self.trained = False
        self.in_backward = False
        self._failed_wait: FailedWait | None = None
        self.batch_ready = False
        self.ledger = Ledger(self.clock())
        self.fast_path = StepFastPath(self.ledger, self.record_step, self._facts)
        self.mark: Callable[..., None] = self.fast_path.mark
        """Takes a mark, its moment (monotonic ns) and its data: the one way for every mark of a
        phase, so that a device event can be recorded beside the host's moment here."""
        self.memory.start()
        self._mark_cost = 0
        self._metadata_due = 0
        self._look_due = _FIRST_LOOK

    # --- for adapters, once -----------------------------------------------------------------

    def add_adapter(self, adapter: FrameworkAdapter) -> None:
        """Has the adapter describe its framework in the process metadata from now on."""
        if adapter not in self.adapters:
            self.adapters.append(adapter)
            self.adapters.sort(key=lambda known: known.name)

    def add_metadata(self, part: Callable[[], dict[str, Any]]) -> None:
        """Adds the result of `part` to the process metadata from now on."""
        if part not in self.metadata_parts:
            self.metadata_parts.append(part)

    def add_reset(self, reset: Callable[[], None]) -> None:
        """Calls `reset` when a box is opened: a forked child forgets what its parent saw."""
        if reset not in self.on_open:
            self.on_open.append(reset)

    # --- the hooks' side --------------------------------------------------------------------

    @property
    def steps(self) -> Steps:
        """The engine, for what is no mark."""
        return self.fast_path.engine()

    def mine(self) -> bool:
        """Whether marks of the calling thread count: it trains, or it runs the backward pass that
        the one which trains waits for."""
        if threading.get_ident() == self.owner:
            return self.on
        return self.on and self.in_backward and self.runs_backward()

    def adopt(self) -> bool:
        """The calling thread trains: its marks count, unless another's has trained before."""
        if not self.on:
            return False
        thread = threading.get_ident()
        if thread != self.owner:
            if self.trained:
                return False
            self.owner = thread
        return True

    def computes_on(self, device: str | None) -> None:
        """A backward pass begins on this device; None: on the CPU. Whoever has used an accelerator
        once is not timed by the host's clock any more, whatever it does on the CPU besides."""
        if device is not None and self.accelerator is None:
            self.accelerator = device
        if self.device_timer is None:
            self.device_clock = "cpu" if self.accelerator is None else "host"

    # --- the device's own clock -----------------------------------------------------------------

    def time_on_device(self, clock: DeviceClock, begins_backward: Collection[Mark]) -> None:
        """Has some of the coming steps timed by the device, too."""
        self.device_timer = DeviceTimer(
            clock,
            self.fast_path,
            self._record_device_step,
            begins_backward,
            opens_turn={Steps.update_begins},
        )
        self.device_clock = "device"
        device_progress.start(self, self.device_timer)

    def mark_device(self, mark: Mark) -> None:
        """A mark that means something on the device alone: the host goes on at once."""
        timer = self.device_timer
        if timer is not None and timer.is_timing:
            try:
                timer.mark(mark)
            except RuntimeError as error:
                self.stop_timing(str(error))

    def stop_timing(self, reason: str) -> None:
        """The device is not timed any more, or, where it has not been, will not be."""
        self._retired.append(self.device_timer)
        self.device_timer, self.why_untimed = None, self.why_untimed or reason[:200]
        self.device_clock = "cpu" if self.accelerator is None else "host"
        self.mark = self.fast_path.mark

    def _mark_on_device(self, mark: Mark, now: int, data: Data = ()) -> None:
        """In place of the fast path's `mark` while a turn is timed."""
        timer = self.device_timer
        if timer is not None:
            try:
                timer.mark(mark, data, now)
            except RuntimeError as error:  # the device has failed; the training will hear of it
                self.stop_timing(str(error))
        self.fast_path.mark(mark, now, data)

    def _time_next_turn(self, timer: DeviceTimer, record: int, step: Step) -> None:
        """The step has become `record`; the next turn is timed if it is its turn on all ranks.

        The turn's key is the collective sequence number, which all ranks of a job share; without
        collectives it is the number of the step."""
        key = step.after[0] if step.after[0] != step.before[0] else record
        try:
            timer.turn_ended(record, step.end - step.start, key, step.end)
        except RuntimeError as error:
            self.stop_timing(str(error))
            return
        self.mark = self._mark_on_device if timer.is_timing else self.fast_path.mark

    def _record_device_step(self, step: DeviceStep) -> None:
        if self.box is not None:
            self.box.device_step(step, knows_wait=self.objects.unseen_waits is None)

    def was_interrupted(self, error: BaseException) -> None:
        """A call that is watched raises `error`. If this rank waits for others in it, the wait is
        remembered: nothing shows it any more when the process ends."""
        words, box = self.ledger.words, self.box
        if box is None or words[PHASE_WORD] & 0xFF != layout.WAIT or not self.mine():
            return
        self._failed_wait = FailedWait.ended_by(
            error,
            since=words[SINCE_WORD],
            until=self.clock(),
            site=box.text_of_site(words[layout.NOW_SITE // 8]),
            sequence=self.sequence(),
            step=self.recorded,
        )

    def find_failed_wait(self, error: BaseException | None = None) -> FailedWait | None:
        """The wait for other ranks that ended because of `error` or of what caused it; without
        `error`: the last wait. None: there is none, or training went on after it."""
        wait = self._failed_wait
        if wait is None or wait.step != self.recorded:
            return None
        ended = wait.sequence == self.sequence() if error is None else wait.caused(error)
        return wait if ended else None

    def fail(self, trouble: Exception) -> None:
        """Something of the probe's own went wrong: it stops, and says so in the box."""
        self.on = False
        if self.box is not None:
            self.box.switch_off(f"{type(trouble).__name__}: {trouble}")
        self.ledger.words = NOWHERE
        if self.every_step is not None:
            self.every_step()

    # --- joining ----------------------------------------------------------------------------

    def join(self, rank: int = -1, world_size: int = -1) -> None:
        """This process is a rank, or asks to be one."""
        if not self.on or self.is_data_worker():
            return
        self.identify(rank, world_size)
        if self.open():
            self.state(layout.JOINING)

    def joined(self, rank: int, world_size: int) -> None:
        """The process group stands."""
        self.identify(rank, world_size)
        self.state(layout.RUNNING)
        self.event(layout.JOINED, self.clock(), value=float(world_size))
        self.renew_metadata()

    def identify(self, rank: int, world_size: int) -> None:
        """Sets who this is; what is not given is taken from the environment."""
        self.rank = rank if rank >= 0 else number("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
        world = number("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
        self.world_size = world_size if world_size > 0 else world
        if self.box is not None:
            self.box.identify(self.rank, self._local_rank(), self.world_size)

    def _local_rank(self) -> int:
        return number("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")

    def open(self) -> bool:
        """Opens the box if it is not. False, and no second try, where that cannot be."""
        if self.box is not None:
            return True
        try:
            self.box = Writer.open(
                os.environ[BOXES_VARIABLE],
                rank=self.rank,
                local_rank=self._local_rank(),
                world_size=self.world_size,
                attempt=number("TORCHELASTIC_RESTART_COUNT", default=0),
            )
        except (OSError, KeyError):
            self.on = False  # a full disk or a lost folder: nothing to write to, not even why
            return False
        self.ledger.words = self.box.words  # a new one after a fork, as the box itself
        gc.callbacks.append(self._on_gc)
        for opened in self.on_open:
            opened()
        self._calibrate()
        self.renew_metadata()
        return True

    def state(self, value: int) -> None:
        """Sets the box's state, where there is a box."""
        if self.box is not None:
            self.box.state(value)

    def event(
        self, kind: int, start: int, duration: int = 0, value: float = nan, text: str = ""
    ) -> None:
        """Records an event, where there is a box."""
        if self.box is not None:
            self.box.event(kind, start, self.recorded, duration, value, text)

    def renew_metadata(self) -> None:
        """Writes the process metadata (anew)."""
        if self.box is not None:
            self._metadata_due = self.clock() + _METADATA_LASTS_NS
            self.box.birth(self.describe())

    # --- steps ------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        return (self.sequence(), self.thread_clock(), self.gc_ns, 0)

    def record_step(self, step: Step) -> None:
        """Writes a step into the box, which is opened for the first one."""
        if self.box is None:
            if self.is_data_worker():
                self.on = False
                return
            self._train_alone()
            if self.box is None:
                return
        number = self.recorded
        start, end, phases, level, skipped, samples, tokens, loss, backwards, calls, was, now = step
        seconds = [*map(_SECONDS, phases)]
        seconds[layout.COMMUNICATION] = nan
        if self.device_clock != "cpu" or self.objects.unseen_waits is not None:
            seconds[layout.TRANSFER] = seconds[layout.WAIT] = nan  # the host does not see them
        flags = 0 if number else layout.WARM_UP
        if skipped:
            flags |= layout.SKIPPED
        if level < UPDATE:
            flags |= layout.NO_OPTIMIZER
        if self.batch_ready:
            flags |= layout.BATCH_READY
        on_device, on_host = self.memory.at(end, number, samples, tokens)
        self.box.step(
            end,
            end - start,
            number,
            flags,
            seconds,
            samples=samples,
            tokens=tokens,
            loss=loss,
            gc_s=(now[2] - was[2]) * 1e-9,
            group_seq=now[0],
            collectives=calls,
            micro_batches=backwards,
            cpu_s=(now[1] - was[1]) * 1e-9,
            device_bytes=on_device,
            resident_bytes=on_host,
        )
        self.recorded = number = number + 1
        ledger = self.ledger
        ledger.step_bits = number << 8
        ledger.words[_PROBE_COST_WORD] = self._cost()
        if number >= self._look_due:
            self._look_due += min(self._look_due, _LOOKS_APART)
            for look in self.on_step:
                look()
        if end >= self._metadata_due or self.recorded in _EARLY_METADATA:
            self.renew_metadata()
        if self.every_step is not None:
            self.every_step()
        if self.device_timer is not None:
            self._time_next_turn(self.device_timer, self.box.written, step)

    def _cost(self) -> int:
        spent = self.ledger.marks * self._mark_cost + self.spent_ns + self.memory.spent_ns
        return spent if self.device_timer is None else spent + self.device_timer.spent_ns

    def _train_alone(self) -> None:
        """The first step of a process that never joined a group: a world of one, or a rank."""
        self.identify(-1, -1)
        if self.rank < 0:
            self.rank, self.world_size = 0, 1
        if self.open():
            self.state(layout.RUNNING)

    def _calibrate(self) -> None:
        """Times a hook with its two marks, for the word that holds what the probe has cost."""
        trial = StepFastPath(Ledger(self.clock()), lambda _: None, self._facts)

        def begins(*_: Any) -> bool:
            trial.mark(Steps.clipping_begins, self.clock())
            return True

        def ends(*_: Any) -> None:
            trial.mark(Steps.clipping_ends, self.clock())

        hook = around(bool, begins, ends, self.fail)
        spent = []
        for _ in range(_CALIBRATIONS):
            began = time.perf_counter_ns()
            for _ in range(_CALIBRATION_ROUNDS):
                hook()
            spent.append(time.perf_counter_ns() - began)
        self._mark_cost = min(spent) * _COLD // (2 * _CALIBRATION_ROUNDS)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if not self.on:
            return
        if phase == "start":
            self._gc_since = self.clock()
        elif self._gc_since:
            took = self.clock() - self._gc_since
            self.gc_ns += took
            if took >= _GC_EVENT_NS:
                generation = info.get("generation", -1)
                self.event(layout.GC, self._gc_since, took, float(generation))
            self._gc_since = 0

    # --- leaving ----------------------------------------------------------------------------

    def leave(self, code: int | None) -> None:
        """The process ends; the last whole step is recorded."""
        if self.on:
            self.on = False
            self.steps.leave()
            if not code:
                for look in self.on_end:
                    look()
            if self.device_timer is not None:
                with suppress(RuntimeError):  # the device has failed
                    self.device_timer.finish()
            if self.box is not None:
                self.renew_metadata()
                self.ledger.words[_PROBE_COST_WORD] = self._cost()
                self.box.leave(code)

    def after_fork(self) -> None:
        """In a forked child: the box is the parent's, the rest starts anew. The parent's events are
        kept: a child that frees one without the parent's device may end of it."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        self._retired.append(self.device_timer)
        self.box = self.every_step = self.device_timer = None
        self.rank = self.world_size = -1
        self._start()


def _ignore(_: BaseException, __: TracebackType | None) -> None:
    """Until the exits of this process are watched."""
