"""The list of training jobs: its entries, its screen, and the view of a job from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.outside import jobs, processes
from mgpu_probes.outside.jobs import JobProcess, RunningJob, UnreadSource
from textual.pilot import Pilot

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.live.unrecorded_job import Outside
from mgpu_doctor.report.verdict import Tone, verdict
from mgpu_doctor.tui.jobs import attach_screen
from mgpu_doctor.tui.jobs.attach_screen import AttachScreen, Listed, gpus_of, jobs_here
from mgpu_doctor.tui.once import render
from tests.support.frames import eight_gpus
from tests.support.launching import eventually
from tests.support.screen_app import ScreenApp
from tests.support.screens import GOLDEN_SIZE, check_sizes, screen_text, until

COMMAND = "torchrun --nproc-per-node 4 train.py --config configs/large.yaml"
OBSERVED = Listed(
    pid=4711,
    command=COMMAND,
    recording=Path("/home/ann/.local/state/mgpu-doctor/runs/20260917-101500-train-4711"),
    ranks=4,
    world_size=8,
    framework="torch",
    launcher="torchrun",
    user="ann",
    age=3725.5,
    pids=frozenset((4711, 4000, 4002)),
)
FOREIGN = Listed(
    pid=815,
    command="python -c [bold]x[/]\x1b]0;title\x07",
    ranks=1,
    user="bob",
    container="0123456789ab",
    unseen=(
        "environment: process 815 belongs to another user (bob); run as root.",
        attach_screen.NOT_OBSERVED,
    ),
)
STARTING = Listed(pid=99, command="bash run.sh", recording=Path("/runs/young"), user="ann", age=0.4)
ALL = (OBSERVED, STARTING, FOREIGN)


async def listed(pilot: Pilot[Any]) -> None:
    """The footer is there, which is drawn last, and the list."""
    await until(pilot, lambda: "esc back" in screen_text(pilot.app), "the footer")
    await until(pilot, lambda: "looking…" not in screen_text(pilot.app), "the list")


async def test_attach_screen() -> None:
    app = ScreenApp(AttachScreen(lambda: ALL, eight_gpus))
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await listed(pilot)
        await until(pilot, lambda: "under observation" in screen_text(app), "its details")
        await check_sizes(pilot, "attach")


async def test_enter_gives_the_job_and_what_cannot_be_seen_is_reported() -> None:
    app = ScreenApp(AttachScreen(lambda: ALL))
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot)
        await until(pilot, lambda: "under observation: /home/ann" in screen_text(app), "the first")
        await pilot.press("down", "down")
        await until(pilot, lambda: "belongs to another user" in screen_text(app), "the reason")
        text = screen_text(app)
        assert "in container 0123456789ab" in text
        assert "python -c [bold]x[/]" in text
        assert "title" not in text
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FOREIGN], "the choice")


async def test_on_a_narrow_screen_columns_make_room_for_the_command() -> None:
    many = tuple(
        replace(OBSERVED, pid=pid, recording=Path(f"/runs/{pid}")) for pid in range(100, 130)
    )
    app = ScreenApp(AttachScreen(lambda: many))
    async with app.run_test(size=(80, 24)) as pilot:
        await listed(pilot)
        await until(pilot, lambda: "torch under torchrun" in screen_text(app), "its details")
        _, head, row, *_ = screen_text(app).splitlines()
        assert " ".join(head.split()) == "│ observed pid user ranks age GPUs command │"
        assert row.rstrip("│▁▂▃▄▅▆▇█ ").endswith("4 of 8 1 h 02   -      train.py --config config…")
        await pilot.resize_terminal(120, 24)
        await until(pilot, lambda: "config configs/large.yaml  " in screen_text(app), "more room")


@pytest.mark.slow
async def test_the_list_follows_and_the_cursor_stays_on_its_job() -> None:
    now = [OBSERVED, FOREIGN]
    app = ScreenApp(AttachScreen(lambda: tuple(now)))
    async with app.run_test(size=(120, 40)) as pilot:
        await listed(pilot)
        await pilot.press("down")
        screen = app.screen
        assert isinstance(screen, AttachScreen)
        now.insert(0, STARTING)
        await until(pilot, lambda: "bash run.sh" in screen_text(app), "the new job")
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FOREIGN], "the same job")


async def test_an_empty_machine_says_what_to_do() -> None:
    app = ScreenApp(AttachScreen(tuple))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(
            pilot, lambda: "No training job is running on this machine." in screen_text(app), "it"
        )
        await pilot.press("enter", "x")
        assert app.results == []
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None], "the way back")


async def test_readonly_stops_nothing() -> None:
    app = ScreenApp(AttachScreen(lambda: ALL, readonly=True))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await listed(pilot)
        await pilot.press("x")
        await until(pilot, lambda: "Nothing is started" in screen_text(app), "the refusal")
        assert isinstance(app.screen, AttachScreen)


def test_gpus_are_those_on_which_its_processes_are() -> None:
    assert gpus_of(OBSERVED, eight_gpus()) == "0,2"
    assert gpus_of(FOREIGN, eight_gpus()) == ""
    assert gpus_of(OBSERVED, None) == ""


def process(pid: int, role: str, rank: int | None = None, **changes: Any) -> JobProcess:
    facts: dict[str, Any] = {
        "pid": pid,
        "parent": 1,
        "role": role,
        "state": "S",
        "rank": rank,
        "local_rank": rank,
        "world_size": 2,
        "name": "python",
        "command": ("torchrun", "my train.py") if role == "launcher" else ("python", "t.py"),
        "start_ticks": 100,
        "cpu_seconds": 1.0,
        "uid": 0,
        "user": "ann",
        "container": None,
        "inner_pid": None,
    }
    return JobProcess(**{**facts, **changes})


def running_job(**changes: Any) -> RunningJob:
    unread = UnreadSource(12, "environment", "not readable", "run as its owner")
    job = RunningJob(
        "torchrun",
        10,
        2,
        (process(10, "launcher"), process(11, "rank", 0), process(12, "rank", 1)),
        unread=(unread, replace(unread, pid=11)),
    )
    return replace(job, **changes)


@pytest.fixture
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))


@pytest.mark.usefixtures("_home")
def test_a_job_that_nobody_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "find_all", lambda: (running_job(),))
    (job,) = jobs_here()
    assert (job.pid, job.ranks, job.world_size, job.launcher) == (10, 2, 2, "torchrun")
    assert (job.command, job.user, job.recording) == ("torchrun 'my train.py'", "ann", None)
    assert job.pids == {10, 11, 12}
    assert job.unseen == (
        "environment: not readable; run as its owner.",
        attach_screen.NOT_OBSERVED,
    )
    assert job.age is not None
    assert job.age > 0
    assert job.subject == "10"


@pytest.mark.usefixtures("_home")
def test_a_job_under_observation_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is a shell script that starts the launcher."""
    recording = Path(os.environ["MGPU_DOCTOR_HOME"]) / "runs/20260101-000000-job"
    recording.mkdir(parents=True)
    own = processes.find_start_ticks(os.getpid())
    (recording / "recording.json").write_text(
        f'{{"job_pid": {os.getpid()}, "job_start_ticks": {own}, "command": ["bash", "a b.sh"], '
        f'"host": "{os.uname().nodename}", "started": {time.time() - 60}}}'
    )
    below = running_job(
        processes=(process(10, "launcher", parent=os.getpid()), process(11, "rank", 0))
    )
    monkeypatch.setattr(jobs, "find_all", lambda: (running_job(), below))
    first, second = jobs_here()
    assert (first.recording, first.command, first.ranks) == (recording, "bash 'a b.sh'", 1)
    assert first.unseen == ()
    assert first.subject == str(recording)
    assert first.age == pytest.approx(60, abs=30)
    assert (second.recording, second.ranks) == (None, 2)


