from __future__ import annotations

import itertools
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mgpu_doctor.recording.write import Lines, OccupiedError, create, write_json, write_whole


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_is_private(tmp_path: Path) -> None:
    create(tmp_path / "a" / "b")
    write_json(tmp_path / "a/b/x.json", {"a": 1})
    Lines(tmp_path / "a/b/x.jsonl", samples=True).append({"a": 1})
    assert [mode(tmp_path / name) for name in ("a", "a/b")] == [0o700, 0o700]
    assert [mode(tmp_path / "a/b" / name) for name in ("x.json", "x.jsonl")] == [0o600, 0o600]


def test_an_empty_folder_is_taken_and_made_private(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir(mode=0o755)
    create(tmp_path / "r")
    assert mode(tmp_path / "r") == 0o700


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("{}")
    with pytest.raises(OccupiedError, match="already contains a recording"):
        create(tmp_path)
    (tmp_path / "recording.json").rename(tmp_path / "file")
    with pytest.raises(OccupiedError, match="not empty"):
        create(tmp_path)
    with pytest.raises(OccupiedError, match="not a folder"):
        create(tmp_path / "file")


def test_a_write_that_fails_leaves_the_old_content_and_no_debris(tmp_path: Path) -> None:
    write_whole(tmp_path / "x", b"old")
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from mgpu_doctor.recording.write import write_whole\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "try: write_whole(Path(sys.argv[1]), bytes(1000))\n"
        "except OSError: sys.exit(42)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "x"], check=False)
    assert done.returncode == 42
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_link_laid_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lines").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        Lines(tmp_path / "lines", samples=True).append({"a": 1})
    assert not (tmp_path / "victim").exists()


def test_samples_stay_bounded_and_cover_the_whole_run(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines", limit=2000, samples=True)
    for number in range(1000):
        lines.append({"number": number})
        assert (tmp_path / "lines").stat().st_size <= 2000
    kept = [json.loads(line)["number"] for line in (tmp_path / "lines").read_text().splitlines()]
    steps = {after - before for before, after in itertools.pairwise(kept)}
    assert kept[0] == 0
    assert len(kept) > 50
    assert len(steps) <= 2, "evenly"
    assert 1000 - kept[-1] <= max(steps)


def test_a_full_list_of_events_keeps_what_it_has(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines", limit=20, samples=False)
    lines.append({"number": 1})
    with pytest.raises(OSError, match="full"):
        lines.append({"number": 2})
    assert (tmp_path / "lines").read_text() == '{"number":1}\n'


def test_half_a_line_is_cut_off_again(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from mgpu_doctor.recording.write import Lines\n"
        "lines = Lines(Path(sys.argv[1]), samples=True); lines.append({'a': 'x' * 50})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "try: lines.append({'b': 'x' * 60})\n"
        "except OSError: sys.exit(42)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "x"], check=False)
    assert done.returncode == 42
    assert (tmp_path / "x").read_text() == '{"a":"' + "x" * 50 + '"}\n'
