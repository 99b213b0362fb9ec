"""Names of files, folders and arguments that hold escape sequences, line breaks or no text at all:
every verb that takes one shows it harmlessly, whatever the terminal's encoding."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from mgpu_doctor.cli import app
from tests.support.launching import python
from tests.support.recordings import HEALTHY, SLOW_INPUT, WAITING, recording

SECONDS = 120
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u061c\x85x\r"
FORGED = "mgpu-doctor: all is well"
KINDS = {
    "escapes": (ESCAPES, "utf-8"),
    "a line of its own": (f"a\n{FORGED}", "utf-8"),
    "bytes in ASCII": (os.fsdecode(b"\xff\x9b2J"), "ascii"),
}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ERASED = "\r\x1b[K"


class World:
    """A folder with files of such names."""

    def __init__(self, folder: Path, name: str) -> None:
        self.home = folder / f"home{name}"
        self.log = folder / f"{name}.log"
        self.log.write_text("step 1 loss 2.5\n")
        self.loop = folder / f"loop{name}"
        self.loop.symlink_to(self.loop)
        self.full = folder / f"full{name}"
        self.full.mkdir()
        (self.full / "other").write_text("x")
        self.job = recording(folder / f"job{name}", [WAITING, SLOW_INPUT], steps=40)
        self.other = recording(folder / f"other{name}", [HEALTHY] * 2, steps=40)
        self.kept = recording(self.home / "runs" / f"kept{name}", [HEALTHY], steps=10)
        self.script = folder / f"{name}.py"
        self.script.write_text("def plan():\n    raise ValueError('\\x1b]0;owned\\x07 \\x9b2J')\n")
        self.paths = {key: os.fspath(value) for key, value in vars(self).items()}
        self.paths |= {"name": name, "none": os.fspath(folder / f"none{name}")}
        self.paths["new"] = os.fspath(folder / f"new{name}")

    def words(self, line: str) -> list[str]:
        return [word.format(**self.paths) for word in line.split()]


@pytest.fixture(scope="module", params=KINDS)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[World, str]:
    name, charset = KINDS[request.param]
    return World(tmp_path_factory.mktemp("hostile"), name), charset


LINES = """
diagnose {log}
diagnose {none}
diagnose {loop}
diagnose {full}
diagnose {job}
diagnose {job} {other} --json
diagnose --{name}
report {job}
report {job} --no-redact
report {job} -o {new}.html
report {job} -o {new}.pdf
report {job} -o {none}/new.md
report {log}
report {none}
compare {job} {other}
compare {job} {other} --json
compare {job} {other} -o {new}.md
compare {job} {other} -o {none}/new.md
compare {job} {full}
compare {job} {none}
compare {job} {other} --fail-on-regression {name}
export {job} --csv {new}.csv.gz
export {job} --timeline {new}.json
export {job} --parquet {new}.parquet
export {job} --tensorboard {new}.scalars
export {job} --csv {new}.xls
export {job} --csv {none}/new.csv
export {none} --csv new.csv
export --serve --listen {name}
export --serve --token-file {none}
export --serve --no-token {none}
top {job} --once
top {job} --json
top {none} --once
top --replay {job} --once
top --replay {full} --once
top {job} --once --only ranks={name}
runs
runs --json
runs --match zz
runs show {kept}
runs show {none}
runs show {log}
runs prune --older {name}
plan {script}:plan
plan gpt-nano --strategy {name}
trace {job}
trace {log}
trace {none}
trace {job} -o {full}
check
check --json
explain {name}
train {name}
train --sweep {name}
run --dir {full} -- true
run --json-out {none}/new -- true
run -- {none}
run --on-hang {name} -- true
{name}
""".strip().splitlines()


@pytest.mark.parametrize(
    "line",
    # `plan` of a script and TensorBoard's writer load torch.
    [
        pytest.param(
            line,
            marks=[pytest.mark.slow] if line.startswith("plan {script}") or "board" in line else [],
        )
        for line in LINES
    ],
)
def test_what_is_shown_is_harmless(
    world: tuple[World, str], line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there, charset = world
    monkeypatch.setenv("MGPU_DOCTOR_HOME", os.fspath(there.home))
    monkeypatch.chdir(tmp_path)
    done = CliRunner(charset=charset).invoke(app, there.words(line), color=True)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    shown = (done.stdout_bytes + done.stderr_bytes).decode(charset)
    assert shown
    assert harmful(shown) == []
    assert not re.search(f"^{FORGED}", shown, re.MULTILINE)


def harmful(shown: str) -> list[str]:
    """Control characters but newlines, formatting characters and halves of surrogate pairs."""
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return [letter for letter in shown if unicodedata.category(letter) in kinds and letter != "\n"]


_IN_TURN = """
import json, sys
from mgpu_doctor.cli import main
for place, words in enumerate(json.loads(sys.argv[1])):
    sys.argv[1:] = words
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    for stream in (sys.stderr, sys.stdout):
        stream.flush()
    print(f"\\n==== command {place} ended with {code}", flush=True)
