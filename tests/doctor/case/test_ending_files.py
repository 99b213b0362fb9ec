"""`ending.json` is untrusted: what a probe wrote is read back, and nonsense does no harm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mgpu_probes.outside.exit_evidence import ExitEvidence

from mgpu_doctor.case.ending_gaps import read_endings
from mgpu_doctor.case.ending_records import MOST_KILLS, MOST_PROCESSES, ending_of
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.recording import layout
from tests.support.machine_files import MIB, process, version_2, write
from tests.support.recordings import HEALTHY, recording


def host(folder: Path, content: object, name: str = "node") -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    write(folder, f"{name}/{layout.ENDING}", text)
    return folder / name


def test_what_the_probe_wrote_is_read_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "proc/self/cgroup", "0::/jobs\n")
    write(root, "proc/vmstat", "oom_kill 3\n")
    write(root, "log", "")
    version_2(root, "/jobs", limit=str(64 * MIB))
    process(root, 100, files=7, parent=99)
    endings = ExitEvidence({"cwd": str(tmp_path)}, root, log="log")
    endings.poll([100])
    version_2(root, "/jobs", limit=str(64 * MIB), killed=1, used=64 * MIB)
    write(root, "proc/vmstat", "oom_kill 5\n")
    endings.poll([])
    (told,), unread = read_endings([host(tmp_path, endings.evidence())], root=tmp_path)
    assert unread == ()
    assert (told.machine_kills, told.log_trouble, told.own_pids) == (2, None, False)
    (group,) = told.groups
    assert (group.killed, group.now.limit, group.now.used) == (1, 64 * MIB, 64 * MIB)
    assert group.at is not None
    assert told.since is not None
    assert told.since <= group.at
    seen = told.processes[100]
    assert (seen.parent, seen.most_files, seen.limits) == (99, 7, {"files": (1024, 4096)})
    assert seen.groups == (group.name,)
    assert {"shm", "cwd"} <= {role for place in told.places for role in place.roles}
    assert all(place.in_use for place in told.places)


def test_a_log_that_could_not_be_read_is_reported_with_a_remedy(tmp_path: Path) -> None:
    content = {"kernel_log": {"trouble": "/dev/kmsg cannot be read: Operation not permitted"}}
    (told,), (unread,) = read_endings([host(tmp_path, content)], root=tmp_path)
    assert told.log_trouble is not None
    assert "not permitted" in unread.reason
    assert "dmesg_restrict" in unread.remedy


@pytest.mark.parametrize(("exit_code", "expected"), [(0, []), (1, ["kernel log"])])
def test_only_where_a_job_failed_is_a_log_missed(
    exit_code: int, expected: list[str], tmp_path: Path
) -> None:
    made = recording(tmp_path / "recording", [HEALTHY, HEALTHY], steps=30)
    end = json.loads((made / layout.END).read_text())
    write(made, layout.END, json.dumps({**end, "exit_code": exit_code}))
    content = {"kernel_log": {"trouble": "/dev/kmsg cannot be read: Operation not permitted"}}
    host(made / layout.HOSTS, content, os.uname().nodename)
    case = load_recording(made)
    assert len(case.endings) == 1
    assert [gap.probe for gap in case.unexamined if gap.probe == "kernel log"] == expected


def test_an_older_recording_has_no_such_file(tmp_path: Path) -> None:
    assert read_endings([tmp_path / "node"], root=tmp_path) == ((), ())


def test_a_broken_file_is_reported_and_a_link_is_not_followed(tmp_path: Path) -> None:
    found, (unread,) = read_endings([host(tmp_path, '{"half')], root=tmp_path)
    assert found == ()
    assert unread.probe == layout.ENDING
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / layout.ENDING).symlink_to(tmp_path / "node" / layout.ENDING)
    found, (unread,) = read_endings([tmp_path / "linked"], root=tmp_path)
    assert found == ()


def test_a_replay_does_not_know_what_came_later(tmp_path: Path) -> None:
    node = host(tmp_path, {"at": 2000.0, "kernel_log": {"trouble": None}})
    assert read_endings([node], until=1999.0, root=tmp_path) == ((), ())
    (told,), _ = read_endings([node], until=2000.0, root=tmp_path)
    assert told.at == 2000.0


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"kills": {"pid": 1}, "groups": [], "processes": 7, "places": "x", "machine_kills": None},
        {
            "kills": [None, {"pid": -1}, {"pid": "1"}],
            "groups": {"g": 1},
            "places": [{}, {"now": 1}],
        },
        {"processes": {"-1": {}, "x": {}, "٣": {}, "9" * 40: {}}, "host": 3},
        {"groups": {"g": {"before": {"killed": 5}, "now": {"killed": "6"}}}},
        {"groups": {"": {}}, "processes": {"x": {"group": 3}}},
    ],
)
def test_nonsense_is_left_out(content: dict[str, object]) -> None:
    told = ending_of("node", content)
    assert told.host == "node"
    assert told.kills == ()
    assert told.processes == {}
    assert told.places == ()
    assert [group.killed for group in told.groups] in ([], [None])


def test_texts_are_harmless_and_counts_bounded() -> None:
    evil = "\x1b]0;owned\x07[bold]"
    told = ending_of(
        "node",
        {
            "kills": [{"pid": 1 + n, "name": evil} for n in range(2 * MOST_KILLS)],
            "processes": {str(1 + n): {"group": evil * 99} for n in range(2 * MOST_PROCESSES)},
            "kernel_log": {"trouble": evil * 1000},
        },
    )
    assert (len(told.kills), len(told.processes)) == (MOST_KILLS, MOST_PROCESSES)
    assert told.kills[0].name == "[bold]"
    assert told.log_trouble is not None
    assert len(told.log_trouble) <= 200
    assert "\x1b" not in told.log_trouble


def test_a_counter_that_went_back_counts_nothing() -> None:
    """A group that was removed and made anew."""
    counters = {"before": {"killed": 5}, "now": {"killed": 0}}
    (group,) = ending_of("node", {"groups": {"g": counters}}).groups
    assert group.killed == 0
