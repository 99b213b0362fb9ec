"""One command that reaches several hosts: what it prints, and what a bad host costs the others."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.node.agent_channel import to_lines
from mgpu_probes.outside.node.channel_frames import MAGIC, BadStream, pack_frame

from mgpu_doctor.cluster import host_channel
from mgpu_doctor.cluster.agent_program import program
from mgpu_doctor.cluster.host_channel import Link
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.step_output import (
    MOST_LINE,
    StepOutput,
    TaskBegan,
    TaskEnded,
    TaskText,
    decode_text,
)
from tests.support.host_frames import hello
from tests.support.node_ranks import ShellEngine

TICK = pack_frame("tick", at=1.8e9, cpu=0.1)


def printed(task: int, data: bytes, longest: int = 1024) -> bytes:
    """An agent's data as Slurm prints them for a task: it splits lines that are longer."""
    lines = to_lines(data).splitlines()
    parts = [line[at : at + longest] for line in lines for at in range(0, len(line), longest)]
    return b"".join(b"%02d: %s\n" % (task, part) for part in parts)


def received(output: StepOutput, pieces: Sequence[bytes]) -> dict[int, bytes]:
    """Task -> its data."""
    data: dict[int, bytes] = {}
    for piece in pieces:
        for part in output.feed(piece):
            assert isinstance(part, TaskText)
            data[part.task] = data.get(part.task, b"") + decode_text(part.text)
    return data


@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=2000)), max_size=8),
    st.integers(1, 700),
    st.integers(1, 2000),
)
def test_data_arrive_however_lines_are_split(
    sent: list[tuple[int, bytes]], longest: int, size: int
) -> None:
    text = b"".join(printed(task, data, longest) for task, data in sent)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    expected: dict[int, bytes] = {}
    for task, data in sent:
        expected[task] = expected.get(task, b"") + data
    assert received(StepOutput(), pieces) == expected


def test_no_line_of_an_agent_is_split_by_slurm() -> None:
    assert max(map(len, printed(12345, bytes(5000)).splitlines(keepends=True))) <= 1024


def test_tasks_name_their_nodes_and_their_ends() -> None:
    output = StepOutput()
    lines = b"srun: error: x\n 7: @gpu07\nnoise\n12345678901: AAAA\n7: !137\n7: !x\n"
    assert list(output.feed(lines)) == [
        TaskBegan(7, "gpu07"),
        TaskEnded(7, 137),
        TaskText(7, b""),
    ]
    with pytest.raises(BadStream):
        list(output.feed(b"a" * (MOST_LINE + 1)))


class Steps(ShellEngine):
    """Plays steps: a step with a host in `bad` fails with a text. `steps`: the hosts of each."""

    most_alone = 1

    def __init__(self, folder: Path, bad: Sequence[str] = (), text: str = "no") -> None:
        super().__init__({host: self._fail(text) for host in bad})
        self.steps: list[tuple[str, ...]] = []
        self.ends: dict[str, bytes] = {}
        """Host -> what its task prints instead of more."""
        self._folder = folder
        self._bad = bad
        self._text = text

    def step_command(self, hosts: Sequence[str], remote: str) -> list[str]:
        self.steps.append(tuple(hosts))
        assert remote.startswith("exec /bin/sh -c ")
        if any(host in self._bad for host in hosts):
            return list(self._fail(self._text))
        output = self._folder / f"step-{len(self.steps)}"
        output.write_bytes(b"".join(self._task(*task) for task in enumerate(hosts)))
        return ["/bin/sh", "-c", 'cat "$0"; cat > "$0.asked"; :', str(output)]

    def asked(self, step: int) -> list[dict[str, Any]]:
        """The requests that went to a step so far."""
        path = self._folder / f"step-{step}.asked"
        sent = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in sent[len(program()) :].splitlines()]

    def _task(self, task: int, host: str) -> bytes:
        data = MAGIC + hello(host, boot=host) + TICK
        end = b"%02d: %s\n" % (task, self.ends[host]) if host in self.ends else b""
        return b"%02d: @%s\n" % (task, host.encode()) + printed(task, data) + end

    @staticmethod
    def _fail(text: str) -> tuple[str, ...]:
        return "/bin/sh", "-c", f"echo {shlex.quote(text)} >&2; exit 1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(host_channel, "FIRST_RETRY", 0.01)


