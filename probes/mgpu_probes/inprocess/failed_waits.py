"""A wait for other ranks that ended by an exception, such as a timeout of a collective.

A script often catches the exception and exits with a code, which says neither why it failed nor
which ranks it waited for. The context keeps the newest such wait (`ProbeContext.was_interrupted`),
and `exits` writes it into the box's last words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_MOST_CAUSES = 16
"""How many links of a chain of exceptions (`__cause__`, `__context__`) are followed."""
_MOST_MESSAGE = 4000


class FailedWait(NamedTuple):
    """One failed wait. `step`: how many steps were recorded before it."""

    error: int
    """The exception's `id`: a reference to it would keep its frames alive."""
    type: str
    message: str
    since: int
    """Begin of the wait; monotonic ns, as `until`."""
    until: int
    site: str | None
    """The collective and its call site."""
    sequence: int
    """The sequence number of the collective."""
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
        """The wait as a dictionary, for the box's last words."""
        return {
            "since": self.since,
            "until": self.until,
            "site": self.site,
            "sequence": self.sequence,
            "step": self.step,
        }
