"""Loading a recording: live, finished, killed, hostile."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.outside import processes
from mgpu_probes.outside.processes import find_start_ticks

from mgpu_doctor.case import recording_case
from mgpu_doctor.case.model import Case, Outcome, Rank, State
from mgpu_doctor.case.outcomes import MOST_MISSING
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.recording.box import Box, BoxFile, read_box
from mgpu_doctor.recording.layout import CONSOLE, END, EXITS, HOST_SAMPLES, HOSTS, INFO, SCHEMA
from mgpu_doctor.recording.live_recordings import make_outside
from mgpu_doctor.signatures.error_topics import TOPICS
from tests.support.boxes import SECOND, write_steps

HOST = os.uname().nodename
STARTED = 1_790_000_000.0


class Recorder:
    """Builds a recording by hand. Ranks are forked children that leave a box and are gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = folder / HOSTS / HOST
        self.host.mkdir(parents=True)

    def info(self, **more: Any) -> None:
        known = {"schema": SCHEMA, "id": "job", "host": HOST, "command": ["torchrun", "t.py"]}
        self.write(INFO, {**known, "started": STARTED, **more})

    def end(self, **more: Any) -> None:
        known = {"exit_code": None, "signal": None, "ended": STARTED + 100, "asked": None}
        self.write(END, {**known, **more})

    def write(self, name: str, content: Any) -> None:
        (self.folder / name).write_text(json.dumps(content))

    def line(self, name: str, *lines: Any) -> None:
        with (self.host / name).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def console(self, text: str, name: str = "console.log") -> None:
        (self.folder / CONSOLE).mkdir(exist_ok=True)
        (self.folder / CONSOLE / name).write_text(text)

    def rank(
        self,
        number: int,
        world: int = 2,
        *,
        how: str = "vanish",
        attempt: int = 0,
        by: str = "torchrun",
    ) -> int:
        """The pid of a rank that took ten steps and is gone. `how`: see `_train`, or vanish;
        `by`: its launcher."""
        pid = os.fork()
        if pid == 0:
            self._train(number, world, how, attempt, by)
            os._exit(0)
        os.waitpid(pid, 0)
        return pid

    def _train(self, number: int, world: int, how: str, attempt: int, by: str) -> None:
        boxes = self.host / "boxes"
        local = number
        writer = Writer.open(
            boxes, rank=number, local_rank=local, world_size=world, attempt=attempt
        )
        birth = {"framework": "torch", "strategy": "ddp", "launcher": by}
        writer.birth({**birth, "seed": find_start_ticks(os.getpid())})
        write_steps(writer, 10)
        if how == "raise":
            words = {"type": "ValueError", "message": "bad\x1b[2J", "file": "/a/t.py", "line": 7}
            writer.last_words(words)
            writer.state(layout.FAILED)
            writer.leave(1)
        elif how == "leave":
            writer.leave(0)
        elif how == "goodbye":
            writer.leave(None)
        elif how == "off":
            writer.switch_off("NameError: name 'x' is not defined")

    def load(self, until: float | None = None) -> Case:
        return load_recording(self.folder, until)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "job")


def states(case: Case) -> list[tuple[int | None, State]]:
    return [(rank.rank, rank.state) for rank in case.ranks]


def test_a_completed_job(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=0)
    for number in (1, 0):
        recorder.rank(number, how="leave")
    case = recorder.load()
    assert states(case) == [(0, State.EXITED), (1, State.EXITED)]
    job = case.job
    assert (job.outcome, job.exit_code, job.world_size) == (Outcome.COMPLETED, 0, 2)
    assert (job.framework, job.strategy, job.launcher) == ("torch", "ddp", "torchrun")
    assert job.hosts == (HOST,)
    assert (job.started, job.ended) == (STARTED, STARTED + 100)
    assert len(case.ranks[0].steps) == 10
    assert case.unexamined == ()


def test_an_exception_is_in_the_rank_that_raised_it(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=1)
    recorder.rank(0, how="leave")
    recorder.rank(1, how="raise")
    case = recorder.load()
    assert states(case) == [(0, State.EXITED), (1, State.DEAD)]
    error = case.ranks[1].error
    assert error is not None
    assert (error.type, error.message, error.line) == ("ValueError", "bad", 7)
    assert case.ranks[1].exit_code == 1
    assert case.job.outcome is Outcome.FAILED


