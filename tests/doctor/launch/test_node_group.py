"""Who reports about a job with disks of its nodes' own, if nodes before this one are lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mgpu_doctor.launch import node_parts
from mgpu_doctor.launch.job_nodes import JobNodes
from mgpu_doctor.launch.node_group import MOST_ASKING, NodeGroup
from mgpu_doctor.launch.observe import Observed
from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording.layout import END

SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2" >> "$ASKED"
case $2 in
gone*) echo "ssh: connect to host $2 port 22: No route to host" >&2; exit 255 ;;
killed*) exit 76 ;;
esac
exec /bin/sh -c "$3"
"""
OWN = os.uname().nodename
NO_ROUTE = "ssh fails with 'No route to host ({} port 22)'"
JOIN = "copy the recordings of the other nodes here and run `mgpu-doctor diagnose {} RECORDING…`."


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which `ssh` notes the hosts that it was to reach."""
    monkeypatch.setattr(node_parts, "FIRST", 0.0)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    return tmp_path / "asked"


def finish(
    folder: Path, hosts: str, *, number: int = 2, code: int = 1, stopped: bool = False
) -> bool:
    """Whether the node with this number, of five, reports about the job, which ended there with
    this code. `stopped`: a signal asked it to end."""
    nodes = JobNodes("key", 5, 5, first=False, number=number, tasks=5)
    recording = RunRecording.begin(folder, {}, nodes)
    recording.finish(exit_code=code, signal=None, ended=1.0)
    group = NodeGroup(nodes, hosts)
    return group.finish(
        Observed(folder, code, 60.0, leads=False, asked=stopped), folder, quiet=False
    )


def test_the_lowest_node_that_is_left_reports(
    tmp_path: Path, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    assert finish(folder, f"gone1,gone2,{OWN},here,gone3")
    lost = {f"host {name}": NO_ROUTE.format(name) for name in ("gone1", "gone2")}
    here = {"2 other nodes": "nothing that was recorded there is here"}
    end = json.loads((folder / END).read_text())
    assert end["unseen"] == lost | here
    assert end["unanswered"] == [*lost]
    first, second = capsys.readouterr().err.splitlines()
    silent = "no mgpu-doctor answers on hosts gone1 and gone2, the first 2 nodes"
    assert first == f"mgpu-doctor: {silent}: this node reports."
    assert second.endswith(
        f"2 other nodes: nothing that was recorded there is here. Only what is in {folder} is "
        f"examined. To examine all of it, {JOIN.format(folder)}"
    )
    assert sorted(asked.read_text().split()) == ["gone1", "gone2"]


@pytest.mark.usefixtures("asked")
def test_a_node_whose_processes_were_killed_reports_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its machine answers."""
    folder = tmp_path / "r"
    assert finish(folder, f"killed,gone,{OWN},here,here")
    end = json.loads((folder / END).read_text())
    assert end["unseen"]["host killed"] == "the mgpu-doctor there was killed"
    assert end["unanswered"] == ["host gone"]
    assert "no mgpu-doctor answers on hosts killed and gone, the first 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hosts", "speaker"),
    [
        (f"gone1,here,{OWN}", "no mgpu-doctor answers on host gone1, the first node: here"),
        (f"here,gone1,{OWN}", "the first node"),
        (f"{OWN},gone1,gone2", "the first node"),
        ("gone1,gone2", "the first node"),
    ],
)
def test_any_other_node_names_the_one_that_reports(
    hosts: str, speaker: str, tmp_path: Path, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    assert not finish(folder, hosts)
    assert capsys.readouterr().err == (
        f"mgpu-doctor: node 3 of 5 has ended; {speaker} prints the diagnosis; the recording is "
        f"{folder}. If it does not, {JOIN.format(folder)}\n"
    )
    assert asked.exists() == (hosts.endswith(f",{OWN}"))


@pytest.mark.parametrize(
    ("number", "code", "stopped"), [(2, 0, False), (2, 1, True), (MOST_ASKING + 1, 1, False)]
)
def test_nobody_is_asked(
    number: int, code: int, *, stopped: bool, tmp_path: Path, asked: Path
) -> None:
    """After a job that ended well, or was to end at once, or by the many nodes that come later."""
    hosts = ",".join([*(f"gone{place}" for place in range(number)), OWN])
    assert not finish(tmp_path / "r", hosts, number=number, code=code, stopped=stopped)
    assert not asked.exists()
