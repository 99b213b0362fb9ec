"""Lines of a long table, of which only those on the screen are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from rich.text import Text


class Rows(Sequence[Text]):
    """`head`: lines that stay where they are while the rows below scroll. `make` gives row 0 to
    `many - 1`. `marked`: the row that shall be on the screen."""

    def __init__(
        self,
        head: Sequence[Text],
        many: int,
        make: Callable[[int], Text],
        marked: int | None = None,
    ) -> None:
        self.head, self.many, self.make, self.marked = head, many, make, marked

    def __len__(self) -> int:
        return len(self.head) + self.many

    @overload
    def __getitem__(self, place: int) -> Text: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Text]: ...
    def __getitem__(self, place: int | slice) -> Text | Sequence[Text]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        line = range(len(self))[place]
        return self.head[line] if line < len(self.head) else self.make(line - len(self.head))