"""
"""One process runs all commands, as each would spend its time on loading the doctor."""
ENDED = re.compile(r"\n==== command \d+ ended with (\d+)\n")


def in_turn(there: World, lines: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", _IN_TURN, json.dumps([there.words(line) for line in lines])]


def outputs(shown: str, lines: Sequence[str]) -> dict[str, tuple[str, int]]:
    """What each command wrote, and its exit code."""
    *parts, rest = ENDED.split(shown)
    assert rest == "", rest
    answers = [(text, int(code)) for text, code in zip(parts[::2], parts[1::2], strict=True)]
    return dict(zip(lines, answers, strict=True))


def on_terminal(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """What the command writes to a terminal with colours, without its colours and progress."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as process:
        os.close(slave)
        seen = b""
        while part := _read(master):
            seen += part
        process.wait(SECONDS)
    os.close(master)
    return COLOURS.sub("", seen.decode().replace(ERASED, "").replace("\r\n", "\n"))


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # nobody writes there any more
        return b""


ON_TERMINAL = {
    "diagnose {log}": "0;ownedx.log",
    "diagnose {none}": "0;ownedx does not exist: name a process id",
    "diagnose {job} --{name}": "No such option",
    "report {job} -o {new}.md": "0;ownedx.md",
    "runs show {kept}": "mgpu-doctor diagnose",
    "top {job} --once": "Rank 1",
}


def test_a_terminal_gets_no_foreign_sequence(tmp_path: Path) -> None:
    there = World(tmp_path, ESCAPES)
    environment = {**os.environ, "MGPU_DOCTOR_HOME": str(there.home), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    shown = on_terminal(in_turn(there, [*ON_TERMINAL]), environment)
    for line, (text, _) in outputs(shown, [*ON_TERMINAL]).items():
        assert harmful(text) == [], line
        assert ON_TERMINAL[line] in text, line


IN_ASCII = (
    "diagnose {log}",
    "diagnose {none}",
    "report {job} -o {new}.md",
    "export {job} --csv {new}.csv",
    "top {job} --once",
    "runs show {kept}",
    "check --json",
)


def test_names_that_are_no_text_in_an_ascii_locale(tmp_path: Path) -> None:
    there = World(tmp_path, os.fsdecode(b"\xff\x9b2J"))
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        in_turn(there, IN_ASCII),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, "MGPU_DOCTOR_HOME": str(there.home)},
        timeout=SECONDS,
        check=False,
    )
    for line, (text, code) in outputs(done.stdout.decode("ascii"), IN_ASCII).items():
        assert "Traceback" not in text, line
        assert code in (0, 1, 3), line
        assert harmful(text) == [], line


def test_a_crash_shows_its_message_harmlessly() -> None:
    program = (
        "import sys\n"
        "from mgpu_doctor.cli import explain, main\n"
        "def fail(words):\n"
        f"    raise ValueError({ESCAPES!r})\n"
        "explain.print_text = fail\n"
        "sys.argv = ['mgpu-doctor', 'explain']\n"
        "main()"
    )
    done = subprocess.run(
        python(program), capture_output=True, encoding="utf-8", timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert "ValueError: 0;owned" in done.stderr
    assert harmful(done.stderr) == []
