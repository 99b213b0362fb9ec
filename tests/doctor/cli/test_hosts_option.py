"""`--hosts` of `diagnose` and `top`: exit codes and sentences, with an `ssh` that stays here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.cli import app
from mgpu_doctor.recording.home import runs
from tests.support.jobs import until
from tests.support.node_ranks import NodeRank, node_rank
from tests.support.scraping import ask

SSH = """\
#!/bin/sh
for remote; do :; done
case "$*" in
  *"-- here "*) exec /bin/sh -c "$remote" ;;
  *) echo "ssh: Could not resolve hostname gone: Name or service not known" >&2; exit 255 ;;
esac
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ssh` for which `here` is this machine, and all other hosts are unknown."""
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(SSH)
    script.chmod(0o700)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    return script


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[NodeRank]:
    with node_rank(tmp_path / "boxes", port=4242) as started:
        started.write(50)
        yield started


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_the_job_of_a_host_is_diagnosed_and_kept(rank: NodeRank) -> None:
    done = run("diagnose", "--hosts", "here,gone", "--json")
    assert done.exit_code in (0, 1), done.stderr
    decoder, text, jobs = json.JSONDecoder(), done.stdout.strip(), []
    while text:  # one object for each job of this machine
        job, end = decoder.raw_decode(text)
        jobs.append(job)
        text = text[end:].strip()
    (own,) = (job for job in jobs if rank.process.pid in [one["pid"] for one in job["ranks"]])
    (only,) = own["ranks"]
    assert (only["rank"], only["host"], only["last_step"]) == (0, os.uname().nodename, 49)
    assert own["job"]["outcome"] == "running"
    (gap,) = (gap for gap in own["unexamined"] if gap["probe"] == "host gone")
    assert "Could not resolve hostname gone" in gap["reason"]
    assert gap["remedy"] == "check the name, or add it to ~/.ssh/config"
    again = run("diagnose", own["job"]["id"], "--json")
    kept = json.loads(again.stdout)
    assert kept["ranks"][0]["last_step"] == 49
    assert [one for one in kept["unexamined"] if one["probe"] == "host gone"] == [gap]
    asked = load_recording(runs() / own["job"]["id"]).asked_hosts
    assert [(host.name, host.node) for host in asked] == [
        ("here", os.uname().nodename),
        ("gone", None),
    ]


def test_hosts_that_do_not_answer() -> None:
    done = run("diagnose", "--hosts", "gone,away")
    assert done.exit_code == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("mgpu-doctor: host gone: ssh fails with 'Could not resolve hostname")
    assert "host away: " in line
    assert not runs().exists()


def test_a_launcher_that_waits_for_another_host(tmp_path: Path) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_text("import time; time.sleep(600)")
    with subprocess.Popen((sys.executable, torchrun, "--nnodes", "2", "train.py")) as launcher:
        try:
            done = run("diagnose", "--hosts", "here,gone", "--json")
        finally:
            launcher.kill()
    said = done.stdout + done.stderr  # the first if another job runs on this machine
    assert f"torchrun {launcher.pid} on here" in said
    assert "it runs no rank" in said
    assert "no launcher is seen on gone" in said
    assert "start the job on gone" in said


def test_without_ssh(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh.unlink()
    monkeypatch.setenv("PATH", str(ssh.parent))
    done = run("diagnose", "--hosts", "here")
    assert done.exit_code == 3
    assert "ssh cannot be started" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("diagnose", "--hosts", ""),
        ("diagnose", "--hosts", "a,,b"),
        ("diagnose", "--hosts", "-oProxyCommand=x"),
        ("diagnose", "--hosts", "a", "latest"),
        ("top", "--hosts", "a", "latest"),
        ("report", "--hosts", "a", "latest"),
        ("report",),
        ("export", "--hosts", "a", "--csv", "steps.csv"),
        ("export", "--serve", "--hosts", "a", "latest"),
        ("preflight", "--pairs"),
        ("preflight", "--hosts", "a", "--slurm", "4711"),
        ("top", "--hosts", "a", "--replay", "latest", "--once"),
        ("top", "--hosts", "a", "--", "python", "train.py"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("rank")
def test_one_frame_of_a_host() -> None:
    done = run("top", "--hosts", "here,gone", "--once", "--json")
    assert done.exit_code == 0, done.stderr
    frame = json.loads(done.stdout)
    assert frame["source"].startswith("live: 1 of 2 hosts; gone: ssh fails with")
    ranks = frame["diagnosis"]["ranks"]  # of the first job of this machine, which may be another
    assert {one["host"] for one in ranks} == {os.uname().nodename}
    assert frame["host"] is not None


@pytest.mark.parametrize("form", ["--once", "--json"])
def test_one_frame_of_hosts_that_do_not_answer(form: str) -> None:
    done = run("top", "--hosts", "gone,away", form)
    assert done.exit_code == 3
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "host gone: ssh fails with 'Could not resolve hostname gone" in line
    assert "host away: " in line
    assert "check the name, or add it to ~/.ssh/config" in line


def test_the_job_of_a_host_is_reported_or_the_jobs_are_listed(
    rank: NodeRank, tmp_path: Path
) -> None:
    """Other tests may run jobs on this machine meanwhile."""
    file = tmp_path / "report.json"
    done = run("report", "--hosts", "here,gone", "-o", str(file))
    if done.exit_code == 3:
        assert "jobs run there" in done.stderr
        return
    assert done.exit_code == 0, done.stderr
    document = json.loads(file.read_text())
    assert [one["pid"] for one in document["ranks"]] == [rank.process.pid]
    assert "host gone" in {gap["probe"] for gap in document["unexamined"]}


def test_a_report_of_hosts_that_do_not_answer() -> None:
    done = run("report", "--hosts", "gone", "-o", "x.html")
    assert done.exit_code == 3
    assert "Could not resolve hostname" in done.stderr


@pytest.mark.usefixtures("rank")
def test_metrics_of_a_host() -> None:
    command = (sys.executable, "-m", "mgpu_doctor", "export", "--serve", "--hosts", "here,gone")
    options = ("--no-token", "--port", "0", "--interval", "0.1")
    with subprocess.Popen(
        (*command, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        assert "host gone: ssh fails with 'Could not resolve hostname" in server.stderr.readline()
        port = int(server.stdout.readline().rpartition(":")[2].partition("/")[0])
        until(lambda: ask(port).page.of("mgpu_rank_state") != [], 60)
        page = ask(port).page
        server.send_signal(signal.SIGTERM)
    assert server.returncode == 0
    here = os.uname().nodename
    assert {series["host"] for series in page.labels("mgpu_rank_state")} == {here}
    assert len(page.of("mgpu_host_cores")) <= 1  # it has no name twice
