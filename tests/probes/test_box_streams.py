"""A box that is sent as frames arrives as it is; what was lost on the way is counted exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.boxfile import Sizes
from mgpu_probes.outside.node.box_stream import BoxStream, NoBox
from mgpu_probes.outside.node.channel_frames import MAGIC, FrameSplitter

from mgpu_doctor.cluster.agent_messages import NewChunk, NewHeader, NewRecords, parse_message
from mgpu_doctor.cluster.box_mirror import BoxMirror
from mgpu_doctor.recording.box import BoxReader, read_box
from tests.support.boxes import finished, overwrite, write_steps


def send(stream: BoxStream, mirror: BoxMirror, *, over: bool = False) -> int:
    """Sends what is new; the number of bytes."""
    data = MAGIC + b"".join(stream.poll(0, over=over))
    for frame in FrameSplitter().feed(data):
        message = parse_message(frame)
        if isinstance(message, NewRecords):
            mirror.add_records(message.ring, message.first, frame.body)
        elif isinstance(message, NewChunk):
            mirror.add_chunk(message.at, frame.body)
        else:
            assert isinstance(message, NewHeader)
            mirror.add_header(frame.body)
    return len(data) - len(MAGIC)


def mirror_of(stream: BoxStream, folder: Path) -> BoxMirror:
    return BoxMirror(folder / "copy.box", "/a.box", stream.first_header)


def test_a_box_arrives_as_it_is(tmp_path: Path) -> None:
    path = finished(tmp_path / "boxes")
    stream = BoxStream(str(path))
    mirror = mirror_of(stream, tmp_path)
    send(stream, mirror)
    sent, arrived = path.read_bytes(), mirror.path.read_bytes()
    boot = slice(104, 120)  # which a copy does not have: it names no process of its reader
    assert arrived[boot] == bytes(16)
    assert arrived[:104] + sent[boot] + arrived[120:] == sent
    assert (mirror.lost, send(stream, mirror)) == (0, 0)


def test_it_is_hidden_until_its_header_is_there(tmp_path: Path) -> None:
    stream = BoxStream(str(finished(tmp_path / "boxes")))
    mirror = mirror_of(stream, tmp_path)
    *frames, header = list(stream.poll(0))
    assert b'"header"' in header
    assert len(frames) > 3
    assert not mirror.path.exists()


def test_only_what_is_new_is_sent(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "boxes", rank=0, world_size=1)
    stream = BoxStream(writer.path)
    mirror = mirror_of(stream, tmp_path)
    write_steps(writer, 100)
    send(stream, mirror)
    with BoxReader(mirror.path) as reader:
        assert len(reader.poll().steps) == 100
        write_steps(writer, 3, first=100)
        sent = send(stream, mirror)
        assert sent < layout.HEADER_SIZE + 3 * layout.STEP_SIZE + 200
        assert reader.poll().steps["seq"].tolist() == list(range(1, 104))
    writer.close()


def test_records_that_were_overwritten_meanwhile_are_counted(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "boxes", rank=0, world_size=1, sizes=Sizes(steps=64))
    write_steps(writer, 200)
    stream = BoxStream(writer.path)
    mirror = mirror_of(stream, tmp_path)
    send(stream, mirror)
    assert mirror.lost == 0  # the ring had forgotten these before anyone listened
    write_steps(writer, 100, first=200)
    send(stream, mirror)
    assert mirror.lost == 100 - 64
    copy = read_box(mirror.path)
    assert copy.steps["seq"].tolist() == list(range(237, 301))
    assert copy.lost == 0
    writer.close()


def test_another_stream_continues_after_the_cursors(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "boxes", rank=0, world_size=1, sizes=Sizes(steps=64))
    first = BoxStream(writer.path)
    mirror = mirror_of(first, tmp_path)
    write_steps(writer, 10)
    send(first, mirror)
    first.close()
    write_steps(writer, 20, first=10)
    second = BoxStream(writer.path)
    assert second.identity == first.identity
    second.resume(mirror.cursors)
    send(second, mirror)
    assert (mirror.cursors["steps"], mirror.lost) == (30, 0)
    assert read_box(mirror.path).steps["seq"].tolist() == list(range(1, 31))
    writer.close()


def test_a_damaged_record_is_lost_and_the_others_are_not(tmp_path: Path) -> None:
    path = finished(tmp_path / "boxes")
    overwrite(path, layout.areas()["steps"] + 9 * layout.STEP_SIZE + 40, b"\x55" * 8)
    stream = BoxStream(str(path))
    mirror = mirror_of(stream, tmp_path)
    send(stream, mirror)
    copy = read_box(mirror.path)
    assert copy.steps["seq"].tolist() == [*range(1, 10), *range(11, 21)]
    assert copy.lost == 1


def test_the_record_that_a_killed_rank_did_not_announce(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "boxes", rank=0, world_size=1)
    write_steps(writer, 5)
    writer.words[layout.STEP_CURSOR // 8] = 4  # killed between the two stores
    stream = BoxStream(writer.path)
    mirror = mirror_of(stream, tmp_path)
    send(stream, mirror)
    assert len(read_box(mirror.path).steps) == 4
    send(stream, mirror, over=True)
    assert len(read_box(mirror.path).steps) == 5
    writer.close()


def test_what_is_no_box_is_not_sent(tmp_path: Path) -> None:
    secret = tmp_path / "secret.box"
    secret.write_bytes(b"x" * 10_000)
    link = tmp_path / "link.box"
    link.symlink_to(finished(tmp_path / "boxes"))
    with pytest.raises(NoBox):
        BoxStream(str(secret))
    with pytest.raises(OSError, match="symbolic"):
        BoxStream(str(link))
    with pytest.raises(NoBox):
        BoxStream("/dev/null")
