"""Loops are found by a script's source, whatever the source is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.stacks.source_loops import MOST_BYTES, Loop, find_loops, loops_around

SCRIPT = """\
def train(loader):
    for epoch in range(3):  # a comment
        for batch in loader:
            if batch:
                step(
                    batch,
                )

            # another one
        else:
            report()
    barrier()

async def serve(queue):
    async for item in queue: work(item)
    while True:
        text = '''
for no in loop:
'''
"""


def test_loops_of_a_script() -> None:
    assert sorted(find_loops(SCRIPT)) == [Loop(2, 11), Loop(3, 7), Loop(15, 15), Loop(16, 19)]


def test_only_loops_around_the_lines_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    around = loops_around(os.getpid(), [(str(script), 6), (str(script), 12)])
    assert sorted(around) == [[str(script), 2, 11], [str(script), 3, 7]]


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "long", "relative", "library"])
def test_what_is_no_readable_script_has_no_loops(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "train.py"
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "long":
        file.write_text(SCRIPT + "#" * MOST_BYTES)
    elif kind == "library":
        file = tmp_path / "site-packages" / "train.py"
        file.parent.mkdir()
    if kind in ("library", "relative"):
        file.write_text(SCRIPT)
    name = "train.py" if kind == "relative" else str(file)
    assert loops_around(os.getpid(), [(name, 6)]) == []


@given(st.text(alphabet="for while:\n \t()[]'\"\\x0#", max_size=200))
def test_any_text_is_survived(source: str) -> None:
    lines = source.count("\n") + 1
    for loop in find_loops(source):
        assert 1 <= loop.first <= loop.last <= lines
