"""What a command prints that reaches several hosts at once, split into what each host prints.

`srun --label` merges the outputs of its tasks line by line, each line with the number of its task.
A task first prints `@` and its node's name (`MEMBER`), then the agent's frames in lines of base64,
and at its end `!` and the agent's exit code. Slurm splits lines of more than 1,024 characters; so
only the order of a task's text counts, not where its lines end."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from mgpu_probes.outside.node.channel_frames import BadStream

MEMBER = 'echo "@{name}"; ({remote} "{name}"); echo "!$?"'
"""A script of a task, which runs the shell command `remote`. `name`: a variable of the shell with
the name by which the reader knows this host."""
MOST_LINE = 1 << 16
MOST_LABEL = 10
TASK_END = re.compile(rb": tasks? [\d,-]+: ")
"""What srun reports on standard error about a task that ended, such as `node-b: task 1: Killed`: of
all tasks if a single one could not start."""


class TaskBegan(NamedTuple):
    """The task runs on this node."""

    task: int
    node: str


class TaskText(NamedTuple):
    """Base64, in whole groups of four characters."""

    task: int
    text: bytes


class TaskEnded(NamedTuple):
    """The agent of this task has ended. `code`: as its shell reports it."""

    task: int
    code: int


Part: TypeAlias = TaskBegan | TaskText | TaskEnded


class StepOutput:
    """Splits the output of a step, whatever the sizes in which it arrives."""

    def __init__(self) -> None:
        self._line = b""
        self._groups: dict[int, bytes] = {}
        """Task -> the beginning of a group of four characters."""

    def feed(self, data: bytes) -> Iterator[Part]:
        """Adds bytes; yields what is complete. Lines without a label are no task's. Raises
        BadStream."""
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > MOST_LINE:
            raise BadStream("it prints a line without an end")
        for line in lines:
            task, text = split_label(line)
            if task is None:
                continue
            mark, rest = text[:1], text[1:].strip()
            if mark == b"@":
                yield TaskBegan(task, rest.decode("utf-8", "replace"))
            elif mark == b"!" and rest.isdigit() and len(rest) <= MOST_LABEL:
                yield TaskEnded(task, int(rest))
            else:
                yield TaskText(task, self._whole_groups(task, text))

    def _whole_groups(self, task: int, text: bytes) -> bytes:
        if task in self._groups:
            text = self._groups.pop(task) + text
        if left := len(text) % 4:
            self._groups[task] = text[-left:]
            return text[:-left]
        return text


def split_label(line: bytes) -> tuple[int | None, bytes]:
    """The task that printed a line, None: none of them; and what it printed."""
    label, colon, text = line.partition(b": ")
    label = label.strip()
    if not colon or not label.isdigit() or len(label) > MOST_LABEL:
        return None, line
    return int(label), text


def decode_text(text: bytes) -> bytes:
    """The bytes of a TaskText. Raises BadStream."""
    try:
        return binascii.a2b_base64(text)
    except binascii.Error:
        raise BadStream("it sends text that is not base64") from None
