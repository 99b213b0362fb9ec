"""Console logs become a case: which rank printed what, how ranks ended, what cannot be read."""

from __future__ import annotations

import gzip
import os
import random
import tempfile
from pathlib import Path

import pytest

from mgpu_doctor.case.log_case import NotALog, load_logs, signs_of
from mgpu_doctor.case.log_sources import log_files
from mgpu_doctor.case.model import Case, Outcome, State
from tests.support.logs import RECORDED, progress, write

CONSOLE = RECORDED / "console"
RAN_OUT = "MemoryError"
LOST = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [127.0.0.1]:42709."
)
FRAMES = (
    '  File "/home/user/train.py", line 40, in <module>',
    '  File "/home/user/train.py", line 12, in step',
)


def raised(last: str, label: str = "") -> list[str]:
    lines = ["Traceback (most recent call last):", *FRAMES, "    batch = load()", last]
    return [f"{label}{line}" for line in lines]


def test_a_torchrun_log_tells_of_every_rank() -> None:
    case = load_logs([str(CONSOLE / "torchrun-raise.txt")])
    assert (case.subject.kind, case.job.outcome, case.job.launcher) == (
        "log",
        Outcome.FAILED,
        "torchrun",
    )
    assert {rank.rank: (rank.state, rank.exit_code, rank.signal) for rank in case.ranks} == {
        0: (State.DEAD, None, 15),
        1: (State.DEAD, None, 15),
        2: (State.EXITED, 1, None),
        3: (State.DEAD, None, 15),
    }
    assert [rank.pid for rank in case.ranks] == [6513, 6514, 6515, 6516]
    printed = [end for end in case.console.ends if end.error]
    assert [(end.rank, end.order) for end in printed] == [(2, 9), (1, 20), (3, 31)]
    assert {sign.rank for sign in case.signs} == {1, 3}


def test_local_ranks_of_one_host_are_ranks() -> None:
    lines = [f"[default{n % 4}]:epoch 0 step {n}" for n in range(8)] + raised(
        RAN_OUT, "[default3]:"
    )
    case = _case_of(lines)
    assert [rank.rank for rank in case.ranks] == [0, 1, 2, 3]
    assert [(sign.rank, sign.text) for sign in case.signs] == [(3, RAN_OUT)]


def test_local_ranks_of_several_hosts_are_nobody(tmp_path: Path) -> None:
    for host in ("a", "b"):
        write(tmp_path / f"{host}.log", [f"[default{n}]:hello" for n in range(2)])
    write(tmp_path / "b.log", raised(RAN_OUT, "[default1]:"))
    case = load_logs([str(tmp_path)])
    assert [sign.rank for sign in case.signs] == [None]
    assert case.ranks == ()


def test_a_world_larger_than_the_local_ranks_has_more_hosts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.log", ["world_size: 16", *raised(RAN_OUT, "[default1]:")])
    case = load_logs([str(path)])
    assert case.job.world_size == 16
    assert [sign.rank for sign in case.signs] == [None]


def test_one_file_for_each_rank(tmp_path: Path) -> None:
    for rank in range(12):
        last = raised(RAN_OUT if rank == 10 else LOST)
        write(tmp_path / f"logs/rank_{rank}.log", [*progress(5), *last])
    case = load_logs([str(tmp_path / "logs")])
    assert [rank.rank for rank in case.ranks] == list(range(12))
    assert [sign.rank for sign in case.signs if sign.text == RAN_OUT] == [10]
    assert case.subject.ref == str(tmp_path / "logs")
    assert all(end.order is None for end in case.console.ends)


def test_the_folders_that_torchrun_makes(tmp_path: Path) -> None:
    for local in range(2):
        folder = tmp_path / f"run7/attempt_0/{local}"
        write(folder / "stderr.log", raised(RAN_OUT) if local else ["fine"])
        write(folder / "stdout.log", progress(3))
        write(folder / "error.json", ["{}"])
    case = load_logs([str(tmp_path)])
    assert [(sign.rank, Path(sign.source).name) for sign in case.signs] == [(1, "stderr.log")]


def test_a_name_does_not_beat_the_labels_inside(tmp_path: Path) -> None:
    """Slurm's tasks are nodes where torchrun runs in each of them."""
    for task, ranks in ((0, (0, 1)), (1, (2, 3))):
        lines = [f"[rank{rank}]: step 1" for rank in ranks]
        write(tmp_path / f"slurm-9_{task}.out", [*lines, *raised(RAN_OUT, f"[rank{ranks[1]}]: ")])
    case = load_logs([str(tmp_path)])
    assert sorted(sign.rank for sign in case.signs if sign.rank is not None) == [1, 3]
    assert [rank.rank for rank in case.ranks] == [0, 1, 2, 3]


