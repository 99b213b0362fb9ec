"""The files of a recording as an agent sends them: in pieces, and the ends last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mgpu_probes.outside.node.channel_frames import MAGIC, MOST_BODY, FrameSplitter
from mgpu_probes.outside.node.file_stream import MOST_GROWN, FileStream


def read(stream: FileStream, ends: list[str] | None = None) -> Iterator[tuple[str, int, int]]:
    """Name, offset and length of each part that is sent. `ends`: None: those that are there."""
    frames = b"".join(stream.poll(0, stream.list_ends() if ends is None else ends))
    for frame in FrameSplitter().feed(MAGIC + frames):
        facts = json.loads(frame.head)
        yield facts["name"], facts["at"], len(frame.body)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """The part of a host with two tasks, after a hang."""
    for folder in ("flight", "tasks/1/console", "tasks/x"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("recording.json", "end.json", "tasks/1/recording.json", "tasks/1/end.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "looks.jsonl").write_text('{"at": 1}\n')
    (tmp_path / "tasks/1/console/stderr.log").write_text("step 1\n")
    (tmp_path / "flight/12.json").write_bytes(b"x" * (MOST_BODY + 5))
    (tmp_path / "flight/notes.json").write_text("{}")
    return tmp_path


def test_a_whole_part_has_what_a_hang_left_and_the_tasks(part: Path) -> None:
    sent = list(read(FileStream(str(part), "", whole=True)))
    assert sent == [
        ("recording.json", 0, 2),
        ("looks.jsonl", 0, 10),
        ("flight/12.json", 0, MOST_BODY),
        ("flight/12.json", MOST_BODY, 5),
        ("tasks/1/recording.json", 0, 2),
        ("tasks/1/console/stderr.log", 0, 7),
        ("end.json", 0, 2),
        ("tasks/1/end.json", 0, 2),
    ]
    names = [name for name, _, _ in read(FileStream(str(part), ""))]
    assert names == ["recording.json", "end.json"]


def test_an_end_waits_until_all_else_was_sent(part: Path) -> None:
    (part / "flight/12.json").write_bytes(b"x" * 5 * MOST_BODY)
    stream = FileStream(str(part), "", whole=True)
    assert "end.json" not in {name for name, _, _ in read(stream)}
    assert list(read(stream, ends=[])) == [("flight/12.json", 4 * MOST_BODY, MOST_BODY)]
    assert [name for name, _, _ in read(stream)] == ["end.json", "tasks/1/end.json"]


def test_a_dump_that_no_reader_would_take_is_not_sent(part: Path) -> None:
    with (part / "flight/12.json").open("r+b") as file:
        file.truncate(MOST_GROWN + 1)
    sent = {name for name, _, _ in read(FileStream(str(part), "", whole=True))}
    assert "flight/12.json" not in sent
    assert "end.json" in sent
