"""A wait for other ranks that an exception ended: nothing else shows it once the process is gone.

A script often catches the exception and exits with a code, which says neither why nor for whom. The
context keeps the newest (`ProbeContext.was_interrupted`); `exits` writes it into the last words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_MOST_CAUSES = 16
"""Exceptions that are followed to what caused them."""
_MOST_MESSAGE = 4000


class FailedWait(NamedTuple):
    """`step`: how many steps were recorded before it."""

    error: int
    """The identity of the exception: holding the exception would keep its frames alive."""
    type: str
    message: str
    since: int
    """Monotonic nanoseconds, as `until`."""
    until: int
    site: str | None
    """The collective and its call site."""
    sequence: int
    """Of the collective."""
    step: int

    @classmethod
    def ended_by(
        cls,
        error: BaseException,
        *,
        since: int,
        until: int,
        site: str | None,
        sequence: int,
        step: int,
    ) -> FailedWait:
        """The wait that `error` ended; times in monotonic nanoseconds."""
        kind, message = type(error).__qualname__, str(error)[:_MOST_MESSAGE]
        return cls(id(error), kind, message, since, until, site, sequence, step)

    def caused(self, error: BaseException) -> bool:
        """Whether `error` is the exception that ended the wait, or was caused by it."""
        cause: BaseException | None = error
        for _ in range(_MOST_CAUSES):
            if cause is None:
                return False
            if id(cause) == self.error:
                return True
            cause = cause.__cause__ or cause.__context__
        return False

    def as_words(self) -> dict[str, Any]:
        """What last words say of the wait."""
        return {
            "since": self.since,
            "until": self.until,
            "site": self.site,
            "sequence": self.sequence,
            "step": self.step,
        }
