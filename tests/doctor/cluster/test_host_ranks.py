"""Ranks of hosts that are asked for a trace through a real agent, and the traces that arrive."""

from __future__ import annotations

import gzip
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mgpu_probes.outside.node.channel_frames import BadStream, pack_frame
from mgpu_probes.outside.stacks.rank_replies import NoReply, RankProcess, RankRequest
from mgpu_probes.outside.traces.probe_tracing import EndedTrace, trace_ranks
from mgpu_probes.outside.traces.trace_requests import TraceRequest

from mgpu_doctor.cluster.host_channel import Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.host_ranks import HostRanks
from mgpu_doctor.cluster.host_request import HostRequest, NewFile
from tests.support.gathered_fleets import polled
from tests.support.host_frames import HOST, HostFrames, receive
from tests.support.node_ranks import NodeRank, ShellEngine, node_rank
from tests.support.traced_ranks import TracedRank

DONE = {"state": "done", "steps": 3}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeRank]]:
    """Two ranks of one job."""
    with ExitStack() as stack:
        started = [stack.enter_context(node_rank(tmp_path / "boxes", rank)) for rank in range(2)]
        for node in started:
            node.write(5)
        yield started


@pytest.fixture
def fleet(nodes: list[NodeRank]) -> Iterator[Fleet]:
    assert nodes
    with Fleet(["here"], ShellEngine(), 0.05) as fleet:
        fleet.wait_until_read(30)
        yield fleet


def answering(stack: ExitStack, node: NodeRank, **ends: object) -> TracedRank:
    rank = TracedRank(node.box, ends)
    stack.callback(rank.close)
    return rank


def ranks_of(fleet: Fleet, nodes: list[NodeRank]) -> HostRanks:
    """Other jobs of this machine are found, too."""
    (job,) = (
        job for job in fleet.jobs if list(job.folder.glob(f"hosts/*/boxes/{nodes[0].box.name}"))
    )
    return HostRanks(fleet, job)


def test_all_ranks_trace_the_same_steps_and_nothing_is_left_there(
    fleet: Fleet, nodes: list[NodeRank], tmp_path: Path
) -> None:
    (folder := tmp_path / "traces").mkdir()
    told: list[str] = []
    with ExitStack() as stack:
        asked = [answering(stack, node, rank=n, **DONE) for n, node in enumerate(nodes)]
        taken = trace_ranks(ranks_of(fleet, nodes), TraceRequest(steps=3), folder, told.append)
    began = [word for rank in asked for word in rank.asked if word.startswith("trace_begin")]
    assert began == ["trace_begin?at=42&steps=3&milliseconds=30000"] * 2
    assert [(one.rank, one.path, one.why) for one in taken] == [
        (0, folder / "rank0.json.gz", None),
        (1, folder / "rank1.json.gz", None),
    ]
    assert {one.host for one in taken} == {os.uname().nodename}
    assert [gzip.decompress(path.read_bytes()) for path in sorted(folder.iterdir())] == [b"{}"] * 2
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert not list(nodes[0].box.parent.glob("*.trace.json"))
    assert any(sentence.startswith("fetching the traces") for sentence in told)


def test_if_the_fetching_is_interrupted_nothing_is_left_there_or_here(
    fleet: Fleet, nodes: list[NodeRank], tmp_path: Path
) -> None:
    (folder := tmp_path / "traces").mkdir()

    def interrupt(sentence: str) -> None:
        if sentence.startswith("fetching"):
            raise KeyboardInterrupt

    with ExitStack() as stack:
        for number, node in enumerate(nodes):
            answering(stack, node, rank=number, **DONE)
        with pytest.raises(KeyboardInterrupt):
            trace_ranks(ranks_of(fleet, nodes), TraceRequest(steps=3), folder, interrupt)
        assert not list(nodes[0].box.parent.glob("*.trace.json"))
    assert not list(folder.iterdir())


