"""Makes the hooks of a plain training loop rest between timed steps (`step_sampling`).

Nothing is unregistered, so the order of the user's own hooks stays:

- The two optimizer hooks are replaced in torch's tables, under the same keys: the first by a
  function that does nothing, the second by the one that counts.
- The hook on a parameter's gradient node is taken out of the node's table, and put back first.
- The wrappers of the loader, of DistributedDataParallel and of autograd's engine call the original
  at once (`wrap.resting`).

The hooks around collectives stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType, ModuleType
from typing import Any

from ... import layout, wrap
from ...probe_context import ProbeContext
from ...step_engine import Steps
from ...step_marks import Mark, backward_ended, fetched
from . import autograd, call_sites, data_loader, ddp, optimizer_updates
from .weight_digests import weights

probe: ProbeContext

_STRATEGIES = {"ddp"}
"""Strategies whose hooks can rest."""
_ORDINARY = frozenset(
    {
        fetched,
        Steps.forward_begins,
        Steps.forward_ends,
        Steps.backward_begins,
        Steps.backward_waits,
        backward_ended,
        Steps.clipping_begins,
        Steps.clipping_ends,
        Steps.update_begins,
        Steps.call_begins,
        Steps.call_ends,
        ddp.buffers_synced,
    }
)
"""Marks of an ordinary turn, beside those of loaders, optimizers and call sites."""
_FRAMES = 64
"""Innermost frames that are searched for a phase."""
_PHASES = {
    ("autograd/graph.py", "_engine_run_backward"): layout.BACKWARD,
    ("utils/data/dataloader.py", "__next__"): layout.INPUT,
    ("nn/parallel/distributed.py", "forward"): layout.FORWARD,
    ("optim/optimizer.py", "wrapper"): layout.OPTIMIZER,
}
"""File within torch and function -> the phase in which it runs."""


class _Switch:
    """Makes the hooks rest, and puts them back. See `step_sampling.HookSwitch`."""

    def __init__(self) -> None:
        self._optimizer = 0
        self._count: Callable[[], None] = _do_nothing

    def counted_mark(self, marks: Sequence[Mark | None]) -> int | None:
        if not probe.objects.strategies <= _STRATEGIES or _optimizer_hooks() is None:
            return None
        fetches: set[Mark | None] = set(data_loader.asked_marks.values())
        updates: dict[Mark | None, int] = {
            mark: key for key, mark in optimizer_updates.updated_marks.items()
        }
        known = {*_ORDINARY, *fetches, *updates, *call_sites.returned_marks()}
        places = [place for place, mark in enumerate(marks) if mark in updates]
        if len(places) != 1 or not known.issuperset(marks):
            return None
        if marks[-1] not in fetches and marks[-1] is not Steps.forward_begins:
            return None
        self._optimizer = updates[marks[places[0]]]
        return places[0]

    def rest(self, count: Callable[[], None]) -> None:
        self._count = count
        self._replace(_do_nothing, self._updated)
        for handle in autograd.node_hooks:
            table = handle.hooks_dict_ref()
            if table is not None:
                table.pop(handle.id, None)
        wrap.resting = True

    def resume(self) -> None:
        wrap.resting = False
        for handle in autograd.node_hooks:
            table = handle.hooks_dict_ref()
            if table is not None:
                others = dict(table)
                table.clear()
                table.update({handle.id: autograd.runs_in_module, **others})
        self._replace(optimizer_updates.before_update, optimizer_updates.after_update)

    def _replace(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        for (table, key), hook in zip(_optimizer_hooks() or (), (before, after), strict=False):
            if key in table:
                table[key] = hook

    def _updated(self, optimizer: Any, *_: Any) -> None:
        """Replaces the hook after an optimizer's step while the hooks rest."""
        if get_ident() != probe.owner:
            return
        try:
            if id(optimizer) == self._optimizer:
                weights.updates += 1
                self._count()
            else:
                probe.sampler.interrupt()
                optimizer_updates.before_update(optimizer)
                optimizer_updates.after_update(optimizer)
        except Exception as trouble:
            probe.fail(trouble)

    def phase_of(self, frame: FrameType) -> int:
        if autograd.waits_inside(frame):
            return layout.WAIT
        outer: FrameType | None = frame
        for _ in range(_FRAMES):
            if outer is None:
                break
            code = outer.f_code
            for (file, function), phase in _PHASES.items():
                if code.co_name == function and code.co_filename.endswith(file):
                    return phase
            outer = outer.f_back
        return layout.OTHER


def _do_nothing(*_: Any) -> None:
    """Replaces a hook that rests."""


def _optimizer_hooks() -> list[tuple[dict[int, Any], int]] | None:
    """The tables of optimizer hooks and the keys of the probe's own; None: this torch hides
    them."""
    found = []
    for handle in optimizer_updates.handles:
        table = getattr(handle, "hooks_dict_ref", _do_nothing)()
        if table is None or getattr(handle, "id", None) not in table:
            return None
        found.append((table, handle.id))
    return found or None


def patch(_: ModuleType) -> None:
    """Lets hooks rest in this process."""
    probe.hook_switch = _Switch()
