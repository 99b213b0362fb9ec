"""Stacks as lines: those of one rank, or all of them as one tree. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.text import Text

from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.leaf import WAITING, Doing
from mgpu_doctor.analysis.stacks.postures import postures
from mgpu_doctor.case.looks import Frame, Look, Stack, Thread
from mgpu_doctor.live.rank.stacks import Standing
from mgpu_doctor.report import text
from mgpu_doctor.report.stacktree import tree_lines
from mgpu_doctor.tui.panels.parts import DIM

MOST_BRANCHES = 200
MOST_THREADS = 24
MOST_FRAMES = 64
OTHERS_FRAMES = 8
"""Of a thread that is not the main one, the innermost."""
MOST_UNTOLD = 3


def lines(told: Standing | str, width: int) -> list[Text]:
    if isinstance(told, str):
        return [Text(text.line(told), style="yellow")]
    made = list(_all(told, width) if told.pid is None else _one(told.look, told.pid))
    made += _untold(told.look)
    for line in made:
        line.truncate(width, overflow="ellipsis")
    return made


def _all(told: Standing, width: int) -> Iterator[Text]:
    many = len({stack.pid for stack in told.look.stacks})
    read = f"{many} process{'' if many == 1 else 'es'} read"
    yield Text(f"{_clock(told.look)}, {read}", style=DIM)
    if not told.tree:
        yield Text("No stack could be read.", style="yellow")
    for line in tree_lines(told.tree, width, MOST_BRANCHES):
        yield Text(line.text, style="bold red" if line.culprit else "")


def _one(look: Look, pid: int) -> Iterator[Text]:
    stacks = [look.stack(one) for one in dict.fromkeys(stack.pid for stack in look.stacks)]
    own = look.stack(pid)
    if own is None:
        yield Text(f"{_clock(look)}: its stack could not be read.", style="yellow")
    workers = [
        stack
        for stack in stacks
        if stack is not None and any(p.parent == pid and p.pid == stack.pid for p in look.processes)
    ]
    if own is not None:
        yield Text(f"{_clock(look)}, by {text.line(own.source)}{_doing(look, pid)}", style=DIM)
        yield from _threads(own)
    for worker in workers:
        yield Text(f"data-loader worker, pid {worker.pid}", style="cyan")
        yield from _frames(worker.main.frames if worker.main else (), OTHERS_FRAMES)


def _doing(look: Look, pid: int) -> str:
    posture = next((one for one in postures(look) if one.pid == pid), None)
    if posture is None:
        return ""
    waits = posture.operation if posture.doing in WAITING else None
    what = waits or ("works" if posture.doing is Doing.OWN else posture.doing.value)
    place = frames.told(posture.place)
    return f": {text.line(what)}" + (f", at {text.line(place)}" if place else "")


def _threads(stack: Stack) -> Iterator[Text]:
    ordered = sorted(stack.threads, key=lambda one: (not one.main, not one.gil, not one.active))
    for thread in ordered[:MOST_THREADS]:
        signs = ["runs"] if thread.active else []
        signs += ["holds Python's lock"] if thread.gil else []
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
    """Innermost first; the code that is trained with stands out."""
    for frame in listed[:most]:
        yield _frame(frame)
    if len(listed) > most:
        yield Text(f"    {text.count(len(listed) - most, 'frame')} more", style=DIM)


def _frame(frame: Frame) -> Text:
    place = frames.told(frame) or text.UNKNOWN
    style = "bold" if frames.own(frame) else ""
    return Text.assemble(
        (f"    {text.line(frame.function)}  ", style), (text.line(place), style or DIM)
    )


def _untold(look: Look) -> Iterator[Text]:
    for one in look.untold[:MOST_UNTOLD]:
        who = f"pid {one.pid}: " if one.pid is not None else ""
        remedy = f" ({one.remedy})" if one.remedy else ""
        yield Text(f"{who}{text.line(one.source)}: {text.line(one.reason + remedy)}", "yellow")
    if len(look.untold) > MOST_UNTOLD:
        yield Text(f"{len(look.untold) - MOST_UNTOLD} more could not be read", style="yellow")


def _clock(look: Look) -> str:
    return time.strftime("%H:%M:%S", time.localtime(look.at))
