"""Requesting flight-recorder dumps from running ranks: by socket, by NCCL's pipe, and by RAS."""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from mgpu_probes.outside.flight.live_recorders import (
    HANDLER,
    NEWER_TORCH,
    NO_RECORDER,
    WITHOUT_SITES,
    ask_by_pipe,
    ask_by_socket,
    find_pipe,
    gather_recorders,
)
from mgpu_probes.outside.flight.nccl_ras import NoRasError, ask_ras, parse_ras
from mgpu_probes.outside.jobs.running_jobs import JobProcess, RunningJob
from mgpu_probes.outside.stacks import worker_socket
from mgpu_probes.outside.torch_pickles import NotAFlightError

from tests.support.worker_server import answer, worker_server

DUMP = {
    "version": "2.10",
    "entries": [{"profiling_name": "nccl:all_reduce", "collective_seq_id": 7, "record_id": 0}],
}


def test_a_worker_server_is_asked_for_json() -> None:
    asked: list[str] = []

    def ask(handler: str) -> bytes:
        asked.append(handler)
        return json.dumps(DUMP).encode()

    before = time.time()
    form = ask_by_socket(ask, rank=3, pid=77)
    assert asked == [HANDLER]
    assert (form["rank"], form["pid"], form["source"]) == (3, 77, "worker socket")
    assert before <= form["at"] <= time.time()
    assert form["host"] == socket.gethostname()
    assert form["collectives"][0]["sequence"] == 7


def test_a_rank_that_was_not_asked_to_have_a_pipe() -> None:
    assert find_pipe({"HOME": "/home/me"}, 3) is None


def test_where_pipe_and_dump_are() -> None:
    environ = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/run/nccl", "HOME": "/home/me"}
    pipe = find_pipe(environ, 3, Path("/proc/7/root"))
    assert pipe is not None
    assert pipe.path == Path("/proc/7/root/run/nccl3.pipe")
    assert Path("/proc/7/root/home/me/.cache/torch/comm_lib_trace_rank_3") in pipe.dumps
    told = find_pipe({**environ, "TORCH_FR_DUMP_TEMP_FILE": "/d/../../x_"}, 3, Path("/r"))
    assert told is not None
    assert told.dumps == (Path("/r/d/x_3"),)


@contextmanager
def rank_with_pipe(folder: Path, *, answers: bool = True) -> Iterator[dict[str, str]]:
    """What ProcessGroupNCCL does: it makes the pipe, polls it, and writes over its last dump."""
    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "pipe_"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "trace_"),
    }
    os.mkfifo(folder / "pipe_3.pipe")
    reader = os.open(folder / "pipe_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    (folder / "trace_3").write_bytes(pickle.dumps({"entries": []}, 2))  # of an earlier question
    over = threading.Event()

    def poll() -> None:
        while not over.wait(0.02):
            asked = False
            with suppress(BlockingIOError):  # who asks has opened it and not yet written
                asked = bool(os.read(reader, 128))
            if asked and answers:
                raw = pickle.dumps(DUMP, 2)
                with (folder / "trace_3").open("wb") as file:
                    for index in range(0, len(raw), 40):  # slowly: nobody may read half of it
                        file.write(raw[index : index + 40])
                        file.flush()
                        over.wait(0.03)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield environ
    finally:
        over.set()
        thread.join()
        os.close(reader)


def test_a_whole_new_dump_is_waited_for(tmp_path: Path) -> None:
    with rank_with_pipe(tmp_path) as environ:
        pipe = find_pipe(environ, 3)
        assert pipe is not None
        before = time.time()
        form = ask_by_pipe(pipe)
    assert before <= form["at"] <= time.time()
    assert form["rank"] == 3
    assert [collective["sequence"] for collective in form["collectives"]] == [7]


def test_a_rank_that_does_not_answer(tmp_path: Path) -> None:
    with rank_with_pipe(tmp_path, answers=False) as environ:
        pipe = find_pipe(environ, 3)
        assert pipe is not None
        with pytest.raises(NotAFlightError, match="rank 3 wrote no dump"):
            ask_by_pipe(pipe, timeout=0.3)


def test_a_pipe_that_nobody_reads_and_what_is_no_pipe(tmp_path: Path) -> None:
    pipe = find_pipe({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "p")}, 0)
    assert pipe is not None
    with pytest.raises(NotAFlightError, match="no process reads"):
        ask_by_pipe(pipe)
    os.mkfifo(pipe.path)
    with pytest.raises(NotAFlightError, match="no process reads"):
        ask_by_pipe(pipe)
    pipe.path.unlink()
    pipe.path.write_text("mine")
    with pytest.raises(NotAFlightError, match="no pipe"):
        ask_by_pipe(pipe)
    assert pipe.path.read_text() == "mine"


