"""Collectives timed on demand: when a rank refuses, and what is asked of the ranks in which order.

No NCCL here: the groups are pretended, and the dumps are written in torch's format."""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from mgpu_probes.inprocess import worker_server
from mgpu_probes.inprocess.probe_context import ProbeContext
from mgpu_probes.outside.flight import timed_collectives
from mgpu_probes.outside.flight.timed_collectives import (
    NotTimedError,
    check_timing,
    time_collectives,
)
from mgpu_probes.outside.traces.probe_tracing import LocalRanks
from mgpu_probes.outside.traces.trace_requests import TraceRequest

from mgpu_doctor.cli import app
from mgpu_doctor.examine import trace_targets
from tests.support.timed_dumps import dump_of, timed_entry

LATE = [[6.0, 5.0, 7.0, 6.0], [2.0, 2.0, 2.0, 2.0], [4.0, 3.0, 3.0, 4.0]]
"""Milliseconds of three ranks: rank 1 arrives last, and moving the data takes 2 ms."""


class Group:
    """A process group whose backends have these names."""

    def __init__(self, *backends: str) -> None:
        self._device_types = list(backends)
        self.timed = 0

    def _get_backend(self, device: str) -> SimpleNamespace:
        if device == "none":
            raise RuntimeError("Could not retrieve backend for this device")
        return SimpleNamespace(name=lambda: device)

    def _enable_collectives_timing(self) -> None:
        self.timed += 1


class ProcessGroupNCCL:
    """A backend that does not give its name."""


class UnnamedGroup(Group):
    def _get_backend(self, _: str) -> ProcessGroupNCCL:  # type: ignore[override]
        return ProcessGroupNCCL()


class OldGroup(Group):
    _enable_collectives_timing = property()  # raises AttributeError


def load_module(monkeypatch: pytest.MonkeyPatch, world: SimpleNamespace) -> ModuleType:
    """The probe's module with a pretended torch: the real one takes seconds to load."""
    groups = SimpleNamespace(distributed_c10d=SimpleNamespace(_world=world))
    torch = SimpleNamespace(__version__="2.0", distributed=groups)
    monkeypatch.setitem(sys.modules, "torch", torch)
    spec = find_spec("mgpu_probes.inprocess.frameworks.torch.collective_timing")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_installed_torch_keeps_its_groups_where_the_probe_looks() -> None:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("distributed") / "distributed_c10d.py"
    text = source.read_text(encoding="utf-8")
    assert "\n_world = " in text
    assert "def pg_map(self)" in text


def answered(
    monkeypatch: pytest.MonkeyPatch, groups: Sequence[Group], handler: str, **environment: str
) -> dict[str, object]:
    """What the probe of a rank in these groups answers."""
    world = SimpleNamespace(pg_map=dict.fromkeys(groups))
    collective_timing = load_module(monkeypatch, world)
    probe = ProbeContext()
    probe.on, probe.rank, probe.objects.backend = True, 3, "gloo"
    vars(collective_timing)["probe"] = probe
    for name in (*collective_timing.BUFFER_SIZES, collective_timing.MAX_CONNECTIONS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker_server, "handlers", {})
    collective_timing.serve()
    answer = json.loads(worker_server.handlers[handler]())
    assert isinstance(answer, dict)
    return answer


def test_all_nccl_groups_are_timed_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl, gloo, both = Group("nccl"), Group("gloo"), Group("none", "gloo", "nccl")
    unnamed = UnnamedGroup("cuda")
    answer = answered(monkeypatch, [nccl, gloo, both, unnamed], "collective_timing_begin")
    assert answer == {"rank": 3, "told": 0, "why": None, "groups": 3}
    assert [group.timed for group in (nccl, gloo, both, unnamed)] == [1, 0, 1, 1]


def test_a_question_switches_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group("nccl")
    assert answered(monkeypatch, [group], "collective_timing")["why"] is None
    assert group.timed == 0


@pytest.mark.parametrize(
    ("group", "environment", "why"),
    [
        (Group("gloo"), {}, "its backend is gloo, and only NCCL"),
        (OldGroup("nccl"), {}, "cannot time the collectives of a running job"),
        (Group("nccl"), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (Group("nccl"), {"TORCH_FR_BUFFER_SIZE": "0"}, "its flight recorder is disabled"),
        (Group("nccl"), {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "its flight recorder is disabled"),
    ],
)
def test_why_a_rank_refuses(
    monkeypatch: pytest.MonkeyPatch, group: Group, environment: Mapping[str, str], why: str
) -> None:
    answer = answered(monkeypatch, [group], "collective_timing_begin", **environment)
    assert why in str(answer["why"])
    assert group.timed == 0


class Rank:
    """A socket that answers like a rank whose probe times collectives."""

    def __init__(self, path: Path, number: int, times: Sequence[float | None], world: int) -> None:
        self.path = str(path)
        self.asked: list[str] = []
        self.why: str | None = None
        self.dump = dump_of([timed_entry(n, time) for n, time in enumerate(times, 1)], world)
        self._number, self._steps = number, 0
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            client, _ = self._server.accept()
            with client:
                handler = client.recv(4096).split()[1].decode().rpartition("/")[2]
                if handler == "bye":
                    return
                self.asked.append(handler)
                client.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + self._answer(handler))

    def _answer(self, handler: str) -> bytes:
        if handler == timed_collectives.DUMP.handler:
            return pickle.dumps(self.dump, 2)
        self._steps += 10
        state = {"rank": self._number, "told": self._steps, "why": self.why}
        return json.dumps(state).encode()

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.path)
            last.sendall(b"POST /bye HTTP/1.1\r\n")
        self._thread.join()
        self._server.close()