def test_how_ray_ends_its_workers_is_not_how_the_training_ended(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=1)
    for number, how in enumerate(("leave", "raise", "vanish")):
        pid = recorder.rank(number, 3, how=how, by="ray")
        line = {"pid": pid, "exit_code": 1, "signal": None, "at": STARTED + 50, "how": "zombie"}
        recorder.line(EXITS, line)
    well, raised, unwanted = recorder.load().ranks
    assert (well.state, well.exit_code) == (State.EXITED, 0)
    assert (raised.state, raised.error is None) == (State.DEAD, False)
    assert (unwanted.state, unwanted.exit_code) == (State.DEAD, None)


def test_a_probe_that_switched_itself_off_is_reported_with_its_reason(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=0)
    recorder.rank(0, how="off")
    recorder.rank(1, how="off")
    (gap,) = recorder.load().unexamined
    assert gap.probe == "in-process probe"
    assert gap.reason.startswith("it switched itself off on 2 ranks: NameError")


def test_exit_statuses_seen_from_outside_come_first(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=1)
    pid = recorder.rank(0)
    other = recorder.rank(1)
    at = STARTED + 50
    recorder.line(EXITS, {"pid": pid, "exit_code": None, "signal": 9, "at": at, "how": "zombie"})
    reused = {"pid": other, "start_ticks": 1, "exit_code": 7, "signal": None, "at": at}
    recorder.line(EXITS, reused)
    killed, vanished = recorder.load().ranks
    assert (killed.signal, killed.exit_code, killed.ended) == (9, None, at)
    assert (vanished.signal, vanished.exit_code) == (None, None), "that was another process"
    assert vanished.state is State.DEAD


def test_how_a_rank_ended_is_known_if_it_ended_while_boxes_were_read(recorder: Recorder) -> None:
    recorder.info()
    pid = recorder.rank(0, world=1)

    def read(file: BoxFile) -> Box:
        recorder.line(EXITS, {"pid": pid, "signal": 9, "at": STARTED})
        return read_box(file)

    (rank,) = load_recording(recorder.folder, read=read).ranks
    assert (rank.state, rank.signal) == (State.DEAD, 9)


def test_a_process_ends_once_and_then_when_it_was_first_seen(recorder: Recorder) -> None:
    recorder.info()
    pid = recorder.rank(0, world=1)
    ticks = recorder.load().ranks[0].metadata.seed
    for later in range(3):
        end = {"pid": pid, "start_ticks": ticks, "signal": 9, "at": STARTED + later}
        recorder.line(EXITS, end)
    case = recorder.load()
    assert [end.at for end in case.ends] == [STARTED]
    assert case.ranks[0].ended == STARTED


def test_the_console_tells_what_nobody_saw(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=1)
    pids = [recorder.rank(0), recorder.rank(1, how="leave")]
    entries = "".join(
        f"[{at}]:\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid})\n"
        for at, (rank, pid, code) in enumerate([(0, pids[0], -11)])
    )
    recorder.console(f"Root Cause (first observed failure):\n{entries}{'=' * 60}\n")
    case = recorder.load()
    assert case.ranks[0].signal == 11
    assert [end.first for end in case.console.ends] == [True]


def test_a_goodbye_without_a_code_gets_the_one_that_the_console_tells(recorder: Recorder) -> None:
    """Python's `atexit` does not tell a process the code that it was ended with."""
    recorder.info()
    recorder.end(exit_code=1)
    pids = [recorder.rank(number, world=3, how="goodbye") for number in range(3)]
    recorder.console(
        f"failed (exitcode: 3) local_rank: 0 (pid: {pids[0]}) of binary: x\n"
        f"failed (exitcode: 4) local_rank: 1 (pid: {max(pids) + 1}) of binary: x\n"
    )
    case = recorder.load()
    assert [rank.exit_code for rank in case.ranks] == [3, None, None], "the second is another pid"
    assert [rank.state for rank in case.ranks] == [State.DEAD, State.EXITED, State.EXITED]


