"""The job's output arrives byte for byte, wherever it goes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mgpu_doctor.launch import job_console, output_forwarding
from tests.support.launching import doctor, eventually, python, read_json, terminal

MIXED = python(
    "import os, sys\n"
    "for number in range(300):\n"
    "    os.write(1 + number % 2, b'%d \\x00\\xff line\\n' % number)\n"
    "sys.exit(7)\n"
)
TERMINALS = python("import os; print([os.isatty(number) for number in range(3)])")


def in_pipes(command: Sequence[str], stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_pipes_get_the_same_bytes_and_exit_code(tmp_path: Path) -> None:
    assert in_pipes(doctor(tmp_path / "r", *MIXED)) == in_pipes(MIXED)
    console = tmp_path / "r" / "console"
    assert (console / "stdout.log").read_bytes() == in_pipes(MIXED)[1]
    assert (console / "stderr.log").read_bytes() == in_pipes(MIXED)[2]


def test_whoever_ignores_its_children_loses_no_output_and_no_exit_code(tmp_path: Path) -> None:
    """As some schedulers do: a process inherits that SIGCHLD is ignored."""
    ignoring = python(
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    assert in_pipes([*ignoring, *doctor(tmp_path / "r", *MIXED)]) == in_pipes(MIXED)
    assert (tmp_path / "r/console/stdout.log").read_bytes() == in_pipes(MIXED)[1]


def test_one_pipe_for_both_keeps_their_order(tmp_path: Path) -> None:
    def merged(command: Sequence[str]) -> bytes:
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        ).stdout

    assert merged(doctor(tmp_path / "r", *MIXED)) == merged(MIXED)
    assert (tmp_path / "r/console/console.log").read_bytes() == merged(MIXED)


@pytest.mark.parametrize(
    "last",
    [
        "\\r99 % ██",
        pytest.param("done\\n", marks=pytest.mark.slow),
        pytest.param("", marks=pytest.mark.slow),
    ],
)
def test_the_diagnosis_begins_on_a_line_of_its_own(tmp_path: Path, last: str) -> None:
    job = python(f"import sys; sys.stderr.write('{last}')")
    _, _, bare = in_pipes(job)
    code, _, told = in_pipes(doctor(tmp_path / "r", *job, options=()))
    assert code == 0
    assert told.removeprefix(bare).startswith(b"\n") == bool(bare and not bare.endswith(b"\n"))


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_file_is_written_to_directly(tmp_path: Path, mode: str) -> None:
    for name, command in (("bare", MIXED), ("seen", doctor(tmp_path / "r", *MIXED))):
        (tmp_path / name).write_bytes(b"before\n")
        with open(tmp_path / name, mode) as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 7
    assert (tmp_path / "seen").read_bytes() == (tmp_path / "bare").read_bytes()
    info = read_json(tmp_path / "r" / "recording.json")
    assert info["console_file"] == {"console": str(tmp_path / "seen")}
    copied = (tmp_path / "r/console/console.log").read_bytes()
    assert copied == (tmp_path / "bare").read_bytes()[7 if mode == "ab" else 0 :]


def test_what_goes_into_a_file_is_copied_while_the_job_runs(tmp_path: Path) -> None:
    """Whoever looks at the recording reads the copy, and follows no path into the user's files."""
    job = python(f"import time; print('a' * 50, flush=True); input(); print('b' * {6 << 20})")
    copy = tmp_path / "r/console"
    script = (
        "import sys\n"
        "from mgpu_doctor.launch import process_watch\nprocess_watch.CONSOLE_EVERY = 0.05\n"
        "from mgpu_doctor.cli import main\nsys.argv[0] = 'mgpu-doctor'\nmain()\n"
    )
    command = [sys.executable, "-c", script, *doctor(tmp_path / "r", *job)[3:]]
    with open(tmp_path / "out", "wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file)
        first = copy / "stdout.log"
        eventually("the copy", lambda: first.exists() and first.stat().st_size == 51)
        process.communicate(b"go\n")
    assert process.returncode == 0
    kept = [path.read_bytes() for path in sorted(copy.iterdir())]
    assert kept[-1].endswith(b"bbb\n")
    assert all(len(part) <= 2 * output_forwarding.KEEP for part in kept)


def test_of_a_lot_that_went_into_a_file_the_end_is_copied(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb+") as out:
        copies = job_console.FileCopy(out.fileno(), tmp_path / "copy")
        out.write(b"a" * (output_forwarding.KEEP + 10) + b"end")
        out.flush()
        copies.catch_up()
        copies.catch_up()
    kept = (tmp_path / "copy").read_bytes() + (tmp_path / "copy.1").read_bytes()
    assert kept.startswith(b"\n[mgpu-doctor: 13 bytes were not copied here]\naaa")
    assert kept.endswith(b"aend")
    assert kept.count(b"end") == 1


def test_a_file_that_is_emptied_is_copied_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with open(file, "wb+") as out:
        copies = job_console.FileCopy(out.fileno(), tmp_path / "copy")
        out.write(b"before\n")
        out.flush()
        copies.catch_up()
        out.truncate(0)
        out.seek(0)
        out.write(b"new\n")
        out.flush()
        copies.catch_up()
    assert (tmp_path / "copy").read_bytes() == b"before\nnew\n"


def test_a_terminal_gets_the_same_bytes(tmp_path: Path) -> None:
    seen = []
    for command in (MIXED, doctor(tmp_path / "r", *MIXED)):
        with terminal(command) as screen:
            seen.append(screen.end())
    assert seen[0] == seen[1]
    assert seen[0][0] == 7


def test_the_job_has_a_terminal_exactly_where_it_had_one(tmp_path: Path) -> None:
    assert in_pipes(doctor(tmp_path / "a", *TERMINALS))[1] == b"[False, False, False]\n"
    with terminal(doctor(tmp_path / "b", *TERMINALS)) as screen:
        assert screen.end() == (0, b"[True, True, True]\r\n")
    shell = ["sh", "-c", f'"$@" 2> {tmp_path}/err', "sh", *doctor(tmp_path / "c", *TERMINALS)]
    with terminal(shell) as screen:
        assert screen.end() == (0, b"[True, True, False]\r\n")


def test_the_terminal_has_the_same_size_and_follows(tmp_path: Path) -> None:
    program = python(
        "import os, signal, time\n"
        "shown = []\n"
        "def show(*_):\n"
        "    shown.append(os.get_terminal_size(1))\n"
        "    print(*shown[-1], flush=True)\n"
        "signal.signal(signal.SIGWINCH, show)\n"
        "show()\n"
        # `signal.pause` would miss a signal that comes just before it.
        "while shown[-1].columns != 99: time.sleep(0.01)\n"
        "print('done')\n"
    )
    with terminal(doctor(tmp_path / "r", *program), rows=30, columns=77) as screen:
        screen.read_until(b"77 30")
        screen.resize(40, 99)
        screen.read_until(b"99 40")
        assert screen.end()[0] == 0


def test_standard_input_is_the_jobs(tmp_path: Path) -> None:
    assert in_pipes(doctor(tmp_path / "a", "cat"), b"x\x00y" * 1000)[1] == b"x\x00y" * 1000
    with terminal(doctor(tmp_path / "b", *python("print('got', input('? '))"))) as screen:
        screen.read_until(b"? ")
        screen.type(b"hello\n")
        screen.read_until(b"got hello")
        assert screen.end()[0] == 0


def test_a_reader_that_goes_away_ends_the_job_as_without_us(tmp_path: Path) -> None:
    script = f'"$@" 2> {tmp_path}/err | head -n 1; echo "${{PIPESTATUS[0]}}"'
    ended = in_pipes(["bash", "-c", script, "sh", *doctor(tmp_path / "r", "yes")])
    assert ended == in_pipes(["bash", "-c", script, "sh", "yes"])
    assert ended[1] == b"y\n141\n"


def test_a_reader_that_goes_away_while_the_job_is_silent(tmp_path: Path) -> None:
    """The first write after that fails already, as in a bare pipe."""
    program = python(
        "import os, sys, time\n"
        "os.write(1, b'first\\n')\n"
        "sys.stdin.readline()\n"
        "for number in range(1, 100):\n"
        "    try: os.write(1, b'more\\n')\n"
        "    except BrokenPipeError: os.write(2, b'broken %d\\n' % number); break\n"
        "    time.sleep(0.05)\n"
    )
    process = subprocess.Popen(
        doctor(tmp_path / "r", *program),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdin
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    process.stdout = None
    assert b"broken" in process.communicate(b"go\n")[1]


@pytest.mark.slow
def test_much_output(tmp_path: Path) -> None:
    program = python(
        "import sys\n"
        "for n in range(0, 2_000_000, 1000):\n"
        "    sys.stdout.write(''.join('%014d\\n' % line for line in range(n, n + 1000)))"
    )
    seen = in_pipes(doctor(tmp_path / "r", *program))
    assert len(seen[1]) == 15 * 2_000_000
    assert seen == in_pipes(program)
    kept = sorted((tmp_path / "r/console").glob("stdout.log*"))
    assert sum(file.stat().st_size for file in kept) < 13 << 20
    assert kept[-1].read_bytes().endswith(b"%014d\n" % 1_999_999)


def test_a_grandchild_that_keeps_the_output_open_delays_nobody(tmp_path: Path) -> None:
    """The doctor ends with the job; what the grandchild prints later still arrives."""
    later = "import os; os.read(0, 1); print('later')"
    program = python(
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {later!r}], stdin=0)\n"
        "print('job over', flush=True); os._exit(5)\n"
    )
    process = subprocess.Popen(
        doctor(tmp_path / "r", *program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.wait() == 5
    assert (tmp_path / "r/console/stdout.log").read_text() == "job over\n"
    assert process.communicate(b"x")[0] == b"job over\nlater\n"


def test_closed_standard_output_stays_closed(tmp_path: Path) -> None:
    program = "import os, sys; sys.exit(11 if sys.stdout is None else 12)"
    script = '"$@" >&-'
    ended = in_pipes(["sh", "-c", script, "sh", *doctor(tmp_path / "r", *python(program))])
    assert ended == in_pipes(["sh", "-c", script, "sh", *python(program)])
    assert ended[0] == 11


def test_other_descriptors_are_inherited(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = doctor(tmp_path / "r", *python(f"import os; os.write({writer}, b'through')"))
    subprocess.run(command, pass_fds=[writer], check=True)
    os.close(writer)
    assert os.read(reader, 100) == b"through"
    assert os.read(reader, 100) == b"", "somebody of ours still holds the job's descriptor"
    os.close(reader)


def test_without_capture_the_job_has_our_own_output(tmp_path: Path) -> None:
    command = doctor(tmp_path / "r", *MIXED, options=["-q", "--no-capture"])
    assert in_pipes(command) == in_pipes(MIXED)
    assert not list((tmp_path / "r/console").iterdir())


def test_the_diagnosis_comes_after_all_output_on_standard_error(tmp_path: Path) -> None:
    command = doctor(tmp_path / "r", sys.executable, "-c", "print('last')", options=[])
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    assert done.stdout.startswith(b"last\n")
    assert str(tmp_path / "r").encode() in done.stdout
