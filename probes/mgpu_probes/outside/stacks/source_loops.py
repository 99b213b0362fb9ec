"""The loops of a script around the lines at which its ranks stand, by its source.

A rank that waits behind a loop has left it, while the others may still be in it.
"""

from __future__ import annotations

import io
import os
import stat
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

MOST_BYTES = 256 << 10
"""Of one file; a longer one is not read. Its tokens take about half a second."""
MOST_FILES = 16
_LIBRARIES = ("-packages/", "/lib/python3", "/lib64/python3")
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Loop(NamedTuple):
    """Lines of a `for` or `while` loop, the first and the last inclusive; without its `else`."""

    first: int
    last: int


def loops_around(pid: int, calls: Iterable[tuple[str, int]]) -> list[list[Any]]:
    """[file, first line, last line] of the loops around these lines (file, line) of a process's
    scripts. Files that cannot be read, are too long or are no Python have none; installed files are
    not read."""
    lines: dict[str, set[int]] = {}
    for file, line in calls:
        if file.startswith("/") and not any(library in file for library in _LIBRARIES):
            lines.setdefault(file, set()).add(line)
    return [
        [file, *loop]
        for file, seen in list(lines.items())[:MOST_FILES]
        for loop in _loops_of(f"/proc/{pid}/root{file}")
        if any(loop.first <= line <= loop.last for line in seen)
    ]


def _loops_of(path: str) -> Sequence[Loop]:
    try:
        descriptor = os.open(path, _OPEN)
    except (OSError, ValueError):
        return ()
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
            return ()
        return find_loops(os.read(descriptor, MOST_BYTES).decode("utf-8", "replace"))
    except OSError:
        return ()
    finally:
        os.close(descriptor)


@lru_cache(MOST_FILES)  # every snapshot of a job asks for the same files
def find_loops(source: str) -> tuple[Loop, ...]:
    """All loops of a source text; those up to the place at which it is no Python."""
    return tuple(_find_loops(source))


def _find_loops(source: str) -> Iterator[Loop]:
    blocks: list[int | None] = []
    """For each open block the line of its loop's head; None: no loop."""
    head: int | None = None
    begins_line, last = True, 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL):
                continue
            if token.type == tokenize.INDENT:
                blocks.append(head)
                head = None
            elif token.type == tokenize.DEDENT:
                first = blocks.pop()
                if first is not None:
                    yield Loop(first, last)
            elif token.type == tokenize.NEWLINE:
                last, begins_line = token.start[0], True
            else:
                if begins_line:
                    if head is not None:  # it had its body on its own line
                        yield Loop(head, last)
                    head = token.start[0] if _begins_loop(token) else None
                begins_line = False
    except (tokenize.TokenError, SyntaxError):
        return


def _begins_loop(first: tokenize.TokenInfo) -> bool:
    """Whether the first token of a logical line begins a loop."""
    if first.string == "async":
        return first.line.split()[1:2] == ["for"]
    return first.string in ("for", "while")


def calls_of(stacks: Iterable[Mapping[str, Any]]) -> dict[int, list[tuple[str, int]]]:
    """Pid -> the (file, line) pairs of its main thread."""
    calls: dict[int, list[tuple[str, int]]] = {}
    for stack in stacks:
        for thread in stack["threads"]:
            if thread["main"]:
                known = calls.setdefault(stack["pid"], [])
                known += [(str(file), line) for _, file, line in thread["frames"] if line]
    return calls
