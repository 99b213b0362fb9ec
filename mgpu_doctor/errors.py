"""The error with which a request to the doctor ends, and its exit codes."""

from __future__ import annotations

WRONG_USAGE = 2
NOTHING_EXAMINED = 3
"""Exit codes that all verbs share."""


class DoctorError(Exception):
    """A request cannot be carried out. Its text is one sentence that says why and what to do;
    `exit_code` is that of the verb: 2 for wrong usage, 3 if nothing could be examined."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[DoctorError], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)
