"""--batch auto: which batch size is found, for how much memory, and what is started then."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_trainers import catalogue, largest
from mgpu_trainers.capabilities import UsageError
from mgpu_trainers.largest import Trial
from mgpu_trainers.largest import search_largest as search


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(1, 64))
def test_what_is_found_fits_and_little_more_would(fit: int, most: int, first: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> Trial | None:
        assert 1 <= size <= most
        tried.append(size)
        return Trial(0.1, size) if size <= fit else None

    found = search(fits, most, patience=1.0, first=first)
    if fit == 0:
        assert found is None
        return
    assert found is not None
    assert found.size <= fit
    assert found.trial.memory == found.size
    assert found.limit == ("data" if fit >= most else "memory")
    assert found.size == most or found.size >= min(fit, most) * 8 // 9
    assert len(tried) <= 24


def test_it_stops_where_steps_get_long() -> None:
    found = search(lambda size: Trial(size / 100, size), 10_000, patience=1.0, first=32)
    assert found is not None
    assert (found.size, found.limit) == (128, "time")


def test_the_tightest_of_host_and_control_groups_counts(tmp_path: Path) -> None:
    assert largest.free_memory(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4000 kB\n")
    assert largest.free_memory(tmp_path) == (4000 * 1024, "the host's memory")
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs/mine\n")
    mine = tmp_path / "sys/fs/cgroup/jobs/mine"
    mine.mkdir(parents=True)
    (mine / "memory.max").write_text("max\n")
    (mine / "memory.current").write_text("100\n")
    (mine.parent / "memory.max").write_text("3000000\n")
    (mine.parent / "memory.current").write_text("1000000\n")
    assert largest.free_memory(tmp_path) == (2_000_000, "its control group's memory")


def test_version_1_groups_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/other\n4:memory:/mine\nbroken\n")
    mine = tmp_path / "sys/fs/cgroup/memory/mine"
    mine.mkdir(parents=True)
    (mine / "memory.limit_in_bytes").write_text("500\n")
    (mine / "memory.usage_in_bytes").write_text("900\n")
    assert largest.free_memory(tmp_path) == (0, "its control group's memory")


def test_the_search_comes_before_the_launcher() -> None:
    trainer = catalogue.find("torch-ddp")
    found = catalogue.command(trainer, 2, {"batch": "auto", "device": "auto"})
    bare = catalogue.command(trainer, 2, {"batch": 4, "device": "auto"})
    assert found[1:6] == ["-m", "mgpu_trainers.largest", "torch-ddp", "--ranks", "2"]
    assert found[6] == "--"
    assert largest.replace_auto(found[7:], 4) == bare


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("torch-fsdp", {"batch": "auto"}, "torch-fsdp has no --batch auto: trying a batch would"),
        ("tf-single", {"batch": "auto"}, "TensorFlow does not say how much memory"),
        ("torch-ddp", {"batch": "most"}, "--batch takes a whole number or auto, not 'most'"),
        ("torch-ddp", {"batch": "auto", "global_batch": 8}, "either --batch or --global-batch"),
        ("torch-ddp", {"batch": "auto", "compile": "on"}, "--compile changes that"),
        ("torch-single", {"compile": "on", "checkpointing": "selective"}, "take full"),
        ("torch-pp", {"compile": "on"}, "torch-pp has no option --compile"),
    ],
)
def test_what_would_not_be_honest_is_refused(
    name: str, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        catalogue.command(catalogue.find(name), None, options)


def test_a_trainer_by_itself_says_who_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        catalogue.arguments(catalogue.find("torch-single"), ["--batch", "auto"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "python -m mgpu_trainers.largest torch-single" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["torch-ddp"], "must be one that starts mgpu_trainers.pytorch.ddp"),
        (["nothing", "--", "x"], "there is no trainer 'nothing'"),
        (
            ["torch-single", "--", "x", "-m", "mgpu_trainers.pytorch.single", "--batch", "4"],
            "no --batch auto in the command",
        ),
    ],
)
def test_what_is_no_search_is_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        largest.main(arguments)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
