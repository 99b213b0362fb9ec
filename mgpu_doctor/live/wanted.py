"""What frames are made for: what nobody will look at is not made."""

from __future__ import annotations

from typing import NamedTuple


class Wanted(NamedTuple):
    heat: bool = True
    """The heat-map of ranks and steps."""
    history: bool = True
    """What was sampled before, for graphs."""
    details: bool = True
    """Of GPUs: what is told of them beside the table."""
    more: bool = True
    """Further frames will follow: XIDs are listened for from the first one on."""


EVERYTHING = Wanted()