def test_a_pipe_and_a_dump_of_another_user_are_left_alone(tmp_path: Path) -> None:
    with rank_with_pipe(tmp_path) as environ:
        other = find_pipe(environ, 3, user=os.geteuid() + 1)
        assert other is not None
        with pytest.raises(NotAFlightError, match="not a pipe of the rank's user"):
            ask_by_pipe(other)
        own = find_pipe(environ, 3, user=os.geteuid())
        assert own is not None
        assert ask_by_pipe(own)["rank"] == 3


@pytest.mark.parametrize("link", ["file", "folder"])
def test_no_link_leads_out_of_a_container(tmp_path: Path, link: str) -> None:
    """Its root is a folder here; what lies in it may be made by anybody in the container."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    for folder in (outside, root):
        folder.mkdir()
    os.mkfifo(outside / "pipe_3.pipe")
    reader = os.open(outside / "pipe_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    if link == "folder":
        (root / "run").symlink_to(outside)
    else:
        (root / "run").mkdir()
        (root / "run" / "pipe_3.pipe").symlink_to(outside / "pipe_3.pipe")
    pipe = find_pipe({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/run/pipe_"}, 3, root)
    assert pipe is not None
    assert pipe.path == root / "run" / "pipe_3.pipe"
    with pytest.raises(NotAFlightError, match="no process reads"):
        ask_by_pipe(pipe)
    assert os.read(reader, 1) == b""
    os.close(reader)


def process(pid: int, rank: int, state: str = "S") -> JobProcess:
    return JobProcess(
        pid=pid,
        parent=1,
        role="rank",
        state=state,
        rank=rank,
        local_rank=rank,
        world_size=4,
        name="python",
        command=("python", "train.py"),
        start_ticks=1,
        cpu_seconds=1.0,
        uid=os.getuid(),
        user=None,
        container=None,
        inner_pid=None,
    )


def test_each_rank_is_asked_by_the_way_that_it_offers(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for pid, environ in ((10, ""), (11, ""), (13, f"TORCH_WORKER_SERVER_SOCKET={tmp_path}/t.sock")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_text(f"HOME=/home/me\0{environ}\0")
    ranks = (process(10, 0), process(11, 1), process(12, 2, "Z"), process(13, 3))
    job = RunningJob("torchrun", 1, 4, ranks)
    reply = answer(json.dumps(DUMP).encode())
    with (
        worker_server(str(tmp_path / "own.sock"), reply) as own,
        worker_server(str(tmp_path / "t.sock"), reply) as torchs,
    ):
        found = gather_recorders(job, {10: str(tmp_path / "own.sock")}, timeout=60.0, proc=tmp_path)
    assert [(form["rank"], form["pid"]) for form in found.forms] == [(0, 10), (3, 13)]
    assert ["/handler/fr_trace_plain " in own[0], "/handler/fr_trace " in own[1]] == [True, True]
    assert "/handler/fr_trace_json " in torchs[0]
    (unread,) = found.unread
    assert unread.pid == 11
    assert "mgpu-doctor run" in unread.remedy


def test_a_rank_whose_call_stacks_take_too_long_is_read_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_worker(_: str, handler: str, timeout: float) -> bytes:
        if handler != WITHOUT_SITES:
            raise TimeoutError(f"no answer in {timeout} s")
        return json.dumps(DUMP).encode()

    monkeypatch.setattr(worker_socket, "ask_worker", ask_worker)
    job = RunningJob("torchrun", 1, 1, (process(10, 0),))
    found = gather_recorders(job, {10: str(tmp_path / "own.sock")}, timeout=1.0, proc=tmp_path)
    assert [(form["rank"], form["pid"]) for form in found.forms] == [(0, 10)]
    assert found.unread == ()


def test_a_torch_without_a_recorder_for_the_backend_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    job = RunningJob("torchrun", 1, 1, (process(10, 0),))
    socket_path = str(tmp_path / "own.sock")
    with worker_server(socket_path, answer(b"no such handler", "404 Not Found")) as asked:
        found = gather_recorders(job, {10: socket_path}, timeout=60.0, proc=tmp_path)
    assert len(asked) == 2
    assert found.forms == ()
    assert (found.unread[0].reason, found.unread[0].remedy) == (NO_RECORDER, NEWER_TORCH)


def test_a_rank_that_gives_no_answer_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    job = RunningJob("torchrun", 1, 1, (process(10, 0),))
    found = gather_recorders(job, {10: str(tmp_path / "gone.sock")}, timeout=60.0, proc=tmp_path)
    assert found.forms == ()
    assert "no answer" in found.unread[0].reason


RANK = """{"rank": %d, "host": "10.0.0.1", "pid": %d, "cuda_dev": %d, "nvml_dev": 0,
  "status": {"init_state": 0}, "collective_counts": {"Broadcast": 1, "AllReduce": %d}}"""
RAS_JSON = f"""{{
  "nccl_version": "2.28.9",
  "communicators_count": 1,
  "communicators": [ {{
      "hash": "0xa1", "size": 3, "ranks_count": 2, "missing_ranks_count": 1,
      "ranks": [ {RANK % (0, 100, 0, 10)}, {RANK % (1, 101, 1, 9)} ],
      "missing_ranks": [
        {{ "rank": 2, "host": "10.0.0.1", "pid": 102, "cuda_dev": 2, "nvml_dev": 2
          "status": {{ "unresponsive": true, "considered_dead": true }} }} ]
  }} ],
  "ras": {{ "collection_time_sec": 0.000, "timeouts_count": 1 }}
}}
"""
RAS_TEXT = """
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  30 ranks have launched up to operation 6650
  Rank 7 has launched up to operation 6649 -- GPU 7 managed by process 483079 on node 172.16.64.210