def test_a_large_trace_arrives_whole(fleet: Fleet, nodes: list[NodeRank], tmp_path: Path) -> None:
    """It does not fit into a frame, packed or not."""
    content = random.Random(0).randbytes(3 << 20)
    nodes[0].box.with_suffix(".trace.json").write_bytes(content)
    with ExitStack() as stack:
        for node in nodes:
            answering(stack, node)
        ranks = ranks_of(fleet, nodes)
    first, second = sorted(ranks.processes)
    ended = {
        first: EndedTrace(0, None, is_written=True),
        second: EndedTrace(1, None, is_written=True),
    }
    whole, missing = ranks.collect(ended, tmp_path, lambda _: None)
    assert whole.path is not None
    assert gzip.decompress(whole.path.read_bytes()) == content
    assert (missing.path, missing.why) == (
        None,
        "its trace did not arrive (No such file or directory)",
    )
    assert sorted(path.name for path in tmp_path.glob("*.gz")) == ["rank0.json.gz"]


def test_who_has_ended_is_not_asked_and_a_broken_channel_is_no_answer(
    fleet: Fleet, nodes: list[NodeRank]
) -> None:
    with ExitStack() as stack:
        answering(stack, nodes[0])
        nodes[1].process.kill()
        nodes[1].process.wait()
        ranks = ranks_of(fleet, nodes)
        assert [rank.pid for rank in ranks.processes] == [nodes[0].process.pid]
        hello = fleet.channels[0].mirror.hello
        assert hello is not None
        os.kill(hello.pid, signal.SIGKILL)
        broken = ranks.ask(RankRequest("trace_state", 0.5), ranks.processes)
        assert [reply.failure for reply in broken.values()] == [NoReply.LATE]
        polled(fleet, lambda: fleet.states()[0].link is Link.LIVE)
        again = ranks.ask(RankRequest("trace_state"), ranks.processes)
        assert [reply.failure for reply in again.values()] == [None]


def test_an_agent_passes_nothing_else_on(fleet: Fleet, nodes: list[NodeRank]) -> None:
    with ExitStack() as stack:
        rank = answering(stack, nodes[0])
        ranks = ranks_of(fleet, nodes)
        ranks.ask(RankRequest("anything_else", 0.1), ranks.processes)
    assert "anything_else" not in rank.asked


RANK = RankProcess(101, "node-a", "0.a")


def reply(number: int = 1, box: int = 0, body: bytes = b"", **changed: object) -> bytes:
    facts: dict[str, object] = {"failure": None, "why": "", "last": False}
    return pack_frame("reply", body, id=number, box=box, **facts | changed)


@pytest.mark.parametrize(
    "frames",
    [
        (reply(box=1),),
        (reply(body=b"123456789"),),
        (reply(body=b"12345"), reply(body=b"6789")),
        (reply(failure="tired"),),
        (reply(last=1),),
    ],
)
def test_replies_that_no_agent_sends_are_refused(tmp_path: Path, frames: tuple[bytes, ...]) -> None:
    mirror = HostFrames().mirror
    mirror.expect(HostRequest({0: RANK}, {RANK: NewFile(tmp_path / "trace")}, most=8))
    receive(mirror, HOST)
    with pytest.raises(BadStream):
        receive(mirror, *frames)


def test_late_replies_and_what_cannot_be_written_harm_nothing(tmp_path: Path) -> None:
    mirror = HostFrames().mirror
    (tmp_path / "there").write_text("mine")
    request = HostRequest({0: RANK}, {RANK: NewFile(tmp_path / "there")}, most=8)
    mirror.expect(request)
    receive(mirror, HOST, reply(number=9, body=b"x" * 99), reply(body=b"1"), reply(last=True))
    assert request.over
    assert request.failed[RANK].why == "it cannot be written here: File exists"
    assert (tmp_path / "there").read_text() == "mine"
    receive(mirror, reply(body=b"after the end"))