def test_a_live_job_runs(recorder: Recorder) -> None:
    recorder.info(job_pid=os.getpid(), job_start_ticks=find_start_ticks(os.getpid()))
    writer = Writer.open(recorder.host / "boxes", rank=0, local_rank=0, world_size=2)
    writer.words[layout.NOW_SITE // 8] = writer.site("all_reduce t.py:8")
    writer.words[layout.NOW_PHASE // 8] = layout.WAIT | 4 << 8
    writer.words[layout.NOW_SINCE // 8] = 5 * SECOND
    case = recorder.load()
    assert case.job.outcome is Outcome.RUNNING
    assert states(case) == [(0, State.WAITING), (1, State.MISSING)]
    now = case.ranks[0].now
    assert now is not None
    assert (now.phase, now.step, now.site) == ("wait", 4, "all_reduce t.py:8")
    assert now.since == pytest.approx(5 + case.ranks[0].clock_offset)
    writer.close()


def test_a_job_whose_processes_are_all_gone_without_a_word_was_killed(recorder: Recorder) -> None:
    gone = recorder.rank(0)
    recorder.rank(1)
    recorder.info(job_pid=gone, job_start_ticks=1)
    case = recorder.load()
    assert case.job.outcome is Outcome.KILLED
    assert states(case) == [(0, State.DEAD), (1, State.DEAD)]
    assert case.job.ended is None


@pytest.mark.parametrize(
    ("end", "how", "outcome"),
    [
        ({"exit_code": 1, "asked": "SIGINT"}, "vanish", Outcome.KILLED),
        ({"signal": 9}, "vanish", Outcome.KILLED),
        ({"signal": 11}, "vanish", Outcome.FAILED),
        ({"exit_code": 1}, "vanish", Outcome.FAILED),
        ({"exit_code": 0}, "vanish", Outcome.COMPLETED),
        ({"exit_code": 0}, "raise", Outcome.FAILED),
    ],
)
def test_outcomes(recorder: Recorder, end: dict[str, Any], how: str, outcome: Outcome) -> None:
    recorder.info()
    recorder.end(**end)
    recorder.rank(0, how=how)
    recorder.rank(1, how=how)
    assert recorder.load().job.outcome is outcome


def test_a_launcher_that_says_it_was_asked_to_end(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=1)
    recorder.rank(0)
    recorder.console("W1 api.py:753] Received 15 death signal, shutting down workers\n")
    job = recorder.load().job
    assert (job.outcome, job.asked) == (Outcome.KILLED, "SIGTERM")


def test_a_folder_of_boxes_alone_is_enough(recorder: Recorder) -> None:
    recorder.rank(0, how="leave")
    recorder.rank(1, how="leave")
    case = load_recording(recorder.host / "boxes")
    assert states(case) == [(0, State.EXITED), (1, State.EXITED)]
    assert case.job.outcome is Outcome.COMPLETED


def test_boxes_may_lie_elsewhere(recorder: Recorder, tmp_path: Path) -> None:
    recorder.rank(0, world=1, how="leave")
    folder, key = make_outside(tmp_path)
    for box in (recorder.host / "boxes").iterdir():
        box.rename(folder / box.name)
    recorder.info(boxes=str(folder), boxes_key=key)
    assert [rank.rank for rank in recorder.load().ranks] == [0]


def test_a_recording_names_no_folder_of_its_readers(recorder: Recorder, tmp_path: Path) -> None:
    """It may come from a stranger, who wrote whatever he liked into it."""
    recorder.rank(0, world=1, how="leave")
    folder, _ = make_outside(tmp_path)
    for box in (recorder.host / "boxes").iterdir():
        box.rename(folder / box.name)
    for wrong in ({}, {"boxes_key": "0" * 32}, {"boxes_key": ["x"]}):
        recorder.info(boxes=str(folder), **wrong)
        assert recorder.load().ranks == ()


def test_a_box_of_many_names_is_one_rank(recorder: Recorder) -> None:
    """Each name would cost the memory of a whole box."""
    recorder.info()
    pid = recorder.rank(0, world=1, how="leave")
    (path,) = (recorder.host / "boxes").iterdir()
    for number in range(20):
        os.link(path, path.with_name(f"other.{pid}.{number}.box"))
    case = recorder.load()
    assert len(case.ranks) + len(case.earlier) == 1


def test_only_the_last_attempt_counts(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=0)
    for number in range(2):
        recorder.rank(number, how="raise")
        recorder.rank(number, how="leave", attempt=1)
    case = recorder.load()
    assert [(rank.rank, rank.attempt) for rank in case.ranks] == [(0, 1), (1, 1)]
    assert [(rank.rank, rank.attempt) for rank in case.earlier] == [(0, 0), (1, 0)]
    assert case.job.outcome is Outcome.COMPLETED


def test_ranks_of_other_hosts_are_not_called_missing(recorder: Recorder) -> None:
    recorder.info(command=["torchrun", "--nnodes", "2", "t.py"])
    recorder.rank(0, world=4, how="leave")
    assert [rank.rank for rank in recorder.load().ranks] == [0]


@pytest.mark.parametrize(("world", "ranks"), [(MOST_MISSING, MOST_MISSING), (MOST_MISSING + 1, 1)])
def test_one_box_cannot_claim_any_number_of_ranks(
    recorder: Recorder, world: int, ranks: int
) -> None:
    recorder.info()
    recorder.rank(0, world=world, how="leave")
    assert len(recorder.load().ranks) == ranks


def test_a_replay_knows_only_what_was_known_then(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=1, ended=9e9)
    recorder.rank(0, world=1, how="raise")
    last = recorder.load().ranks[0]
    born = last.started
    assert born is not None
    assert last.ended is not None
    recorder.line(HOST_SAMPLES, {"at": born - 1}, {"at": born + 9e6})
    assert recorder.load(born - 1).ranks == ()
    case = recorder.load((born + last.ended) / 2)
    (rank,) = case.ranks
    assert rank.state is State.RUNNING
    assert (rank.error, rank.exit_code, rank.ended) == (None, None, None)
    assert case.job.outcome is Outcome.RUNNING
    assert len(case.host_samples) == 1
    assert case.observed == (born + last.ended) / 2


def test_a_replay_cuts_the_steps_and_tells_the_phase_from_the_last_one(recorder: Recorder) -> None:
    recorder.info()
    recorder.rank(0, world=1, how="leave")
    path = next((recorder.host / "boxes").glob("*.box"))
    _set_clock(path, realtime_ns=0, monotonic_ns=0)  # the steps ended at 1 s, 2 s, …
    (rank,) = recorder.load(4.5).ranks
    assert len(rank.steps) == 4
    assert rank.now is not None
    assert (rank.now.phase, rank.now.step, rank.now.since) == ("forward", 4, 4.0)


def _set_clock(path: Path, realtime_ns: int, monotonic_ns: int) -> None:
    with path.open("r+b") as file:
        fields = list(layout.IDENTITY.unpack(file.read(layout.IDENTITY.size)))
        fields[20:22] = [realtime_ns, monotonic_ns]
        file.seek(0)
        file.write(layout.IDENTITY.pack(*fields))


@pytest.mark.parametrize("kind", ["absent", "file", "empty", "broken info"])
def test_what_is_no_recording_is_reported_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("")
    elif kind != "absent":
        path.mkdir()
    if kind == "broken info":
        (path / INFO).write_text("{")
    with pytest.raises(NotARecording, match=str(path)) as caught:
        load_recording(path)
    assert "\n" not in str(caught.value)


def test_a_recording_without_a_rank_is_one(recorder: Recorder) -> None:
    recorder.info()
    recorder.end(exit_code=127)
    case = recorder.load()
    assert case.ranks == ()
    assert case.job.outcome is Outcome.FAILED
    assert [item.probe for item in case.unexamined] == ["in-process probe"]


HOSTILE: list[bytes] = [
    b"\xff\xfe\x00garbage\n",
    b"[" * 100_000 + b"\n",
    b'{"at": NaN, "pid": 1}\n',
    b'{"at": 1e999, "pid": "x", "processes": [], "devices": {}}\n',
    b'{"at": 5, "processes": {"1": [1], "x": [1, 2], "\\u00b2": [1, 2], "2": [0.5, 7]}}\n',
    b'{"at": 6, "memory_used": -4, "memory_total": true, "cores": 1e3}\n',
    b'{"pid": ' + b"9" * 5000 + b', "at": 1}\n',
    b'{"at": 7, "half',
]


def test_hostile_lines_are_counted_and_skipped(recorder: Recorder) -> None:
    recorder.info()
    recorder.rank(0, world=1, how="leave")
    for name in (HOST_SAMPLES, EXITS, "devices.jsonl"):
        (recorder.host / name).write_bytes(b"".join(HOSTILE))
    case = recorder.load()
    assert [sample.at for sample in case.host_samples] == [5, 6, 1], "of `pid` none knows there"
    assert case.host_samples[0].processes == {2: (0.5, 7)}
    assert case.host_samples[1].memory_used is None
    assert case.host_samples[1].memory_total is None
    told = {item.probe: item.reason for item in case.unexamined}
    assert told[EXITS] == "7 of its lines cannot be read"
    assert told[HOST_SAMPLES] == "4 of its lines cannot be read", "the last one is still written"


def test_hostile_boxes_and_files_are_reported_not_followed(
    recorder: Recorder, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:hash")
    recorder.info(id="\x1b[31mx", command=["a\x00\x1b]0;t\x07b", 7, None], job_pid="x", boxes=3)
    recorder.rank(0, world=1, how="leave")
    boxes = recorder.host / "boxes"
    (boxes / "bad.1.0.box").write_bytes(b"no box at all")
    (boxes / "link.1.0.box").symlink_to(secret)
    os.mkfifo(boxes / "pipe.1.0.box")
    (recorder.folder / CONSOLE).mkdir()
    (recorder.folder / CONSOLE / "stdout.log").symlink_to(secret)
    os.mkfifo(recorder.folder / CONSOLE / "stderr.log")
    (recorder.folder / END).symlink_to(secret)
    case = recorder.load()
    assert [rank.rank for rank in case.ranks] == [0]
    assert len([item for item in case.unexamined if item.probe == "black box"]) == 3
    assert case.console.tail == ()
    assert case.job.id == "x"
    assert case.job.command == ("ab", "", "")


def test_the_consoles_tail_is_printable_and_bounded(recorder: Recorder) -> None:
    recorder.info()
    recorder.console("old\n" * 5000, "stdout.log")
    recorder.console("\x1b[31mred\x1b[0m" + "x" * 10_000 + "\n\u202eback\n", "stdout.log.1")
    tail = recorder.load().console.tail
    assert tail[-1] == "back"
    assert tail[-2].startswith("redxxx")
    assert len(tail[-2]) <= 500
    assert len(tail) <= 400


def test_no_file_that_a_recording_names_is_read(recorder: Recorder, tmp_path: Path) -> None:
    """It may come from a stranger, and name the reader's credentials."""
    secret = tmp_path / "credentials"
    secret.write_text("hunter2\n")
    recorder.info(console_file={"stdout": str(secret)}, console_offset={"stdout": 0})
    recorder.end(exit_code=1)
    assert recorder.load().console.tail == ()


@pytest.mark.parametrize("at", [1e300, -1.0, float("nan"), 1e17, "x", [], 10**400])
def test_a_time_that_no_clock_shows_is_none(recorder: Recorder, at: Any) -> None:
    """Views ask calendars about times, which raise beyond some year."""
    recorder.info(started=at)
    recorder.end(exit_code=0, ended=at)
    recorder.line(HOST_SAMPLES, {"at": at, "cpu_percent": 3.0}, {"at": STARTED, "cpu_percent": 3.0})
    case = recorder.load()
    assert (case.job.started, case.job.ended) == (None, None)
    assert [sample.at for sample in case.host_samples] == [STARTED]


def test_many_samples_are_thinned_out(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.info()
    recorder.line(HOST_SAMPLES, *({"at": STARTED + second} for second in range(90)))
    monkeypatch.setattr(recording_case, "MOST_SAMPLES_BYTES", 700)
    moments = [sample.at - STARTED for sample in recorder.load().host_samples]
    assert moments == [*range(89 % 3, 90, 3)]


def test_a_killed_run_says_which_console_it_has_not(recorder: Recorder) -> None:
    recorder.info(console_file={"stdout": "/srv/train.log"}, job_pid=1 << 29)
    recorder.rank(0, world=1)
    (told,) = [gap for gap in recorder.load().unexamined if gap.probe == "console log"]
    assert "`mgpu-doctor diagnose RECORDING FILE`" in str(told.remedy)
    recorder.end(exit_code=0)
    assert "console log" not in {gap.probe for gap in recorder.load().unexamined}


@pytest.mark.parametrize("folder", ["hosts", "boxes", "console", "flight"])
def test_no_folder_leads_out_of_a_recording(
    recorder: Recorder, tmp_path: Path, folder: str
) -> None:
    """A whole honest recording lies outside: none of it comes in through a link."""
    outside = Recorder(tmp_path / "outside")
    outside.rank(0, world=1, how="leave")
    outside.console("a word from outside\n")
    outside.line(HOST_SAMPLES, {"t": STARTED, "cpu": 0.5})
    (outside.host / "flight").mkdir()
    (outside.host / "flight" / "rank-0.json").write_text('{"entries": [], "rank": 0}')
    recorder.info(boxes=str(outside.host / "boxes"))
    recorder.end(exit_code=1)
    where = {"hosts": recorder.folder, "console": recorder.folder}.get(folder, recorder.host)
    there = {"hosts": outside.folder, "console": outside.folder}.get(folder, outside.host)
    assert (there / folder).is_dir()
    if folder == "hosts":
        recorder.host.rmdir()
        (recorder.folder / folder).rmdir()
    (where / folder).symlink_to(there / folder)
    case = recorder.load()
    assert case.ranks == ()
    assert case.console.tail == ()
    assert case.host_samples == ()
    assert case.flights == ()


def test_a_rank_is_a_plain_fact(recorder: Recorder) -> None:
    recorder.info()
    recorder.rank(0, world=1, how="leave")
    (rank,) = recorder.load().ranks
    assert isinstance(rank, Rank)
    assert rank.host == HOST
    assert rank.lost_records == 0
    assert rank.device is None


def living(recorder: Recorder, **birth: object) -> None:
    """Records this very process, which lives, as a rank."""
    recorder.info()
    writer = Writer.open(recorder.host / "boxes", rank=0, local_rank=0, world_size=1)
    writer.birth({"framework": "torch", **birth})
    write_steps(writer, 10)
    writer.close()


def test_only_a_process_that_is_surely_the_rank_is_asked_anything(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    living(recorder)
    assert [rank.is_here for rank in recorder.load().ranks] == [True]
    for name, value in (
        ("find_start_ticks", lambda _: 1),
        ("boot_id", lambda: "00000000-0000-0000-0000-000000000000"),
        ("find_uid", lambda _: 54321),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(processes, name, value)
            if name == "find_start_ticks":
                patch.setattr(processes, "is_alive", lambda _, started: started == 1)
            assert [rank.is_here for rank in recorder.load().ranks] == [False], name
    assert [rank.is_here for rank in recorder.load(until=9e9).ranks] == [False]


def test_a_box_that_tells_no_boot_or_start_names_no_process_of_this_machine(
    recorder: Recorder,
) -> None:
    """Both are easily left out by who invents a box."""
    living(recorder)
    (path,) = (recorder.host / "boxes").glob("*.box")
    raw = bytearray(path.read_bytes())
    boot = bytes.fromhex(str(processes.boot_id()).replace("-", ""))
    ticks = (find_start_ticks(os.getpid()) or 0).to_bytes(8, sys.byteorder)
    for part in (boot, ticks):
        changed = bytearray(raw)
        at = bytes(raw).index(part)
        changed[at : at + len(part)] = bytes(len(part))
        path.unlink()
        path.write_bytes(changed)
        assert [rank.is_here for rank in recorder.load().ranks] == [False]


def test_a_socket_is_looked_for_beside_the_box_alone(recorder: Recorder) -> None:
    """Whatever path a box tells: it could lead to any socket of the reader's."""
    living(recorder, worker_socket="/run/user/1000/gnupg/S.gpg-agent")
    (rank,) = recorder.load().ranks
    assert Path(rank.metadata.worker_socket or "").parent == recorder.host / "boxes"
    assert (rank.metadata.worker_socket or "").endswith(f".{os.getpid()}.0.sock")


UNKNOWN_ERROR = "[ERROR] PoolError: unable to allocate 3 GiB for the buffer\n"


@pytest.mark.parametrize(
    ("end", "codes"),
    [
        pytest.param({"exit_code": 1}, ["oom-host"], id="failed"),
        pytest.param({"exit_code": 0}, [], id="completed"),
        pytest.param({"signal": 15, "asked": 15}, [], id="asked to end"),
    ],
)
def test_words_of_an_unknown_error_count_if_the_job_failed(
    recorder: Recorder, end: dict[str, int], codes: list[str]
) -> None:
    recorder.info()
    recorder.console(f"step 1 loss 0.5\n{UNKNOWN_ERROR}")
    recorder.end(**end)
    signs = recorder.load().signs
    assert [topic.code for topic in TOPICS for sign in signs if sign.signature == topic.id] == codes


def test_words_that_say_how_a_process_ended_do_not_count_in_a_recording(recorder: Recorder) -> None:
    recorder.info()
    recorder.console("step 1 loss 0.5\nLaunchError: child ended with status -9\n")
    recorder.end(exit_code=1)
    assert recorder.load().signs == ()
