"""A job's command in few words: the script and its arguments, without interpreter and launcher."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.placeholders import MACHINE
from mgpu_doctor.report import text

LAUNCHERS = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
    }
)
"""Modules that start the script that is named after them."""
MODULE = ("-m", "--module")
LEFT_OUT = "…"
LEAST_NAME = 4
"""Characters that are left of a script's name where its arguments need the room."""


def find_script(command: Sequence[str]) -> tuple[str, ...]:
    """The script or module that a command trains with, without its folder, and its arguments; the
    whole command without its program's folder if it names none."""
    for place, word in enumerate(command):
        if word.endswith(".py"):
            return (os.path.basename(word), *command[place + 1 :])
        follows = command[place + 1] if place + 1 < len(command) else ""
        if word in MODULE and follows and follows not in LAUNCHERS:
            return (follows, *command[place + 2 :])
    return (os.path.basename(command[0]), *command[1:]) if command else ()


def name_job(case: Case, width: int) -> str:
    """`train.py --lr 0.1 (pid 4711)`: a job in at most `width` characters."""
    kind = {"process": "pid", MACHINE: "host"}.get(case.subject.kind, "recording")
    known = f"{kind} {text.line(case.job.id)}"
    script = text.line(shlex.join(find_script(case.job.command)))
    room = width - len(known) - 3
    return f"{text.cut(script, room)} ({known})" if script and room > 8 else known


def shorten_commands(commands: Sequence[Sequence[str]], width: int) -> list[str]:
    """Each command in at most `width` characters. Where it is longer, the arguments that all
    commands with the same script share are left out."""
    scripts = [find_script(command) for command in commands]
    peers = Counter(script[0] for script in scripts if script)
    shared = Counter((script[0], part) for script in scripts for part in set(_arguments(script)))
    return [_shorten(script, peers, shared, width) for script in scripts]


def _shorten(
    script: tuple[str, ...],
    peers: Counter[str],
    shared: Counter[tuple[str, tuple[str, ...]]],
    width: int,
) -> str:
    whole = text.line(shlex.join(script))
    if len(whole) <= width:
        return whole
    name = script[0] if script[0].endswith(".py") else script[0].rpartition(".")[2]
    everything = _arguments(script)
    own = [part for part in everything if shared[script[0], part] < peers[script[0]]]
    left_out = f"{LEFT_OUT} " if own and own != everything else ""
    words = text.line(" ".join(shlex.quote(word) for part in own or everything for word in part))
    title = text.line(shlex.quote(name))
    for shown in (f"{title} {left_out}", f"{title[: max(LEAST_NAME, width - len(words) - 2)]}… "):
        if len(shown) + len(words) <= width:
            return f"{shown}{words}"
    return text.cut(f"{title} {left_out}{words}", width)


def _arguments(script: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The arguments, each option together with the value that follows it."""
    parts: list[tuple[str, ...]] = []
    for word in script[1:]:
        opens = parts and len(parts[-1]) == 1 and parts[-1][0].startswith("-")
        if opens and "=" not in parts[-1][0] and not word.startswith("-"):
            parts[-1] = (*parts[-1], word)
        else:
            parts.append((word,))
    return parts