def test_ranks_run_only_while_somebody_writes(tmp_path: Path) -> None:
    path = write(tmp_path / "x.log", ["[rank0]: step 1", "[rank1]: step 1"])
    assert {rank.state for rank in load_logs([str(path)]).ranks} == {State.RUNNING}
    os.utime(path, (1e9, 1e9))
    ranks = load_logs([str(path)]).ranks
    assert {(rank.state, rank.exit_code) for rank in ranks} == {(State.EXITED, None)}


def test_signs_of_all_logs_come_in_order_of_time(tmp_path: Path) -> None:
    stamp = "2026-01-02T03:04:{:02}Z "
    write(tmp_path / "a.log", [f"{stamp.format(30)}{LOST}", f"{stamp.format(40)}{RAN_OUT}"])
    write(tmp_path / "b.log", [f"{stamp.format(20)}{RAN_OUT}", f"{stamp.format(35)}{LOST}"])
    case = load_logs([str(tmp_path)])
    assert [(Path(sign.source).name, sign.text[:6]) for sign in case.signs] == [
        ("b.log", "Memory"),
        ("a.log", "Runtim"),
        ("b.log", "Runtim"),
        ("a.log", "Memory"),
    ]
    assert case.job.started == case.signs[0].at
    assert case.observed == case.signs[-1].at


def test_an_exception_that_was_caught_is_no_ending() -> None:
    case = _case_of([*raised("ValueError: bad sample"), *progress(300)])
    assert case.console.ends == ()
    assert case.job.outcome is Outcome.UNKNOWN
    late = _case_of([*progress(300), *raised("ValueError: bad sample"), *progress(100)])
    assert [end.error.type for end in late.console.ends if end.error] == ["ValueError"]
    assert late.job.outcome is Outcome.FAILED


def test_what_was_caught_and_printed_begins_where_it_was_caught() -> None:
    """`traceback.print_exc()` and `logging.exception`, also near the end of a log."""
    shown = ["Traceback (most recent call last):", FRAMES[1], "    batch = load()", RAN_OUT]
    for after in (0, 5):
        case = _case_of([*progress(9), *shown, *progress(after, first=9)])
        assert (case.console.ends, case.signs, case.job.outcome) == ((), (), Outcome.UNKNOWN)
    hydra = ["Error executing job with overrides: ['lr=1']", *shown, ""]
    assert [end.error.type for end in _case_of(hydra).console.ends if end.error] == [RAN_OUT]
    killed = "failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: /usr/bin/python"
    told = [end.error.type for end in _case_of([*shown, killed]).console.ends if end.error]
    assert told == [RAN_OUT]


def test_a_place_that_lost_its_quotation_mark_is_a_call() -> None:
    first, *rest = raised("ValueError: bad sample")
    lines = [*progress(9), first, rest[0].replace('File "', "File "), *rest[1:]]
    assert [end.error.type for end in _case_of(lines).console.ends if end.error] == ["ValueError"]


def test_time_stamps_tell_sooner_that_training_went_on() -> None:
    steps = [f"2026-01-02 03:04:{n:02} step {n} loss 0.1" for n in range(50)]
    case = _case_of([steps[0], *raised("ValueError: bad sample"), *steps[1:]])
    assert case.console.ends == ()


@pytest.mark.parametrize(
    "before",
    [
        "Exception ignored in: <function _Iter.__del__ at 0x7f00>",
        "--- Logging error ---",
        "Exception in thread Thread-3 (upload):",
    ],
)
def test_exceptions_that_end_no_process(before: str) -> None:
    case = _case_of(
        [*progress(5), before, *raised("AssertionError: can only test a child process")]
    )
    assert case.console.ends == ()
    assert case.job.outcome is Outcome.UNKNOWN


def test_what_a_launcher_raises_for_its_children_is_no_end_of_its_own() -> None:
    launcher = [
        "Traceback (most recent call last):",
        '  File "/opt/venv/bin/accelerate", line 8, in <module>',
        '  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 763',
        "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned 1.",
    ]
    case = _case_of([*raised("ValueError: bad sample"), *launcher])
    assert [end.error.type for end in case.console.ends if end.error] == ["ValueError"]
    assert case.job.launcher == "accelerate"


def test_a_job_that_was_asked_to_end() -> None:
    case = load_logs([str(CONSOLE / "torchrun-sigterm.txt")])
    assert (case.job.outcome, case.job.asked) == (Outcome.KILLED, "SIGTERM")


