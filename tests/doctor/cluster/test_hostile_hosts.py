"""What a host sends is untrusted: it writes into its own files, within bounds, or not at all."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.inprocess import layout
from mgpu_probes.outside.node.channel_frames import (
    LINE_END,
    MAGIC,
    MOST_BANNER,
    MOST_FRAME,
    BadStream,
    FrameSplitter,
    pack_frame,
)

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.cluster.agent_messages import Hello
from mgpu_doctor.cluster.engine import Trouble
from mgpu_doctor.cluster.host_mirror import HostMirror, HostRefused
from tests.support.boxes import finished
from tests.support.host_frames import HOST, HostFrames, box_frame, job_frame, receive


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostMirror:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return HostFrames().mirror


@pytest.fixture
def header(tmp_path: Path) -> bytes:
    return finished(tmp_path / "boxes").read_bytes()[: layout.HEADER_SIZE]


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 9))
def test_frames_arrive_whatever_their_pieces(bodies: list[bytes], size: int) -> None:
    data = b"motd\n" + MAGIC + b"".join(pack_frame("tick", body) + LINE_END for body in bodies)
    splitter = FrameSplitter()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [frame.body for piece in pieces for frame in splitter.feed(piece)] == bodies


@given(st.binary(max_size=300))
def test_noise_is_refused_or_incomplete(noise: bytes) -> None:
    try:
        for frame in FrameSplitter().feed(MAGIC + noise):
            assert len(frame.head) + len(frame.body) <= len(noise)
    except BadStream:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"a" * (MOST_BANNER + 1),
        MAGIC + (MOST_FRAME + 1).to_bytes(4, "little"),
        MAGIC + b"\x01\0\0\0",
        MAGIC + b"\x04\0\0\0\xff\0ab",
    ],
)
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    with pytest.raises(BadStream):
        list(FrameSplitter().feed(data))


@pytest.mark.parametrize(
    "frame",
    [
        pack_frame("header", b"", box=0),
        pack_frame("unheard-of"),
        pack_frame("box", b"", box=0, job=0, path="x/..", identity="1"),
        pack_frame("box", b"", box=0, job=0, path="/r/.x.box", identity="1"),
        pack_frame("box", b"", box=0, job=0, path="/r/a\n.box", identity="1"),
        pack_frame("file", b"{}", job=0, name="../../.bashrc", mark="1", at=0),
        pack_frame("file", b"{}", job=0, name="host.jsonl", mark="1", at=1 << 40),
        pack_frame("exit", job=0, line={"pid": -1}),
        pack_frame("hello", host="other", boot=None, pid=1, python="3", user="me", at=0.0),
        pack_frame("job", b"[" * 100_000),
        pack_frame("job", b"null"),
        pack_frame("host", b"[]", jobs=[0]),
        pack_frame("host", b'{"at": 1}', jobs=[77]),
    ],
)
def test_what_no_agent_sends_is_refused(mirror: HostMirror, tmp_path: Path, frame: bytes) -> None:
    receive(mirror, HOST, job_frame())
    with pytest.raises(BadStream):
        receive(mirror, frame)
    assert files_below(tmp_path) == set()


def test_it_must_greet_first(mirror: HostMirror) -> None:
    with pytest.raises(BadStream):
        receive(mirror, job_frame())


def bad_parts() -> Iterator[bytes]:
    yield pack_frame("records", b"x" * 127, box=0, ring="steps", first=1)
    yield pack_frame("records", b"", box=0, ring="steps", first=1)
    yield pack_frame("records", b"x" * 128, box=0, ring="stairs", first=1)
    yield pack_frame("records", b"x" * 128, box=0, ring="steps", first=0)
    yield pack_frame("chunk", zlib.compress(b"x"), box=0, at=0)
    yield pack_frame("chunk", zlib.compress(b"x"), box=0, at=(1 << 32) - 1)
    yield pack_frame("chunk", b"not compressed", box=0, at=8192)
    yield pack_frame("header", b"short", box=0)
    yield pack_frame("header", zlib.compress(b"x" * layout.HEADER_SIZE), box=0)
    yield pack_frame("header", zlib.compress(layout.MAGIC), box=0)


@pytest.mark.parametrize("frame", [*bad_parts()])
def test_nothing_is_written_outside_of_a_box(
    mirror: HostMirror, header: bytes, frame: bytes
) -> None:
    receive(mirror, HOST, job_frame(), box_frame(header))
    with pytest.raises(BadStream):
        receive(mirror, frame)


def test_a_small_frame_cannot_unpack_to_much(
    mirror: HostMirror, header: bytes, tmp_path: Path
) -> None:
    bomb = zlib.compress(b"\0" * (64 << 20), 9)
    receive(mirror, HOST, job_frame(), box_frame(header))
    receive(mirror, pack_frame("chunk", bomb, box=0, at=layout.HEADER_SIZE))
    copies = [path for path in tmp_path.rglob(".*.tmp") if path.is_file()]
    assert [path.stat().st_size for path in copies] == [layout.areas()["end"]]


def test_a_header_that_claims_any_size_is_refused(
    mirror: HostMirror, header: bytes, tmp_path: Path
) -> None:
    """And nothing else: the other boxes of its host are read."""
    at = 16 + 4 * 6  # the number of steps
    bad = header[:at] + b"\xff" * 4 + header[at + 4 :]
    receive(mirror, HOST, job_frame(), box_frame(bad))
    receive(mirror, pack_frame("header", zlib.compress(bad), box=0))
    assert list(mirror.refused.values()) == ["it says that it holds 4294967295 steps"]
    receive(mirror, box_frame(header, number=1, name="b.7.0.box"))
    receive(mirror, pack_frame("header", zlib.compress(header), box=1))
    copies = [path.name for path in (tmp_path / "home").rglob("*.box")]
    assert copies == ["b.7.0.box"]


def test_a_box_names_no_process_of_its_reader(mirror: HostMirror, header: bytes) -> None:
    """Even one that claims to be of this machine, this boot and a process of this user."""
    receive(mirror, HOST, job_frame(), box_frame(header))
    receive(mirror, pack_frame("header", zlib.compress(header), box=0))
    (job,) = {id(job): job for job in mirror._jobs.values()}.values()
    (rank,) = load_recording(job.folder).ranks
    assert (rank.pid, rank.host) == (os.getpid(), os.uname().nodename)
    assert not rank.is_here


def test_a_part_that_does_not_follow_the_last_one_is_refused(
    mirror: HostMirror, header: bytes
) -> None:
    receive(mirror, HOST, job_frame(), box_frame(header))
    receive(mirror, pack_frame("recording", job=0, path="/r"))
    receive(mirror, pack_frame("file", b"abc\n", job=0, name="host.jsonl", mark="1", at=0))
    with pytest.raises(BadStream):
        receive(mirror, pack_frame("file", b"abc\n", job=0, name="host.jsonl", mark="1", at=5))


def test_a_host_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    def refuse(hello: Hello) -> None:
        raise HostRefused(Trouble(f"{hello.host} again", "name it once"))

    with pytest.raises(HostRefused):
        receive(HostFrames(admit=refuse).mirror, HOST, job_frame())
    assert files_below(tmp_path) == set()


@pytest.mark.parametrize(
    "body",
    [
        b'{"at":1.0}',
        b'{"at":1.0,"world_size":"x","processes":[{}],"stacks":[{"pid":1}]}',
        b'{"at":1.0,"processes":null,"stacks":{},"loops":7}',
    ],
)
def test_stacks_count_only_as_far_as_they_can_be_read(
    body: bytes, header: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    frames = HostFrames()
    receive(frames.mirror, HOST, job_frame(), box_frame(header), pack_frame("stacks", body, job=0))
    (job,) = frames.jobs.values()
    assert job.join_snapshots()
    (snapshot,) = load_recording(job.folder).job_snapshots
    assert (snapshot.processes, snapshot.stacks) == ((), ())
