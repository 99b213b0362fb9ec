"""Parts of the launcher that need no real run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mgpu_probes.outside import processes

from mgpu_doctor.launch import box_storage, exit_watch, job_command
from mgpu_doctor.launch.host_tasks import OtherTasks
from mgpu_doctor.launch.job_command import inject_folder, job_environment
from mgpu_doctor.launch.job_console import Console
from mgpu_doctor.launch.output_forwarding import CHUNK, KEEP, RING, Copy, Shared
from mgpu_doctor.launch.process_family import Family
from mgpu_doctor.launch.process_watch import SLOWEST, interval
from mgpu_doctor.launch.signal_forwarding import Inbox, SignalForwarder, SignalGroupProbe
from mgpu_doctor.recording.write import private_folder, write_json
from tests.support.launching import eventually, state


def test_boxes_are_brought_home(tmp_path: Path) -> None:
    live, home = tmp_path / "live", tmp_path / "home"
    live.mkdir()
    home.mkdir()
    (live / "a.box").write_bytes(b"first")
    (live / "other").write_bytes(b"x")
    (live / "link.box").symlink_to("/etc/passwd")
    box_storage.copy(live, home)
    (live / "a.box").write_bytes(b"second")
    box_storage.move(live, home)
    assert not live.exists()
    assert {file.name: file.read_bytes() for file in home.iterdir()} == {"a.box": b"second"}


def test_boxes_stay_where_they_are_if_they_cannot_be_brought_home(tmp_path: Path) -> None:
    (tmp_path / "a.box").write_bytes(b"first")
    with pytest.raises(FileNotFoundError):
        box_storage.move(tmp_path, tmp_path / "absent")
    assert (tmp_path / "a.box").read_bytes() == b"first"


def test_the_jobs_environment_differs_by_the_probe_alone() -> None:
    user = {"PYTHONPATH": "/theirs", "A": "b"}
    changed = job_environment(user, Path("/boxes"))
    assert changed.pop("MGPU_DOCTOR_BOXES") == "/boxes"
    assert changed.pop("PYTHONPATH") == f"{inject_folder()}:/theirs"
    assert changed == {"A": "b"}
    assert job_environment({}, Path("/boxes"))["PYTHONPATH"] == str(inject_folder())
    assert job_environment(user, None) == user


def test_commands_are_found_as_a_shell_does(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "later").mkdir()
    for place in (tmp_path, tmp_path / "later"):
        (place / "plain").touch()
    (tmp_path / "later" / "plain").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{tmp_path}/later"}
    assert job_command.find_program("plain", path) == str(tmp_path / "later/plain")
    for name, code in (
        ("absent", 127),
        ("", 127),
        (f"{tmp_path}/plain", 126),
        (str(tmp_path), 126),
        ("/absent/x", 127),
    ):
        with pytest.raises(job_command.CannotStartError) as failure:
            job_command.find_program(name, path)
        assert failure.value.code == code


def test_a_script_without_an_interpreter_line_is_run_by_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("exit $1\n")
    script.chmod(0o755)
    pid = job_command.start_program(str(script), [str(script), "5"], {}, streams={}, signal_mask=())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


@pytest.mark.parametrize("code", [0, 3, -signal.SIGKILL])
def test_how_somebody_elses_child_ended(code: int) -> None:
    end = f"sys.exit({code})" if code >= 0 else f"os.kill(os.getpid(), {-code})"
    child = subprocess.Popen([sys.executable, "-c", f"import os, sys; {end}"])
    ticks = processes.find_start_ticks(child.pid)
    assert ticks is not None
    pidfd = os.pidfd_open(child.pid)
    eventually("the zombie", lambda: state(child.pid) == "Z")
    status = exit_watch.zombie_wait_status(child.pid, ticks)
    assert status is not None
    assert os.waitstatus_to_exitcode(status) == code
    assert exit_watch.zombie_wait_status(child.pid, ticks + 1) is None
    child.wait()
    assert exit_watch.zombie_wait_status(child.pid, ticks) is None
    later = exit_watch.pidfd_wait_status(pidfd)
    # Kernels before 6.15 do not tell, and are believed; those that do must tell the same.
    assert later is None or os.waitstatus_to_exitcode(later) == code
    os.close(pidfd)


def test_a_family_holds_children_and_grandchildren_alone() -> None:
    deep = "read x; sh -c 'sh -c \"echo deep; read x; exit 0\"; exit 0'; exit 0"
    shell = subprocess.Popen(["sh", "-c", deep], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stranger = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert shell.stdin
    assert shell.stdout
    family = Family(shell.pid)
    assert list(family.members) == [shell.pid]
    family.poll()
    shell.stdin.write(b"\n")
    shell.stdin.flush()
    shell.stdout.readline()
    family.poll()
    assert len(family.members) == 3
    assert stranger.pid not in family.members
    for member in list(family.members.values()):
        family.forget(member)
    shell.communicate(b"\n")
    stranger.communicate()


def test_a_zombie_that_was_reported_is_not_taken_in_again() -> None:
    parent = (
        "import os, sys\n"
        "child = os.fork()\n"
        "if not child: os._exit(0)\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "print(child, flush=True)\n"
        "sys.stdin.read()\n"
    )
    shell = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert shell.stdout
    zombie = int(shell.stdout.readline())
    family = Family(shell.pid)
    family.poll()
    assert zombie in family.members
    family.forget(family.members[zombie])
    family.poll()
    assert zombie not in family.members
    shell.communicate(b"")
    family.forget(family.members[shell.pid])


def test_processes_of_other_tasks_on_this_host_are_sampled_while_they_run(tmp_path: Path) -> None:
    tasks = OtherTasks(tmp_path)
    assert tasks.list_pids() == []
    deep = "sh -c 'echo deep; read x; exit 0'; exit 0"
    shells = [
        subprocess.Popen(["sh", "-c", deep], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    host = os.uname().nodename
    for number, shell in enumerate(shells, 1):
        assert shell.stdout
        shell.stdout.readline()
        ticks = processes.find_start_ticks(shell.pid)
        facts = {"host": host, "job_pid": shell.pid, "job_start_ticks": ticks}
        part = private_folder(tmp_path / f"hosts/{host}/tasks/{number}")
        write_json(part / "recording.json", facts)
        pids = tasks.list_pids()
        assert {each.pid for each in shells[:number]} <= set(pids)
        assert len(pids) == 2 * number  # each with its child
    shells[0].communicate(b"\n")
    assert shells[0].pid not in tasks.list_pids()
    assert len(tasks.list_pids()) == 2
    shells[1].communicate(b"\n")
    assert tasks.list_pids() == []


def test_samples_become_rarer_as_a_run_grows_old() -> None:
    ages = [0.0, 1.0, 600.0, 3600.0, 1e6]
    gaps = [interval(age) for age in ages]
    assert gaps == [1.0, 1.0, 1.0, 6.0, SLOWEST]


def test_the_canary_hears_the_group_and_not_us() -> None:
    listening = (
        "import os, signal, sys\n"
        "from mgpu_doctor.launch.signal_forwarding import SignalGroupProbe\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "group_probe = SignalGroupProbe()\n"
        "for kill in (os.kill, os.killpg, os.kill, os.killpg):\n"
        "    kill(os.getpid(), signal.SIGTERM)\n"
        "    print(group_probe.was_sent_to_group(signal.SIGTERM))\n"
        "group_probe.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", listening],
        capture_output=True,
        check=True,
        text=True,
        start_new_session=True,
    )
    assert done.stdout.split() == ["False", "True", "False", "True"]


def test_two_signals_of_the_group_in_quick_succession_are_both_the_jobs() -> None:
    """As `timeout` sends them: to its child, and then to its whole group."""
    listening = (
        "import os, signal\n"
        "from mgpu_doctor.launch.signal_forwarding import SignalGroupProbe\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "group_probe = SignalGroupProbe()\n"
        "for kill in (os.kill, os.killpg):\n"
        "    kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.sigwait({signal.SIGTERM})\n"
        "    os.killpg(os.getpid(), signal.SIGTERM)\n"
        "    print(group_probe.was_sent_to_group(signal.SIGTERM), len(signal.sigpending()))\n"
        "group_probe.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", listening],
        capture_output=True,
        check=True,
        text=True,
        start_new_session=True,
    )
    assert done.stdout.split() == ["True", "0"] * 2


def test_what_asked_a_job_to_end_is_known_though_it_ended_before_we_looked() -> None:
    """A busy machine may let the job hear of it, and end, before us."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    inbox, group_probe = Inbox(), SignalGroupProbe()
    child = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # no other thread gets it
        forwarder = SignalForwarder(child.pid, inbox, Console(), group_probe)
        assert forwarder.wait(lambda _: False) == 0
        assert forwarder.asked == "SIGINT"
        assert forwarder.patient()
    finally:
        child.wait()
        group_probe.close()
        inbox.close()
        signal.signal(signal.SIGINT, before)


