"""The parts of other nodes in the recording of the first one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mgpu_doctor.cluster import part_gatherer
from mgpu_doctor.cluster.engine import Trouble
from mgpu_doctor.cluster.host_channel import HostState, Link
from mgpu_doctor.cluster.host_mirror import HostRefused
from mgpu_doctor.cluster.part_gatherer import SHARES, JointJob, _is_missing
from mgpu_doctor.recording.joint_recordings import Absence
from mgpu_doctor.recording.layout import END, HOSTS, INFO
from tests.support.node_ranks import ShellEngine


def test_what_a_host_says_about_its_recording_becomes_its_part(tmp_path: Path) -> None:
    job = JointJob(tmp_path, "a")
    job.add_host("b")
    job.add_part("b", "recording.json", b'{"host": "b"}', anew=True)
    job.add_part("b", "console/console.log", b"step 1\n", anew=True)
    job.add_part("b", "end.json", b'{"exit_code": 1}', anew=True)
    part = tmp_path / HOSTS / "b"
    assert json.loads((part / INFO).read_text()) == {"host": "b"}
    assert json.loads((part / END).read_text()) == {"exit_code": 1}
    assert (part / "console" / "console.log").read_bytes() == b"step 1\n"
    assert not (tmp_path / INFO).exists()
    assert not (tmp_path / END).exists()
    job.add_host("b")  # after its channel broke


def test_a_host_that_writes_there_itself_is_left_alone(tmp_path: Path) -> None:
    job = JointJob(tmp_path, "a")
    (tmp_path / HOSTS / "b").mkdir(parents=True)
    (tmp_path / HOSTS / "b" / INFO).write_text("{}")
    for host in ("a", "b"):
        with pytest.raises(HostRefused):
            job.add_host(host)


SHELL = ShellEngine(
    {"gone": ("sh", "-c", "echo 'no route\x1b[2J' >&2; exit 255"), "mute": ("sleep", "60")}
)


@pytest.mark.parametrize(
    ("hosts", "own", "answers"),
    [
        (
            "gone,here,own,after",
            "own",
            {"gone": ("gone ended with 255: no route", False), "here": None},
        ),
        ("here,gone,after,own", "own", {}),
        ("here,gone", "own", {}),
        ("here,own", "own", {}),
    ],
)
def test_the_nodes_before_this_one_are_asked_who_reports(
    hosts: str, own: str, answers: dict[str, Absence | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_gatherer, "_find_hosts", lambda _: (tuple(hosts.split(",")), SHELL))
    assert part_gatherer.ask_before(request(own), 2) == answers


def request(own: str) -> part_gatherer.Request:
    return {
        "folder": "-",
        "own": own,
        "node": own,
        "joint": "key",
        "slurm": None,
        "hosts": None,
        "number": 2,
        "patience": 0.0,
    }


def host(name: str, reason: str | None, link: Link = Link.BROKEN) -> HostState:
    trouble = None if reason is None else Trouble(reason, "-")
    return HostState(name, name, link, 1.0, trouble, 0, 0.0)


def test_only_hosts_that_may_have_more_are_missing(tmp_path: Path) -> None:
    (tmp_path / HOSTS / "done").mkdir(parents=True)
    for name in (INFO, END):
        (tmp_path / HOSTS / "done" / name).write_text("{}")
    states = [
        host("done", "its channel ended"),
        host("here", SHARES),
        host("lost", "its channel ended"),
        host("full", "its recording cannot be written here: No space left on device"),
        host("live", None, Link.LIVE),
    ]
    assert [one.name for one in states if _is_missing(tmp_path, one)] == ["lost", "full"]
