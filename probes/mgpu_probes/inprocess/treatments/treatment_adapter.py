"""Applies the requested treatments when the modules that they change have been imported.

The adapter has the protocol of a framework's adapter. It is loaded only in a process whose
environment requests treatments. An error in applying one is recorded, and leaves the job as it is.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from ..exits import is_library_code
from . import (
    background_saving,
    block_changes,
    call_arguments,
    loop_changes,
    model_changes,
    optimizer_changes,
    rank_placement,
    tensorflow_changes,
)
from .trial_blocks import Switch, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import FrameType, ModuleType

    from ..probe_context import ProbeContext
    from .call_arguments import Apply

_MOST_SITES = 8
"""Lines of the script whose calls were changed that are recorded for each treatment."""
_MOST_CHARACTERS = 200
_FRAMES_CLIMBED = 64
UNKNOWN_NAME, ALREADY_SET, HAS_ERROR = "unknown-name", "already-set", "error"
"""Why a treatment changed nothing, besides the reasons of the single treatments."""


class Change:
    """A requested treatment, and what it changed in this process."""

    def __init__(self, name: str, value: Any, switch: Switch) -> None:
        self.name = name
        self.value: Any = value
        self.switch = switch
        """Whether the treatment is on. Only treatments in `SWITCHABLE` heed it."""
        self.changed = 0
        """Number of calls or objects that were changed."""
        self.sites: list[str] = []
        """The script's lines that made these calls, as `file:line`."""
        self.refused: str | None = None
        """Why nothing was changed, the latest reason; None: none is known."""
        self.details = ""
        """The text of an error."""

    def note(self, caller: FrameType | None = None) -> None:
        """Counts a change; `caller`: the frame that made the changed call."""
        self.changed += 1
        site = _find_user_line(caller)
        if site is not None and site not in self.sites and len(self.sites) < _MOST_SITES:
            self.sites.append(site)

    def refuse(self, reason: str, details: str = "") -> None:
        """Records why a call stays as it is."""
        self.refused, self.details = reason, details[:_MOST_CHARACTERS]

    def attempt(self, edit: Callable[[], str | None]) -> bool:
        """Calls `edit`, which returns why it changes nothing, or None; whether it made a change. An
        error in it is recorded: it must not end the job."""
        try:
            reason, details = edit(), ""
        except Exception as trouble:
            reason, details = HAS_ERROR, f"{type(trouble).__name__}: {trouble}"
        if reason is not None:
            self.refuse(reason, details)
        return reason is None

    def describe(self) -> dict[str, Any]:
        """The facts for the process metadata."""
        return {
            "name": self.name[:_MOST_CHARACTERS],
            "value": self.value,
            "changed": self.changed,
            "sites": self.sites,
            "refused": self.refused,
            "details": self.details,
        }


APPLICATIONS: Mapping[str, Mapping[str, Apply]] = {
    **call_arguments.APPLICATIONS,
    **loop_changes.APPLICATIONS,
    **model_changes.APPLICATIONS,
    **optimizer_changes.APPLICATIONS,
    **block_changes.APPLICATIONS,
    **rank_placement.APPLICATIONS,
    **background_saving.APPLICATIONS,
    **tensorflow_changes.APPLICATIONS,
}
"""For each treatment, the modules that it changes, and the function that changes each."""


SWITCHABLE = loop_changes.SWITCHABLE | optimizer_changes.SWITCHABLE
"""Treatments that can be switched on and off while the job runs."""


class TreatmentAdapter:
    """The requested treatments, as an adapter of the probe."""

    name = "treatments"

    def __init__(self, changes: Collection[Change], switch: Switch) -> None:
        self.changes = changes
        self.switch = switch
        self.modules: Collection[str] = {
            module for change in changes for module in APPLICATIONS.get(change.name, ())
        }

    def attach(self, context: ProbeContext, name: str, module: ModuleType) -> None:
        """Applies the treatments that change this module."""
        if self.switch.is_scheduled:
            context.step_begins = functools.partial(self._switch, context)
        for change in self.changes:
            apply = APPLICATIONS.get(change.name, {}).get(name)
            if apply is not None:
                change.attempt(functools.partial(apply, change, context, module))

    def _switch(self, context: ProbeContext, step: int) -> int:
        """Switches for this step. What the block before has changed is written into the box: the
        trial may be killed before the metadata is written again."""
        due = self.switch.step_begins(step)
        context.renew_metadata()
        return due

    def describe(self, _: ProbeContext) -> dict[str, Any]:
        """What each treatment changed in this process so far."""
        return {"treatments": [change.describe() for change in self.changes]}


def load_treatments(requested: str, blocks: str | None = None) -> TreatmentAdapter:
    """The adapter for a JSON object of names and values; one without treatments for other text.
    `blocks`: the steps in which they are on, see `read_blocks`."""
    switch = Switch(read_blocks(blocks))
    try:
        values = json.loads(requested)
    except ValueError:
        values = None
    changes = (
        [Change(name, value, switch) for name, value in values.items()]
        if type(values) is dict
        else []
    )
    for change in changes:
        if change.name not in APPLICATIONS:
            change.refuse(UNKNOWN_NAME)
    return TreatmentAdapter(changes, switch)


def _find_user_line(frame: FrameType | None) -> str | None:
    """The innermost line outside of libraries, from `frame` outwards; None: there is none."""
    for _ in range(_FRAMES_CLIMBED):
        if frame is None:
            return None
        file = frame.f_code.co_filename
        if not is_library_code(file):
            return f"{file[-_MOST_CHARACTERS:]}:{frame.f_lineno}"
        frame = frame.f_back
    return None
