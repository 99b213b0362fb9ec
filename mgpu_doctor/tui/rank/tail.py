"""A panel that goes on with its end, unless somebody scrolled away from it."""

from __future__ import annotations

from mgpu_doctor.tui.panel import Panel


class Tail(Panel):
    follows = True
    """Whether who looks at it wants to see the newest line."""

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.follows = new_value >= self.max_scroll_y
