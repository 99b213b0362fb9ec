"""`mgpu-doctor export` as a command: a real server over pretend machines and small recordings."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.cli import app
from mgpu_doctor.export.access import FILE
from mgpu_doctor.recording.home import runs
from tests.fakenvml.fakenvml import machine
from tests.support.nvml import PretendNvml
from tests.support.recordings import SLOW_INPUT, WAITING, recording
from tests.support.scraping import Page, ask

EXPORT = [sys.executable, "-m", "mgpu_doctor", "export"]
JOB = (WAITING, WAITING, SLOW_INPUT, WAITING)
INTERVAL = 0.1
OPEN = ("--no-token", "--interval", str(INTERVAL))
SECONDS = 60


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))
    return tmp_path


@dataclass
class Exporter:
    process: subprocess.Popen[str]
    port: int

    def page(self, holds: Callable[[Page], bool] = lambda _: True) -> Page:
        """The first one of which that holds: a driver may be slow to answer."""
        while not holds(page := ask(self.port).page):
            time.sleep(INTERVAL / 2)
        return page

    def end(self, number: int = signal.SIGTERM) -> str:
        """What it said on standard error."""
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0
        return told


@contextmanager
def exporter(*options: str, environment: Mapping[str, str] = os.environ) -> Iterator[Exporter]:
    with subprocess.Popen(
        [*EXPORT, "--serve", "--port", "0", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            assert told.startswith("OpenMetrics on http://127.0.0.1:"), process.stderr
            yield Exporter(process, int(told.rpartition(":")[2].partition("/")[0]))
        finally:
            process.kill()


def refuse(*arguments: str) -> Result:
    """The verb within this process, which is much quicker, for what it refuses to serve."""
    return CliRunner().invoke(app, ["export", *arguments])


def test_a_job_that_runs() -> None:
    recording(runs() / "20260101-000000-job", JOB, live=True)
    with exporter(*OPEN) as serving:
        page = serving.page()
        assert page.labels("mgpu_job_info")[0]["id"] == "20260101-000000-job"
        assert page.of("mgpu_steps_total", rank="3") == [200]
        assert page.of("mgpu_step_phase_seconds", rank="2", phase="input") == [
            pytest.approx(SLOW_INPUT["input"], rel=1e-3)
        ]
        assert page.of("mgpu_finding_active", rule="straggler-input", rank="2") == [1]
        assert serving.end(signal.SIGINT) == ""


def test_a_recording_by_name() -> None:
    folder = recording(runs() / "old", JOB)
    with exporter(str(folder), *OPEN) as serving:
        page = serving.page()
        assert page.of("mgpu_job_outcome", mgpu_job_outcome="completed") == [1]
        assert len(page.of("mgpu_rank_state")) == 4


def test_gpus_one_of_which_is_lost_meanwhile(nvml: PretendNvml, tmp_path: Path) -> None:
    state = tmp_path / "state"
    machine("busy").write(str(state))
    with exporter(*OPEN, environment=nvml.environment(state)) as serving:
        names = ("utilization_ratio", "memory_used_bytes", "power_watts")
        page = serving.page(lambda one: all(len(one.of(f"mgpu_gpu_{name}")) == 8 for name in names))
        assert page.of("mgpu_gpu_lost") == [0] * 8
        (common,) = {frozenset(label) for label in page.labels("mgpu_gpu_memory_used_bytes")}
        assert common == {"gpu", "UUID", "Hostname", "modelName"}
        assert page.labels("mgpu_gpu_power_watts")[3]["Hostname"] == os.uname().nodename
        machine("lost").write(str(state))
        page = serving.page(lambda one: one.of("mgpu_gpu_lost", gpu="3") == [1])
        assert page.of("mgpu_gpu_utilization_ratio", gpu="3") == []
        assert len(page.of("mgpu_gpu_utilization_ratio")) == 7
        machine("busy").write(str(state))
        page = serving.page(lambda one: len(one.of("mgpu_gpu_utilization_ratio")) == 8)
        assert page.of("mgpu_gpu_lost") == [0] * 8


def test_gpus_that_tell_nothing_have_no_values(nvml: PretendNvml, tmp_path: Path) -> None:
    state = tmp_path / "state"
    machine("mute").write(str(state))
    with exporter(*OPEN, environment=nvml.environment(state)) as serving:
        page = serving.page()
        assert page.of("mgpu_gpu_readable") == [0] * 8
        told = {name for name in page.named() if name.startswith("mgpu_gpu_")}
        assert told == {"mgpu_gpu_readable", "mgpu_gpu_lost", "mgpu_gpu_xids_heard"}


def test_the_token_is_reported_once_and_kept(home: Path) -> None:
    with exporter() as serving:
        kept = home / FILE
        token = kept.read_text().strip()
        assert kept.stat().st_mode & 0o777 == 0o600
        assert ask(serving.port).status == 401
        assert ask(serving.port, Authorization=f"Bearer {token}").status == 200
        assert token in serving.end()
    with exporter() as serving:
        assert ask(serving.port, Authorization=f"Bearer {token}").status == 200
        told = serving.end()
    assert str(kept) in told
    assert token not in told


def test_a_token_of_one_s_own(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine"
    file.write_text("a-token-that-is-mine\n")
    with exporter("--token-file", str(file)) as serving:
        assert ask(serving.port, Authorization="Bearer a-token-that-is-mine").status == 200
    assert not (home / FILE).exists()


@pytest.mark.parametrize(
    "content", [b"", b"short", b"two words of a token", b"x" * 5000, b"tok\xffn" * 5]
)
def test_a_token_file_without_a_token(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine"
    file.write_bytes(content)
    done = refuse("--serve", "--port", "0", "--token-file", str(file))
    assert done.exit_code == 3
    assert "contains no token" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_kept_token_that_others_may_read_is_not_used(home: Path) -> None:
    kept = home / FILE
    kept.write_text("a-token-that-others-know\n")
    kept.chmod(0o644)
    done = refuse("--serve", "--port", "0")
    assert done.exit_code == 3
    assert f"other users can read or change {kept}" in done.stderr
    kept.unlink()
    kept.symlink_to(home / "elsewhere")
    assert refuse("--serve", "--port", "0").exit_code == 3


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = refuse("--serve", "--no-token", "--port", str(port))
    assert done.exit_code == 3
    assert done.stderr == (
        f"mgpu-doctor: cannot listen on 127.0.0.1 port {port} (Address already in use); "
        "--port 0 chooses a free port.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "choose a format: --timeline FILE"),
        (("latest",), "choose a format: --timeline FILE"),
        (("--serve", "--listen", "0.0.0.0", "--no-token"), "only with a loopback address"),
        (("--serve", "--no-token", "--token-file", "x"), "cannot be used together"),
        (("--serve", "--listen", "no such name"), "not an address of this machine"),
        (("--serve", "--port", "65536"), "--port"),
        (("--serve", "--interval", "0"), "--interval"),
    ],
    ids=["nothing", "recording", "no-token", "both", "listen", "port", "interval"],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = refuse(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_no_such_recording() -> None:
    done = refuse("--serve", "--no-token", "--port", "0", "nowhere")
    assert done.exit_code == 3
    assert "nowhere does not exist" in done.stderr


def test_without_the_library() -> None:
    script = (
        "import sys; sys.modules['prometheus_client'] = None; "
        "sys.argv = ['mgpu-doctor', 'export', '--serve', '--no-token', '--port', '0']; "
        "from mgpu_doctor.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 3
    assert done.stderr == (
        "mgpu-doctor: the Prometheus client library is not installed: "
        f"{sys.executable} -m pip install 'prometheus-client>=0.23.1'\n"
    )
