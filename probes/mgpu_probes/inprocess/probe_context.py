"""The state that all hooks of a process share: its rank, its black box, and the recorded steps.

`probe_start` makes the context of this process, and the adapters hand it to their hooks. The hooks
set marks; the step engine makes steps of them; the context writes each step into the box. It must
never block the training or raise into it: on trouble of its own it switches the probe off (`fail`).
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
from .step_fast_path import StepFastPath, mark_cost
from .step_marks import Data, Mark
from .step_sampling import SETTLED, StepSampler
from .step_segments import UPDATE, Facts, Step
from .training_objects import TrainingObjects

if TYPE_CHECKING:
    from .device_clock import DeviceClock
    from .step_sampling import HookSwitch

_GC_EVENT_NS = 1_000_000
"""A garbage collection of 1 ms is an event of its own; shorter ones only count in their step."""
_EARLY_METADATA = (2, 10, 50)
"""Steps after which the process metadata is rewritten: loaders and optimizers are known then."""
_METADATA_LASTS_NS = 30_000_000_000
"""After that it is rewritten at the end of a step, because it holds counters too."""
_FIRST_CALLBACK_STEP, _MOST_STEPS_BETWEEN_CALLBACKS = 5, 500
"""`on_step` is called at steps 5, 10, 20, … 640, then every 500 steps. A sample of the weights
takes 0.7 ms (64 parameters, cold caches): 1.4 µs per step from there on."""
_PROBE_COST_WORD = layout.PROBE_COST // 8
_SECONDS = (1e-9).__mul__


def number(*names: str, default: int = -1) -> int:
    """The first of these environment variables that holds a whole number >= 0."""
    for name in names:
        value = os.environ.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return default


class FrameworkAdapter(Protocol):
    """How the probe watches one framework: one object per folder of `frameworks`."""

    name: str
    modules: Collection[str]
    """Modules of the framework; `attach` is called when each has been imported."""

    def attach(self, context: ProbeContext, name: str, module: ModuleType) -> None:
        """Patches the module `name`; its hooks set their marks on `context`."""

    def describe(self, context: ProbeContext) -> dict[str, Any]:
        """Facts for the process metadata, read each time it is written. Must not start a device."""


class ProbeContext:
    """The probe of one process. It takes marks from the training thread only (`mine`, `adopt`)."""

    def __init__(self) -> None:
        self.on = False
        self.clock = time.monotonic_ns
        self.box: Writer | None = None
        self.describe: Callable[[], dict[str, Any]] = dict
        """Returns the process metadata."""
        self.adapters: list[FrameworkAdapter] = []
        """Adapters of the frameworks that were imported, sorted by name."""
        self.objects = TrainingObjects()
        self.record_exception: Callable[[BaseException, TracebackType | None], None] = _ignore
        """Records an exception as the reason why this rank ends."""
        self.metadata_parts: list[Callable[[], dict[str, Any]]] = []
        """Functions whose results are added to the process metadata each time it is written; nested
        dictionaries are merged. Each must bound the size of its result."""
        self.sends: Callable[[], bool] = bool
        """Whether this rank has sent to other ranks point to point."""
        self.on_open: list[Callable[[], None]] = []
        """Called when a box is opened, also in a forked child."""
        self.on_step: list[Callable[[], None]] = []
        """Called after some of the recorded steps (`_FIRST_CALLBACK_STEP`)."""
        self.on_end: list[Callable[[], None]] = []
        """Called when the process ends without a failure."""
        self.step_begins: Callable[[int], int] | None = None
        """Called with the number of the step that begins; returns that of its next call. Set before
        the first step; it may be called earlier, too."""
        self.every_step: Callable[[], None] | None = None
        """Called after every recorded step while a trace is requested."""
        self.is_data_worker: Callable[[], bool] = bool
        """Whether this process is a worker of a data loader, which is never a rank."""
        self.sequence: Callable[[], int] = int
        """The sequence number of the default process group's newest collective; 0: unknown."""
        self.device_clock = "host"
        """What times the phases. `cpu`: the host, which does the work itself. `device`: a device's
        own clock, for some of the steps. `host`: the host, although a device works, or unknown."""
        self.device_timer: DeviceTimer | None = None
        """The timer of this process's device; None: there is no device, or it is not timed."""
        self.why_untimed: str | None = None
        """Why the device is not timed; None: it is, there is no device, or nobody tried."""
        self.runs_backward: Callable[[], bool] = bool
        """Whether the calling thread is the framework's thread of the backward pass."""
        self.accelerator: str | None = None
        """The first device that this process computed on, as `cuda:0`; None: only the CPU."""
        self.thread_clock: Callable[[], Any] = time.thread_time_ns
        """CPU time of the training thread, ns; NaN if other threads do its work."""
        self.hook_switch: HookSwitch | None = None
        """Makes hooks rest between timed steps; None: all steps are timed."""
        self._retired: list[DeviceTimer | None] = []
        """Timers no longer used, kept with their events: see `after_fork`."""
        self.rank = self.world_size = -1
        self.memory = Memory()
        self._start()

    def _start(self) -> None:
        self.owner = threading.get_ident()
        self.gc_ns = 0
        self._gc_since = 0
        self.recorded = 0
        """Number of steps recorded so far."""
        self.spent_ns = 0
        """The probe's own cost so far, without its marks, memory samples and device events."""
        self.trained = False
        self.in_backward = False
        self._failed_wait: FailedWait | None = None
        self.batch_ready = False
        self.ledger = Ledger(self.clock())
        self.fast_path = StepFastPath(self.ledger, self.record_step, self._facts)
        self.mark: Callable[..., None] = self.fast_path.mark
        """Takes a mark, its moment (monotonic ns) and its data: the one way for every mark of a
        phase, so that a device event can be recorded beside the host's moment here."""
        self.sampler = StepSampler(self)
        self.memory.start()
        self._mark_cost = 0
        self._metadata_due = 0
        self._on_step_due = _FIRST_CALLBACK_STEP
        self.callbacks_due = 0
        """The number of recorded steps after which something is called next."""

    # --- for adapters, at import --------------------------------------------------------------

    def add_adapter(self, adapter: FrameworkAdapter) -> None:
        """Adds the adapter's description of its framework to the process metadata."""
        if adapter not in self.adapters:
            self.adapters.append(adapter)
            self.adapters.sort(key=lambda known: known.name)

    def add_metadata(self, part: Callable[[], dict[str, Any]]) -> None:
        """Adds the result of `part` to the process metadata from now on."""
        if part not in self.metadata_parts:
            self.metadata_parts.append(part)

    def add_reset(self, reset: Callable[[], None]) -> None:
        """Calls `reset` whenever a box is opened: a forked child must forget its parent's work."""
        if reset not in self.on_open:
            self.on_open.append(reset)

    # --- for hooks ----------------------------------------------------------------------------

    @property
    def steps(self) -> Steps:
        """The step engine. Marks go through `mark` instead."""
        return self.fast_path.engine()

    def mine(self) -> bool:
        """Whether the calling thread trains, or runs the backward pass for the one that does."""
        if threading.get_ident() == self.owner:
            return self.on
        return self.on and self.in_backward and self.runs_backward()

    def adopt(self) -> bool:
        """Makes the calling thread the training thread. False if another thread has trained."""
        if not self.on:
            return False
        thread = threading.get_ident()
        if thread != self.owner:
            if self.trained:
                return False
            self.owner = thread
        return True

    def computes_on(self, device: str | None) -> None:
        """Notes that a backward pass begins on this device; None: on the CPU. After any use of an
        accelerator, phases do not count as timed by the CPU any more."""
        if device is not None and self.accelerator is None:
            self.accelerator = device
        if self.device_timer is None:
            self.device_clock = "cpu" if self.accelerator is None else "host"

    # --- the device's own clock -----------------------------------------------------------------

    def time_on_device(self, clock: DeviceClock, begins_backward: Collection[Mark]) -> None:
        """From now on times some of the steps by the device's own clock, too."""
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
        """Sets a mark for the device's clock only, where the host does not wait."""
        timer = self.device_timer
        if timer is not None and timer.is_timing:
            try:
                timer.mark(mark)
            except RuntimeError as error:
                self.stop_timing(str(error))

    def stop_timing(self, reason: str) -> None:
        """Stops timing the device, or keeps it from being timed, for this reason."""
        self._retired.append(self.device_timer)
        self.device_timer, self.why_untimed = None, self.why_untimed or reason[:200]
        self.device_clock = "cpu" if self.accelerator is None else "host"
        self.mark = self.fast_path.mark

    def _mark_on_device(self, mark: Mark, now: int, data: Data = ()) -> None:
        """Replaces the fast path's `mark` while a turn is timed by the device."""
        timer = self.device_timer
        if timer is not None:
            try:
                timer.mark(mark, data, now)
            except RuntimeError as error:  # the device has failed; the training will hear of it
                self.stop_timing(str(error))
        self.fast_path.mark(mark, now, data)

    def _time_next_turn(self, timer: DeviceTimer, record: int, step: Step) -> None:
        """Ends the timed turn of `step`, whose record has the number `record`, and decides whether
        the next turn is timed.

        All ranks must time the same turns. The decision depends on the turn's key: the sequence
        number of its collectives, which all ranks share; without collectives the step's number."""
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
        """Remembers the wait for other ranks that `error` ended, if the watched call was one."""
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
        """The wait for other ranks that `error` or one of its causes ended; without `error`, the
        last wait that failed. None: there is none, or training went on after it."""
        wait = self._failed_wait
        if wait is None or wait.step != self.recorded:
            return None
        ended = wait.sequence == self.sequence() if error is None else wait.caused(error)
        return wait if ended else None

    def fail(self, trouble: Exception) -> None:
        """Switches the probe off after an error of its own, and writes the reason into the box."""
        self.on = False
        self.sampler.stop()
        if self.box is not None:
            self.box.switch_off(f"{type(trouble).__name__}: {trouble}")
        self.ledger.words = NOWHERE
        if self.every_step is not None:
            self.every_step()

    # --- joining a job --------------------------------------------------------------------------

    def join(self, rank: int = -1, world_size: int = -1) -> None:
        """Opens the box: this process is about to join a process group."""
        if not self.on or self.is_data_worker():
            return
        self.identify(rank, world_size)
        if self.open():
            self.state(layout.JOINING)

    def joined(self, rank: int, world_size: int) -> None:
        """Records that this process has joined the process group."""
        self.identify(rank, world_size)
        self.state(layout.RUNNING)
        self.event(layout.JOINED, self.clock(), value=float(world_size))
        self.renew_metadata()

    def identify(self, rank: int, world_size: int) -> None:
        """Sets rank and world size; negative or zero ones are read from the environment."""
        self.rank = rank if rank >= 0 else number("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
        world = number("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
        self.world_size = world_size if world_size > 0 else world
        if self.box is not None:
            self.box.identify(self.rank, self._local_rank(), self.world_size)

    def _local_rank(self) -> int:
        return number("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")

    def open(self) -> bool:
        """Opens the box unless it is open. False if that fails; the probe is then off."""
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
        self._mark_cost = mark_cost(self.clock, self._facts, self.fail)
        self.renew_metadata()
        return True

    def state(self, value: int) -> None:
        """Sets the box's state, if there is a box."""
        if self.box is not None:
            self.box.state(value)

    def event(
        self, kind: int, start: int, duration: int = 0, value: float = nan, text: str = ""
    ) -> None:
        """Records an event, if there is a box. Times in monotonic ns; `value` depends on `kind`."""
        if self.box is not None:
            self.box.event(kind, start, self.recorded, duration, value, text)

    def renew_metadata(self) -> None:
        """Writes the current process metadata into the box."""
        if self.box is not None:
            self._metadata_due = self.clock() + _METADATA_LASTS_NS
            self.box.birth(self.describe())

    # --- steps ------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        return (self.sequence(), self.thread_clock(), self.gc_ns, 0)

    def record_step(self, step: Step) -> None:
        """Writes a step into the box; the first step opens the box if no group was joined."""
        if self.sampler.is_completing:
            self.sampler.complete(step)
            self._step_recorded(step.end)
            return
        if self.box is None:
            if self.is_data_worker():
                self.on = False
                return
            self._train_alone()
            if self.box is None:
                return
        number = self.recorded
        start, end, phases, level, skipped, samples, tokens, loss, passes, calls, first, last = step
        seconds = [*map(_SECONDS, phases)]
        seconds[layout.COMMUNICATION] = nan
        unseen = self.objects.unseen_waits and self.objects.hides_wait(phases[layout.WAIT])
        if unseen or self.device_clock != "cpu":
            seconds[layout.TRANSFER] = seconds[layout.WAIT] = nan  # the host does not see them
        flags = 0 if number else layout.WARM_UP
        if skipped:
            flags |= layout.SKIPPED
        if level < UPDATE:
            flags |= layout.NO_OPTIMIZER
        if self.batch_ready:
            flags |= layout.BATCH_READY
        if self.sampler.timed < SETTLED:
            flags |= self.sampler.flag(step)
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
            gc_s=(last[2] - first[2]) * 1e-9,
            group_seq=last[0],
            collectives=calls,
            micro_batches=passes,
            cpu_s=(last[1] - first[1]) * 1e-9,
            device_bytes=on_device,
            resident_bytes=on_host,
        )
        self.recorded = number + 1
        self._step_recorded(end)
        if self.device_timer is not None:
            self._time_next_turn(self.device_timer, self.box.written, step)
        else:
            self.sampler.turn_ended(step)

    def _step_recorded(self, end: int) -> None:
        """Does what is due after the newest step, which ended at `end`."""
        number, ledger = self.recorded, self.ledger
        ledger.step_bits = number << 8
        ledger.words[_PROBE_COST_WORD] = self._cost()
        if number >= self.callbacks_due:
            self._call_back(number)
        if end >= self._metadata_due or number in _EARLY_METADATA:
            self.renew_metadata()
        if self.every_step is not None:
            self.every_step()

    def _call_back(self, number: int) -> None:
        if number >= self._on_step_due:
            self._on_step_due += min(self._on_step_due, _MOST_STEPS_BETWEEN_CALLBACKS)
            for callback in self.on_step:
                callback()
        self.callbacks_due = self._on_step_due
        if self.step_begins is not None:
            self.callbacks_due = min(self._on_step_due, self.step_begins(number))

    def _cost(self) -> int:
        spent = self.ledger.marks * self._mark_cost + self.spent_ns + self.memory.spent_ns
        return spent if self.device_timer is None else spent + self.device_timer.spent_ns

    def _train_alone(self) -> None:
        """Opens the box of a process that trains without a process group: a rank by its
        environment, or the only one."""
        self.identify(-1, -1)
        if self.rank < 0:
            self.rank, self.world_size = 0, 1
        if self.open():
            self.state(layout.RUNNING)

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

    # --- ending -----------------------------------------------------------------------------------

    def leave(self, code: int | None) -> None:
        """Records the last whole step and the exit code (None: unknown), and ends the probe."""
        if self.on:
            self.on = False
            self.steps.leave()
            if not code:
                for callback in self.on_end:
                    callback()
            if self.device_timer is not None:
                with suppress(RuntimeError):  # the device has failed
                    self.device_timer.finish()
            if self.box is not None:
                self.renew_metadata()
                self.ledger.words[_PROBE_COST_WORD] = self._cost()
                self.box.leave(code)

    def after_fork(self) -> None:
        """Resets the context in a forked child: the box stays the parent's. The parent's device
        events are kept, because freeing one without the parent's device can kill the child."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        self._retired.append(self.device_timer)
        self.sampler.stop()
        self.box = self.every_step = self.device_timer = None
        self.rank = self.world_size = -1
        self._start()


def _ignore(_: BaseException, __: TracebackType | None) -> None:
    """Stands in for `record_exception` until the exits of this process are watched."""