@contextmanager
def started(folder: Path, milliseconds: Sequence[Sequence[float | None]]) -> Iterator[list[Rank]]:
    folder.mkdir(mode=0o700)
    made = [
        Rank(folder / f"{number}.sock", number, times, len(milliseconds))
        for number, times in enumerate(milliseconds)
    ]
    try:
        yield made
    finally:
        for rank in made:
            rank.close()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    with started(tmp_path / "boxes", LATE) as made:
        yield made


def asked(made: Sequence[Rank]) -> LocalRanks:
    """All as if they were this process, or threads of it, which are alive."""
    pids = sorted({os.getpid(), *(int(entry) for entry in os.listdir("/proc/self/task"))})
    return LocalRanks(dict(zip(pids, (rank.path for rank in made), strict=False)))


def ran(monkeypatch: pytest.MonkeyPatch, made: Sequence[Rank], *words: str) -> Result:
    route = trace_targets.TraceRoute(asked(made) if made else None)
    monkeypatch.setattr(trace_targets, "find_trace_route", lambda _: route)
    return CliRunner().invoke(app, ["trace", "1", "--collectives", *words])


def test_dumps_are_read_after_the_steps(ranks: list[Rank], tmp_path: Path) -> None:
    told: list[str] = []
    local = asked(ranks)
    check_timing(local)
    taken = time_collectives(local, TraceRequest(20), tmp_path, told.append)
    assert [(one.rank, one.why) for one in taken] == [(0, None), (1, None), (2, None)]
    assert {path.stat().st_mode & 0o777 for one in taken if (path := one.path)} == {0o600}
    for rank in ranks:
        begin = rank.asked.index(timed_collectives.BEGIN)
        assert rank.asked[-1] == timed_collectives.DUMP.handler
        assert rank.asked[begin + 1 : -1] == [timed_collectives.HANDLER] * 2
    assert "timing collectives: 20 steps of 20" in told


def test_if_one_rank_refuses_none_is_switched_on(ranks: list[Rank]) -> None:
    ranks[1].why = ranks[2].why = "its backend is gloo"
    with pytest.raises(NotTimedError, match=r"its backend is gloo \(rank 1, and 1 more alike\)"):
        check_timing(asked(ranks))
    assert all(timed_collectives.BEGIN not in rank.asked for rank in ranks)


def test_an_empty_recorder_is_noticed_before(ranks: list[Rank]) -> None:
    ranks[0].dump["entries"] = []
    with pytest.raises(NotTimedError, match="TORCH_FR_BUFFER_SIZE=2000"):
        check_timing(asked(ranks))
    assert all(timed_collectives.BEGIN not in rank.asked for rank in ranks)


def test_the_verb_says_first_that_it_stays_on(
    ranks: list[Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ran(monkeypatch, ranks, "-o", str(tmp_path / "dumps"))
    assert result.exit_code == 0
    assert "until the job ends" in result.stderr.splitlines()[0]
    rows = [line.split() for line in result.stdout.splitlines() if "all_reduce" in line]
    assert [row[1] for row in rows] == ["3", "1", "4", "2"]
    assert "arrived last    rank 1: 4" in result.stdout
    assert len(list((tmp_path / "dumps").iterdir())) == 3


def test_the_verb_prints_json(
    ranks: list[Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ran(monkeypatch, ranks, "-o", str(tmp_path / "dumps"), "--json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["code"] == "collective-times"


def test_a_job_in_which_nothing_was_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(tmp_path / "boxes", [[None] * 3] * 2) as made:
        result = ran(monkeypatch, made, "-o", str(tmp_path / "dumps"))
    assert result.exit_code == 3
    assert "TORCH_NCCL_ENABLE_TIMING=1" in result.stderr


def test_ranks_on_other_hosts_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(tmp_path / "boxes", LATE) as made:
        result = ran(monkeypatch, made[:2], "-o", str(tmp_path / "dumps"))
    assert result.exit_code == 3
    assert "name all hosts with --hosts" in result.stderr
    assert f"The flight recorders are in {tmp_path / 'dumps'}." in result.stderr
    assert len(list((tmp_path / "dumps").iterdir())) == 2


def test_a_job_without_the_probe_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ran(monkeypatch, [])
    assert result.exit_code == 3
    assert "start it with `mgpu-doctor run -- COMMAND`" in result.stderr


def test_refusals_make_no_folder(
    ranks: list[Rank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks[0].why = "its backend is gloo, and only NCCL times collectives"
    result = ran(monkeypatch, ranks, "-o", str(tmp_path / "dumps"))
    assert result.exit_code == 3
    assert result.stderr.startswith("mgpu-doctor: collectives cannot be timed: its backend is gloo")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "dumps").exists()