@pytest.mark.parametrize(
    "line",
    [
        "world_size: 4",
        "{'rank': 0, 'world_size': 4}",
        "WORLD_SIZE=4",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4",
        "All distributed processes registered. Starting with 4 processes",
    ],
)
def test_the_world_size_that_the_text_names(line: str) -> None:
    assert _case_of([line]).job.world_size == 4
    other = "WORLD_SIZE=8" if "WORLD" not in line else "world size: 8"
    assert _case_of([line, other]).job.world_size is None


def test_what_cannot_be_read_is_listed_and_the_rest_examined(tmp_path: Path) -> None:
    good = write(tmp_path / "good.log", raised(RAN_OUT))
    cut = tmp_path / "cut.log.gz"
    cut.write_bytes(gzip.compress(random.Random(4).randbytes(9000).hex().encode())[:4000])
    (tmp_path / "model.bin").write_bytes(random.Random(4).randbytes(5000))
    case = load_logs([str(good), str(cut), str(tmp_path / "model.bin"), str(tmp_path / "none")])
    assert [sign.text for sign in case.signs] == [RAN_OUT]
    told = [gap.reason for gap in case.unexamined]
    assert len(told) == 3
    assert "cut short" in told[0]
    assert "is not text" in told[1]
    assert "does not exist" in told[2]


def test_other_things_in_a_folder_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "train.log", raised(RAN_OUT))
    (tmp_path / "core.1").write_bytes(random.Random(4).randbytes(5000))
    (tmp_path / "weights.pt").write_bytes(random.Random(4).randbytes(5000))
    (tmp_path / "link.log").symlink_to("/etc/passwd")
    write(tmp_path / ".hidden/x.log", raised(LOST))
    case = load_logs([str(tmp_path)])
    assert {sign.source for sign in case.signs} == {str(tmp_path / "train.log")}
    assert case.unexamined == ()


def test_names_of_logs_in_a_folder(tmp_path: Path) -> None:
    good = [
        "a.log",
        "b.out",
        "c.err",
        "d.txt",
        "e.log.gz",
        "f.log.1",
        "nohup",
        "std.stdout",
        "stderr",
    ]
    for name in [*good, "x.json", "y.py", "z.pt", "w.yaml"]:
        write(tmp_path / name, ["x"])
    inside = sorted(str(tmp_path / name) for name in good)
    assert log_files([str(tmp_path)]) == dict.fromkeys(inside, tmp_path)
    itself = str(tmp_path / "x.json")
    assert log_files([itself, itself]) == {itself: None}


def test_nothing_to_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="holds no console logs"):
        load_logs([str(tmp_path)])
    with pytest.raises(NotALog, match="does not exist"):
        load_logs([str(tmp_path / "none.log")])


def test_an_empty_log_is_a_case_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"")
    case = load_logs([str(tmp_path / "x.log")])
    assert (case.ranks, case.signs, case.job.outcome) == ((), (), Outcome.UNKNOWN)


def test_signs_of_lines_that_were_read_already() -> None:
    lines = [*progress(3), *raised(RAN_OUT, "[rank1]: "), "x\udcff"]
    (sign,) = signs_of({"stdout": progress(9), "stderr": lines})
    assert (sign.rank, sign.source, sign.number, sign.text) == (1, "stderr", 8, RAN_OUT)


def _case_of(lines: list[str]) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        return load_logs([str(write(Path(folder) / "x.log", lines))])


def test_a_folder_of_many_jobs_asks_for_one(tmp_path: Path) -> None:
    """A launcher's folders differ in numbers; those of a temporary folder in everything."""
    launched, mixed = tmp_path / "launched", tmp_path / "mixed"
    for rank in range(40):
        folder = launched / "none_7f3a" / f"attempt_{rank % 2}" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 1\n")
        (launched / f"node-{rank}").mkdir()
        (launched / f"node-{rank}" / "out.log").write_text("step 1\n")
    assert load_logs([str(launched)]).subject.kind == "log"
    for word in [
        "build",
        "cache",
        "cargo",
        "editor",
        "fonts",
        "games",
        "mail",
        "music",
        "news",
        "photos",
        "radio",
        "shell",
    ]:
        (mixed / word).mkdir(parents=True)
        (mixed / word / "a.log").write_text("step 1\n")
    (mixed / "b.log").write_text("step 1\n")
    with pytest.raises(NotALog, match="13 files that look like logs, in 13 unlike folders") as why:
        load_logs([str(mixed)])
    assert str(why.value).count("\n") == 0
    assert load_logs([str(mixed / "build")]).subject.kind == "log"
    files = [str(path) for path in mixed.rglob("*.log")]
    assert load_logs(files).subject.kind == "log", "files that are named are of one job"