def test_a_view_from_outside_tells_what_the_kernel_tells() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        ticks = processes.find_start_ticks(child.pid)
        rank = process(child.pid, "rank", 0, start_ticks=ticks, world_size=1)
        job = RunningJob(None, None, 1, (rank,))
        source = Outside(child.pid, find=lambda pid: job if pid == child.pid else None)
        frame = source.frame(0)
        assert frame.diagnosis is not None
        assert frame.diagnosis.case.subject.ref == str(child.pid)
        (shown,) = frame.diagnosis.ranks
        assert (shown.rank, shown.pid, shown.state, shown.last_step) == (
            0,
            child.pid,
            "running",
            None,
        )
        assert shown.where is not None
        assert shown.where.startswith(("sleeps", "runs"))
        # Nobody looked at a stack: no verdict that only stacks can give.
        assert verdict(frame.diagnosis).tone is Tone.UNKNOWN
        text = render(frame, width=120, colour=False)
        assert "not started under observation" in text
        assert f"from outside: process {child.pid}" in text
        child.kill()
    eventually("its end", lambda: "has ended" in source.frame(1).source)
    last = source.frame(1)
    over = last.diagnosis
    assert over is not None
    assert last.ranks_age == 0
    assert over.case.job.outcome is Outcome.UNKNOWN
    assert "still running" not in verdict(over).sentence


def test_what_a_rank_uses_is_reported_between_two_looks() -> None:
    own = process(os.getpid(), "rank", 0, start_ticks=processes.find_start_ticks(os.getpid()))
    source = Outside(own.pid, find=lambda _pid: RunningJob(None, None, 1, (own,)))
    source.frame(0)

    def where() -> str:
        diagnosis = source.frame(1).diagnosis
        return (diagnosis.ranks[0].where or "") if diagnosis is not None else ""

    eventually("the second look", lambda: " cores, " in where())
    assert where().endswith("runs")


def test_a_view_from_outside_knows_when_it_looked() -> None:
    own = process(os.getpid(), "rank", 0, start_ticks=processes.find_start_ticks(os.getpid()))
    job = RunningJob(None, None, 1, (own,))
    source = Outside(own.pid, clock=lambda: time.time() + 20, find=lambda _pid: job)
    assert source.frame(0).ranks_age >= 20


def test_a_launcher_that_has_started_nothing_yet_has_no_ranks_to_show() -> None:
    empty = RunningJob("torchrun", 10, 2, (process(10, "launcher"),))
    assert Outside(10, find=lambda _pid: empty).frame(0).diagnosis is None


def test_a_view_of_no_job_says_so() -> None:
    frame = Outside(2**22 + 1, find=lambda _pid: None).frame(0)
    assert frame.diagnosis is None
    assert frame.hint is not None
    assert "there is no process" in frame.hint
