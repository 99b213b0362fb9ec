"""What is wrong with a filter, and where."""

from __future__ import annotations

from rich.cells import cell_len


class FilterError(ValueError):
    """`message`: what was expected, in one sentence; `column`: where in the text, from 0."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"column {column + 1}: {message}")
        self.message = message
        self.column = column


def plain(typed: str) -> str:
    """`typed` with a question mark for each character that a terminal would not just print."""
    return "".join(char if char.isprintable() else "?" for char in typed)


def caret(typed: str, column: int) -> str:
    """A line that points at `column` when it is printed under `plain(typed)`."""
    return " " * cell_len(plain(typed[:column])) + "^"


def pointed(typed: str, error: FilterError) -> str:
    """The text, a caret under the place, and the sentence: three lines."""
    return f"{plain(typed)}\n{caret(typed, error.column)}\n{error}"
