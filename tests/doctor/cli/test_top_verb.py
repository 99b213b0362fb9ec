"""The verb `top`: one frame, rejected arguments, and a real terminal restored afterwards."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import psutil
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.cli import app
from mgpu_doctor.cli import top as top_verb
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.recording.home import runs
from tests.support.frames import AT, NOTHING, gpu
from tests.support.jobs import until
from tests.support.recordings import SLOW_INPUT, WAITING, recording
from tests.support.screens import Still

SCHEMA = Path(__file__).parents[3] / "docs/diagnosis.schema.json"
TOP = [sys.executable, "-m", "mgpu_doctor", "top"]
JOB = (WAITING, WAITING, SLOW_INPUT, WAITING)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))


def run_top_here(*arguments: str) -> Result:
    """The verb within this process, which is much quicker."""
    return CliRunner().invoke(app, ["top", *arguments])


class Counted(Still):
    """A live source of frames with one GPU, without its rate in the first frame."""

    def __init__(self) -> None:
        super().__init__(NOTHING)
        self.given = 0

    def next_job(self) -> None:
        """There is no other job."""

    def frame(self, passed: float) -> Frame:
        del passed
        self.given += 1
        link = structs.replace(gpu(0), nvlink_sent=None if self.given == 1 else 7.0)
        return structs.replace(NOTHING, devices=DeviceSample(AT, (link,)))


def test_one_frame_takes_a_second_sample_for_rates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top_verb, "RATES_OVER", 0.001)
    top_verb._print_still(Counted(), None, as_json=True)
    assert json.loads(capsys.readouterr().out)["devices"]["devices"][0]["nvlink_sent"] == 7.0


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_once_without_a_job() -> None:
    done = top("--once")
    assert done.returncode == 0, done.stderr
    assert "No job is under observation here." in done.stdout
    assert "????" not in done.stdout, "the use of the cores takes a second sample"
    assert done.stderr == ""


def test_once_shows_the_job_that_runs() -> None:
    recording(runs() / "20260101-000000-job", JOB, live=True)
    done = top("--once")
    assert done.returncode == 0, done.stderr
    assert "▸    2" in done.stdout
    assert "straggler-input" in done.stdout


def test_json_holds_the_diagnosis_of_the_contract() -> None:
    folder = recording(runs() / "job", JOB)
    done = run_top_here(str(folder), "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document["diagnosis"], json.loads(SCHEMA.read_text()))
    assert document["schema"] == "mgpu-doctor/top/1"
    assert document["host"]["memory_total"] > 0
    assert document["devices"]["devices"] == [] or document["devices"]["trouble"] is None


def test_only_leaves_out_the_rest() -> None:
    folder = recording(runs() / "job", JOB)
    done = run_top_here(str(folder), "--once", "--only", "ranks=0,2", "--only", "input>40%")
    assert done.exit_code == 0, done.stderr
    assert "1 of 4 ranks shown: rank:0,2 & input>40%" in done.stdout
    assert "▸    2" in done.stdout
    document = json.loads(run_top_here("--replay", "job", "--json", "--only", "rank:0").stdout)
    assert [rank["rank"] for rank in document["diagnosis"]["ranks"]] == [0]
    assert document["left_out"] == {"devices": 0, "ranks": 3}


def test_a_wrong_filter_points_at_the_place() -> None:
    done = top("--once", "--only", "rank:3 utl<5")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "mgpu-doctor: --only is not a valid filter:",
        "rank:3 utl<5",
        "       ^",
        "column 8: expected the name of a field: did you mean util?",
    ]


def test_json_without_a_job() -> None:
    document = json.loads(run_top_here("--json").stdout)
    assert document["diagnosis"] is None
    assert document["hint"]


def test_replay_once_shows_the_end() -> None:
    recording(runs() / "job", JOB)
    done = run_top_here("--replay", "job", "--once")
    assert done.exit_code == 0, done.stderr
    assert "▸    2" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "no terminal to draw on"),
        (("a", "--replay", "b"), 2, "not both"),
        (("nowhere", "--once"), 3, "does not exist"),
        (("--replay", "nowhere", "--once"), 3, "does not exist"),
        (("--interval", "0", "--once"), 2, "interval"),
        (("--interval", "nan", "--once"), 2, "nan is not a number"),
        (("--once", "--only", ""), 2, "column 1: expected a filter"),
        (("--only", "gpu:x"), 2, "no terminal"),
        (("--record", "folder", "--once"), 2, "works only with the live screen"),
        (("--once", "--", "true"), 2, "needs a command"),
        (("--",), 2, "needs a command"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: int, says: str) -> None:
    done = run_top_here(*arguments)
    assert done.exit_code == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_no_job_is_started_if_the_settings_are_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.mgpu-doctor]\nignore = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(top_verb, "_require_terminal", lambda: None)
    done = run_top_here("--", "touch", str(tmp_path / "started"))
    assert done.exit_code == 2
    assert "ignore must be a list of codes" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_stream_is_no_terminal(closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m mgpu_doctor top {closed}"
    done = subprocess.run(["sh", "-c", command], check=False, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.startswith(b"mgpu-doctor: no terminal to draw on")


def test_one_frame_needs_no_textual() -> None:
    script = (
        "import sys\n"
        "from mgpu_doctor.tui import once\nfrom mgpu_doctor.live.live_jobs import LiveJobs\n"
        "once.render(LiveJobs().frame(0), width=80, colour=False)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('textual', 'torch')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


OF_A_JOB = (
    *("diagnosis", "findings", "case.recording_case", "case.model", "rules.catalogue"),
    *("live.job_watch", "tui.filter.language", "tui.panels.rank_table"),
)


def test_the_first_frame_without_a_job_loads_nothing_that_only_a_job_needs() -> None:
    ours = [f"mgpu_doctor.{name}" for name in OF_A_JOB]
    assert all(map(find_spec, ours)), "each of them exists"
    dear = ["numpy", "tomllib", *ours]
    script = (
        "import sys\n"
        "import mgpu_doctor.tui.app\n"
        "from mgpu_doctor.settings_files import settings\n"
        "from mgpu_doctor.live.live_jobs import LiveJobs\n"
        "from mgpu_doctor.tui import once\n"
        "live = LiveJobs(settings=settings())\n"
        "once.render(live.frame(0), width=80, colour=False)\n"
        "print([name for name in sys.argv[1:] if name in sys.modules])\n"
        "idle = live.frame(1)\n"
        "live.close()\n"
        "from mgpu_doctor.tui.panels.machine_graphs import machine_lines\n"
        "from mgpu_doctor.tui.view import View\n"
        "assert machine_lines(idle, 160, View())\n"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *dear], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[]", "False"], "graphs of the idle screen need no NumPy"


class Terminal:
    """`mgpu-doctor top` in a terminal of its own."""

    def __init__(self, *arguments: str, term: str = "xterm-256color") -> None:
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [*TOP, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={**os.environ, "TERM": term, "COLUMNS": "100", "LINES": "30"},
            start_new_session=True,
        )
        self.seen = b""

    def until(self, words: bytes | None) -> None:
        """Reads until `words` were seen (None: until the process is gone); a minute at most."""
        deadline = time.monotonic() + 60
        while words is None or words not in self.seen:
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                self.seen += os.read(self.master, 65536)
            elif words is None and self.process.poll() is not None:
                return
            assert time.monotonic() < deadline, self.seen[-2000:]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.mark.parametrize(
    "how",
    [
        "ctrl+c",
        "SIGTERM",
        pytest.param("SIGINT", marks=pytest.mark.slow),
        pytest.param("q", marks=pytest.mark.slow),
    ],
)
def test_the_terminal_is_left_as_it_was(how: str) -> None:
    terminal = Terminal()
    try:
        terminal.until(b"under observation")
        if how.startswith("SIG"):
            terminal.process.send_signal(signal.Signals[how])
        else:
            os.write(terminal.master, b"\x03" if how == "ctrl+c" else b"q")
        terminal.until(None)
        assert terminal.process.returncode == 0
        assert termios.tcgetattr(terminal.slave) == terminal.before
        assert b"\x1b[?1049l" in terminal.seen
        assert b"Traceback" not in terminal.seen
    finally:
        terminal.close()


def test_only_holds_on_the_screen_from_the_start() -> None:
    folder = recording(runs() / "job", JOB)
    terminal = Terminal(str(folder), "--only", "rank:1,2")
    try:
        terminal.until(b"2 of 4 ranks shown: rank:1,2")
        os.write(terminal.master, b"q")
        terminal.until(None)
        assert terminal.process.returncode == 0
    finally:
        terminal.close()


def test_it_ends_with_its_terminal() -> None:
    """A broken ssh connection must not leave a process behind that spins."""
    terminal = Terminal()
    try:
        terminal.until(b"under observation")
        os.close(terminal.master)
        assert terminal.process.wait(60) == 128 + signal.SIGHUP
    finally:
        terminal.master = os.open(os.devnull, os.O_RDONLY)
        terminal.close()


def test_a_dumb_terminal_is_refused() -> None:
    terminal = Terminal(term="dumb")
    try:
        terminal.until(None)
        assert terminal.process.returncode == 2
        assert b"--once" in terminal.seen
    finally:
        terminal.close()


def test_a_job_that_was_started_outlives_the_screen(tmp_path: Path) -> None:
    left, seen = tmp_path / "left", tmp_path / "seen"
    script = (
        "import os, time\n"
        f"while not os.path.exists({str(left)!r}): time.sleep(0.01)\n"
        f"open({str(seen)!r}, 'w').close(); time.sleep(60)"
    )
    terminal = Terminal("--", sys.executable, "-c", script)
    try:
        terminal.until(b"live ")
        os.write(terminal.master, b"q")
        terminal.until(None)
        assert terminal.process.returncode == 0
        assert b"mgpu-doctor top 20" in terminal.seen  # how to come back
        left.touch()
        until(seen.exists)
    finally:
        terminal.close()
        for one in psutil.process_iter(["cmdline"]):
            if script in (one.info["cmdline"] or ()):
                one.kill()