def links_of(fleet: Fleet) -> dict[str, Link]:
    return {state.name: state.link for state in fleet.states()}


def poll_until(fleet: Fleet, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, fleet.states()
        fleet.poll(0.05)


HOSTS = tuple("abcdefgh")
REST = tuple(host for host in HOSTS if host != "f")


def test_one_step_reaches_all_hosts(tmp_path: Path) -> None:
    engine = Steps(tmp_path)
    with Fleet(HOSTS, engine) as fleet:
        poll_until(fleet, lambda: set(links_of(fleet).values()) == {Link.LIVE})
        assert [state.node for state in fleet.states()] == list(HOSTS)
        (command,) = fleet._commands
        child = command.child
    assert engine.steps == [HOSTS]
    assert child is not None
    assert child.poll() is not None


def test_equal_requests_to_hosts_of_a_step_are_sent_once(tmp_path: Path) -> None:
    engine = Steps(tmp_path)
    engine.ends["h"] = b"!1"
    with Fleet(HOSTS, engine, 0.5) as fleet:
        poll_until(fleet, lambda: fleet.states()[-1].link is not Link.OPENING)
        for channel in fleet.channels:
            channel.send({"stacks": 0})
        for channel in fleet.channels[:2]:
            channel.send({"stacks": 1})
        poll_until(fleet, lambda: len(engine.asked(1)) >= 4)
    first, *later = engine.asked(1)
    assert first == {"every": 0.5, "boxes": {}, "files": {}, "joint": None}
    clocks = [request for request in later if "clock" in request]
    assert len(clocks) <= 2  # one for each group that greeted at a time
    assert {"stacks": 0} in later
    assert {"agent": ["a", "b"], "stacks": 1} in later


def test_a_host_that_prevents_a_step_is_found_by_halves(tmp_path: Path) -> None:
    engine = Steps(tmp_path, bad=("f",))
    with Fleet(HOSTS, engine) as fleet:
        fleet.wait_until_read(30)
        assert [host for host, link in links_of(fleet).items() if link is Link.LIVE] == [*REST]
        trouble = fleet.states()[HOSTS.index("f")].trouble
    assert trouble is not None
    assert trouble.reason == "f ended with 1: no"
    assert engine.steps[:4] == [HOSTS, HOSTS[:4], HOSTS[4:], HOSTS[4:6]]


def test_a_host_that_is_named_leaves_the_others_together(tmp_path: Path) -> None:
    text = "Task launch failed on node f: Timed out\nb: task 1: Killed\nc: tasks 2-7: Killed"
    engine = Steps(tmp_path, bad=("f",), text=text)
    with Fleet(HOSTS, engine) as fleet:
        fleet.wait_until_read(30)
        assert [host for host, link in links_of(fleet).items() if link is Link.LIVE] == [*REST]
        assert links_of(fleet)["f"] is Link.BROKEN
    assert engine.steps == [HOSTS, REST]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (b"!127", "c ended with 127"),
        (b"A", "no answer"),
        (b"AAAAA===", "what it sends is not understood"),
        (b"////////", "what it sends is not understood"),
    ],
)
def test_a_bad_agent_costs_only_itself(tmp_path: Path, end: bytes, reason: str) -> None:
    engine = Steps(tmp_path)
    engine.ends["c"] = end
    with Fleet(HOSTS, engine) as fleet:
        poll_until(fleet, lambda: Link.OPENING not in links_of(fleet).values())
        links = links_of(fleet)
        step = fleet._channels[0].command
        assert [links.pop(host) for host in HOSTS if host != "c"] == [Link.LIVE] * 7
        assert {channel.command for channel in fleet._channels if channel.host != "c"} == {step}
        trouble = fleet.states()[2].trouble
        assert trouble is None if reason == "no answer" else trouble is not None
        if trouble is not None:
            assert trouble.reason.startswith(reason)


def test_a_node_cannot_claim_to_be_another(tmp_path: Path) -> None:
    engine = Steps(tmp_path)
    engine.ends["a"] = b"@b\n00: " + to_lines(MAGIC + hello("z")).strip()
    with Fleet(HOSTS, engine) as fleet:
        poll_until(fleet, lambda: links_of(fleet)["h"] is Link.LIVE)
        nodes = {state.name: state.node for state in fleet.states()}
    assert "z" not in nodes.values()
