"""A rank's output and stacks as lines. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.cells import chop_cells
from rich.text import Text

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.thread_states import list_thread_states
from mgpu_doctor.analysis.stacks.wait_classifier import WAITING, Doing
from mgpu_doctor.case.job_snapshots import Frame, JobSnapshot, Stack, Thread, pid_on_host
from mgpu_doctor.case.user_code import is_user_code
from mgpu_doctor.formatting import UNKNOWN, format_count
from mgpu_doctor.live.rank_output import Output
from mgpu_doctor.live.rank_stacks import RankStacks
from mgpu_doctor.report import text
from mgpu_doctor.report.stack_tree import tree_lines
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels.table_cells import DIM, Rows

NOBODYS = "dim: no label says which rank printed it"
LEAST = 8


def output_lines(output: Output, width: int, *, follow: bool) -> Rows:
    """Returns the output's lines. `follow`: whether to keep the last line on screen."""
    shown: list[tuple[str, str]] = []
    if output.reason is not None:
        shown = [(piece, DIM) for piece in _folded(output.reason, width)]
    for stream in output.streams:
        foreign = any(not line.own for line in stream.lines)
        name = text.line(stream.name)
        title = f"{name}  {NOBODYS}" if foreign else name
        shown.append((text.cut(title, width), "cyan"))
        for line in stream.lines:
            style = "" if line.own else DIM
            shown += [(piece, style) for piece in _folded(line.text, width)]

    def make(place: int) -> Text:
        words, style = shown[place]
        return Text(words, style=style)

    return Rows((), len(shown), make, len(shown) - 1 if follow and output.streams else None)


def _folded(words: str, width: int) -> list[str]:
    """Wraps lines and keeps indents, which make a traceback readable."""
    return chop_cells(text.clean(words).replace("\n", " "), max(LEAST, width)) or [""]


MOST_BRANCHES = 200
MOST_THREADS = 24
MOST_FRAMES = 64
OTHERS_FRAMES = 8
"""Innermost frames of a thread other than the main one."""
MOST_UNTOLD = 3


def stack_lines(stacks: RankStacks | str, width: int) -> list[Text]:
    if isinstance(stacks, str):
        return [Text(text.line(stacks), style="yellow")]
    lines = list(
        _all(stacks, width) if stacks.pid is None else _state_lines(stacks.snapshot, stacks.pid)
    )
    lines += _unread(stacks.snapshot)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _all(stacks: RankStacks, width: int) -> Iterator[Text]:
    process_count = len({stack.pid for stack in stacks.snapshot.stacks})
    read = f"{process_count} process{'' if process_count == 1 else 'es'} read"
    yield Text(f"{_clock(stacks.snapshot)}, {read}", style=DIM)
    if not stacks.tree:
        yield Text("No stack could be read.", style="yellow")
    for line in tree_lines(stacks.tree, width, MOST_BRANCHES):
        yield Text(line.text, style="bold red" if line.culprit else "")


def _state_lines(snapshot: JobSnapshot, pid: int) -> Iterator[Text]:
    stacks = [
        snapshot.stack(name) for name in dict.fromkeys(stack.pid for stack in snapshot.stacks)
    ]
    own = snapshot.stack(pid)
    if own is None:
        yield Text(f"{_clock(snapshot)}: its stack could not be read.", style="yellow")
    workers = [
        stack
        for stack in stacks
        if stack is not None
        and any(p.parent == pid and p.pid == stack.pid for p in snapshot.processes)
    ]
    if own is not None:
        yield Text(
            f"{_clock(snapshot)}, by {text.line(own.source)}{_doing(snapshot, pid)}", style=DIM
        )
        yield from _threads(own)
    for worker in workers:
        yield Text(f"data-loader worker, pid {pid_on_host(worker.pid)}", style="cyan")
        yield from _frames(worker.main.frames if worker.main else (), OTHERS_FRAMES)


def _doing(snapshot: JobSnapshot, pid: int) -> str:
    posture = next(
        (thread_state for thread_state in list_thread_states(snapshot) if thread_state.pid == pid),
        None,
    )
    if posture is None:
        return ""
    waits = posture.operation if posture.doing in WAITING else None
    what = waits or ("works" if posture.doing is Doing.OWN else posture.doing.value)
    place = frames.format_location(posture.place)
    return f": {text.line(what)}" + (f", at {text.line(place)}" if place else "")


def _threads(stack: Stack) -> Iterator[Text]:
    ordered = sorted(
        stack.threads, key=lambda thread: (not thread.main, not thread.gil, not thread.active)
    )
    for thread in ordered[:MOST_THREADS]:
        signs = ["runs"] if thread.active else []
        signs += ["holds the GIL"] if thread.gil else []
        title = "main thread" if thread.main else f"thread {text.line(thread.name or '?')}"
        yield Text.assemble((title, "cyan"), (f"  {', '.join(signs)}", DIM))
        if thread.main:
            yield from _frames(_without_wrappers(thread), MOST_FRAMES)
        else:
            yield from _frames(thread.frames, OTHERS_FRAMES)
    if len(ordered) > MOST_THREADS:
        yield Text(f"{len(ordered) - MOST_THREADS} more threads", style=DIM)


def _without_wrappers(thread: Thread) -> Sequence[Frame]:
    return frames.trail(thread.frames)[::-1] or thread.frames


def _frames(listed: Sequence[Frame], most: int) -> Iterator[Text]:
    """Yields the frames, innermost first; the user's training code is highlighted."""
    for frame in listed[:most]:
        yield _frame(frame)
    if len(listed) > most:
        yield Text(f"    {format_count(len(listed) - most, 'frame')} more", style=DIM)


def _frame(frame: Frame) -> Text:
    place = frames.format_location(frame) or UNKNOWN
    style = "bold" if is_user_code(frame.file) else ""
    return Text.assemble(
        (f"    {text.line(frame.function)}  ", style), (text.line(place), style or DIM)
    )


def _unread(snapshot: JobSnapshot) -> Iterator[Text]:
    for source in snapshot.untold[:MOST_UNTOLD]:
        who = f"pid {source.pid}: " if source.pid is not None else ""
        remedy = f" ({source.remedy})" if source.remedy else ""
        yield Text(
            f"{who}{text.line(source.source)}: {text.line(source.reason + remedy)}", "yellow"
        )
    if len(snapshot.untold) > MOST_UNTOLD:
        yield Text(f"{len(snapshot.untold) - MOST_UNTOLD} more could not be read", style="yellow")


def _clock(snapshot: JobSnapshot) -> str:
    return time.strftime("%H:%M:%S", time.localtime(snapshot.at))


class Tail(Panel):
    follows = True
    """Whether who looks at it wants to see the newest line."""

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.follows = new_value >= self.max_scroll_y