"""


def test_ras_json_is_read_although_nccl_forgets_a_comma() -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(RAS_JSON)
    report = parse_ras(RAS_JSON.encode())
    (communicator,) = report["communicators"]
    assert [rank["launched"] for rank in communicator["ranks"]] == [11, 10]
    (missing,) = communicator["missing"]
    assert (missing["rank"], missing["pid"], missing["dead"]) == (2, 102, True)
    assert (report["version"], report["timeouts"]) == ("2.28.9", 1)


def test_ras_text_names_the_outliers() -> None:
    mismatch, dead = parse_ras(RAS_TEXT.encode())["communicators"]
    (late,) = mismatch["ranks"]
    assert (late["rank"], late["pid"], late["launched"]) == (7, 483079, 6649)
    assert [one["pid"] for one in dead["missing"]] == [3487984]


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 400 Bad Request", b'{"a": 1}', b'{"communicators"']
)
def test_what_is_not_ras(raw: bytes) -> None:
    with pytest.raises(NoRasError):
        parse_ras(raw)


@contextmanager
def ras_server(format_known: bool) -> Iterator[tuple[str, int]]:
    """NCCL's side of the protocol (src/ras/client.cc tells the client's)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            peer, _ = server.accept()
            with peer, peer.makefile("rw", encoding="ascii", newline="\n") as lines:
                assert lines.readline().startswith("CLIENT PROTOCOL ")
                lines.write("SERVER PROTOCOL 2\n")
                lines.flush()
                assert lines.readline() == "SET FORMAT json\n"
                lines.write("OK\n" if format_known else "ERROR: Unknown command\n")
                lines.flush()
                assert lines.readline() == "VERBOSE STATUS\n"
                lines.write(RAS_JSON if format_known else RAS_TEXT)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            thread.join()


@pytest.mark.parametrize("format_known", [True, False])
def test_ras_is_asked_as_its_own_client_asks(format_known: bool) -> None:
    with ras_server(format_known) as address:
        report = ask_ras(address)
    assert report["communicators"]


def test_no_ras_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with pytest.raises(NoRasError, match="no answer"):
        ask_ras(address)