def test_without_a_canary_every_signal_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mgpu_doctor.launch.signal_forwarding.PROGRAM", "/absent")
    group_probe = SignalGroupProbe()
    assert not group_probe.was_sent_to_group(signal.SIGTERM)
    group_probe.close()


def pour(shared: Shared, data: bytes) -> None:
    """As a pump does, but for the descriptors."""
    from mgpu_doctor.launch import output_forwarding

    for start in range(0, len(data), CHUNK):
        chunk = data[start : start + CHUNK]
        shared[output_forwarding.BEGUN] = shared[output_forwarding.TAKEN]
        shared._body[: len(chunk)] = chunk
        shared[output_forwarding.TAKEN] += len(chunk)
        shared[output_forwarding.GIVEN] += len(chunk)
        shared.keep()


def numbered(first: int, count: int) -> bytes:
    return b"".join(b"%09d\n" % number for number in range(first, first + count))


def test_the_copy_is_whole_while_it_is_small(tmp_path: Path) -> None:
    shared, copy = Shared(), Copy(os.fsencode(tmp_path / "log"))
    for number in range(0, 300_000, 100_000):
        pour(shared, numbered(number, 100_000))
        copy.catch_up(shared)
    assert (tmp_path / "log").read_bytes() == numbered(0, 300_000)
    copy.catch_up(shared)
    assert not (tmp_path / "log.1").exists()


@pytest.mark.slow
def test_a_long_copy_keeps_the_beginning_and_the_newest(tmp_path: Path) -> None:
    shared, copy = Shared(), Copy(os.fsencode(tmp_path / "log"))
    for number in range(0, 3_000_000, 100_000):
        pour(shared, numbered(number, 100_000))
        copy.catch_up(shared)
    everything = numbered(0, 3_000_000)
    assert (tmp_path / "log").read_bytes() == everything[:KEEP]
    newest = (tmp_path / "log.1").read_bytes()
    assert KEEP <= len(newest) <= 2 * KEEP
    assert everything.endswith(newest)


def test_a_copy_that_is_behind_says_what_it_lost(tmp_path: Path) -> None:
    shared, copy = Shared(), Copy(os.fsencode(tmp_path / "log"))
    everything = numbered(0, 1_000_000)
    pour(shared, everything)
    copy.catch_up(shared)
    text = (tmp_path / "log").read_bytes()
    mark, _, kept = text[1:].partition(b"\n")
    lost = len(everything) - len(kept)
    assert mark == b"[mgpu-doctor: %d bytes were not copied here]" % lost
    assert everything.endswith(kept)
    assert RING - CHUNK <= len(kept) <= RING
