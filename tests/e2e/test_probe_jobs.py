"""The torch probe in real jobs: all kinds of loops and launchers, and no visible side effects."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from mgpu_probes.inprocess import layout

from mgpu_doctor.recording.box import Box, read_box
from tests.support.jobs import (
    JOBS,
    alone,
    forked,
    forked_in_turn,
    kill_family,
    plain,
    split_turns,
    torchrun,
)

pytestmark = pytest.mark.slow

INJECT = Path(__file__).parents[2] / "probes" / "mgpu_probes" / "inject"


def _rank(box: Box) -> int:
    assert box.identity is not None
    assert box.identity.rank is not None
    return box.identity.rank


@dataclass(frozen=True)
class Job:
    code: int
    out: str
    err: str
    boxes: list[Box]

    @property
    def turns(self) -> int:
        found = re.search(r"turns (\d+)$", self.out, re.MULTILINE)  # another may write before it
        assert found, self.out + self.err
        return int(found[1])

    def ranks(self) -> list[Box]:
        """The boxes by rank."""
        return sorted(self.boxes, key=_rank)


@contextmanager
def environment(boxes: Path | None) -> Iterator[dict[str, str]]:
    bare = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RANK")}
    # Without it a second attempt finds the addresses of the first (pytorch issue 135712).
    bare |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if boxes is not None:
        bare |= {"PYTHONPATH": str(INJECT), "MGPU_DOCTOR_BOXES": str(boxes)}
    yield bare


def job(command: list[str], boxes: Path | None, seconds: float = 150) -> Job:
    with (
        alone(),
        environment(boxes) as variables,
        subprocess.Popen(
            command,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            kill_family(process.pid)
    written = [read_box(path) for path in boxes.glob("*.box")] if boxes else []
    return Job(process.returncode, out, err, written)


def assert_whole(boxes: list[Box]) -> None:
    for box in boxes:
        explained = np.nansum(box.steps["phases"], axis=1)
        assert explained == pytest.approx(box.steps["wall_ns"] / 1e9, rel=1e-4)
        assert np.all(np.diff(box.steps["end_ns"]) > 0)
        assert box.steps["step"].tolist() == list(range(len(box.steps)))
        assert box.state == "ended"


LOOPS = (
    "accumulate",
    "lightning_like",
    "manual_allreduce",
    "no_loader",
    "optimizer_in_backward",
    "pipeline_sendrecv",
    "prefetch_ahead",
    "scaler_skip",
    "two_optimizers",
    "validation_between",
    "compiled",
)


@pytest.fixture(scope="module")
def jobs_of_loops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """A job of each loop, one after the other, by one launcher that has loaded torch."""
    command = forked_in_turn([forked(f"{script}.py", "--steps", "30") for script in LOOPS])
    done = job(command, tmp_path_factory.mktemp("boxes"), seconds=400)
    assert done.code == 0, done.err
    return {
        script: Job(0, turn.out, "", [box for box in done.boxes if box.identity.pid in turn.pids])
        for script, turn in zip(LOOPS, split_turns(done.out), strict=True)
    }


def assert_steps_are_turns(done: Job) -> None:
    assert [len(box.steps) for box in done.boxes] == [done.turns] * 2
    assert [_rank(box) for box in done.ranks()] == [0, 1]
    assert_whole(done.boxes)


@pytest.mark.untimed
@pytest.mark.parametrize("script", LOOPS)
def test_steps_are_the_turns_of_the_loop(script: str, jobs_of_loops: dict[str, Job]) -> None:
    assert_steps_are_turns(jobs_of_loops[script])


@pytest.mark.untimed
def test_steps_under_torchrun_are_the_turns_of_the_loop(tmp_path: Path) -> None:
    done = job(torchrun("plain_ddp.py", "--steps", "30"), tmp_path)
    assert done.code == 0
    assert_steps_are_turns(done)


@pytest.mark.untimed
@pytest.mark.parametrize("script", ["spawn_ddp", "fork_ddp"])
def test_ranks_that_a_script_starts_itself(script: str, tmp_path: Path) -> None:
    done = job([sys.executable, str(JOBS / f"{script}.py"), "--steps", "20"], tmp_path)
    assert done.code == 0
    assert_steps_are_turns(done)


WORKERS = ("plain_ddp.py", "--steps", "16", "--rank", "-1", "--ms", "200")
"""All ranks are slow, by far more than a step takes on a busy machine, in which workers make the
next batches."""


def share_of_ready_batches(box: Box) -> float:
    return float((box.steps["flags"] & layout.BATCH_READY != 0).mean())


@pytest.mark.untimed
def test_a_launcher_of_ones_own_and_workers_that_have_the_batch_ready(tmp_path: Path) -> None:
    done = job(plain(*WORKERS, "--fault", "optimizer", "--workers", "2"), tmp_path)
    assert done.code == 0
    assert_steps_are_turns(done)
    assert done.boxes[0].birth["loaders"][0]["workers"] == 2
    assert share_of_ready_batches(done.ranks()[0]) > 0.5


@pytest.mark.untimed
def test_a_worker_that_is_slow_has_no_batch_ready(tmp_path: Path) -> None:
    done = job(forked(*WORKERS, "--fault", "input", "--workers", "1"), tmp_path)
    assert done.code == 0
    assert share_of_ready_batches(done.ranks()[0]) <= 0.5


@pytest.mark.untimed
def test_an_elastic_restart_gets_boxes_of_its_own(tmp_path: Path) -> None:
    command = torchrun("elastic.py", "--steps", "20")
    command[command.index("--standalone") : command.index("--standalone") + 1] = [
        "--standalone",
        "--max-restarts",
        "1",
    ]
    done = job(command, tmp_path)
    attempts = sorted(
        (box.identity.attempt, box.identity.rank) for box in done.boxes if box.identity
    )
    assert attempts == [(0, 0), (0, 1), (1, 0), (1, 1)]
    by_attempt = {b.identity.attempt: b for b in done.boxes if b.identity}
    assert by_attempt[0].state == "exception"
    assert len(by_attempt[1].steps) == done.turns


UNSEEN = r"""
import torch, torch.distributed as dist, pickle, inspect, sys, traceback
from torch.nn.parallel import DistributedDataParallel as DDP
from torch._dynamo.utils import counters
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
whole = torch.compile(lambda x: model(x).relu(), fullgraph=True, backend="aot_eager")
wrapped = torch.compile(DDP(model), backend="aot_eager")
for _ in range(4):
    whole(torch.ones(3, 4)).sum().backward()
    wrapped(torch.ones(3, 4)).sum().backward()
    optimizer.step()

@torch.compile(backend="aot_eager")
def update():
    optimizer.step()

@torch.compile(fullgraph=True, backend="aot_eager")
def reduced(x):
    dist.all_reduce(x)
    return x * 2

update()
print(reduced(torch.ones(3)), sorted(counters["graph_break"]), dict(counters["frames"]))
print(pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce)
print(inspect.signature(dist.all_reduce), inspect.getsource(dist.all_reduce)[:99])
print(pickle.dumps(optimizer) == pickle.dumps(pickle.loads(pickle.dumps(optimizer))))
class Short(torch.utils.data.IterableDataset):
    def __len__(self): return 1
    def __iter__(self): yield from range(3)
print(len(list(torch.utils.data.DataLoader(Short()))))
try:
    dist.all_reduce("no tensor")
except TypeError:
    traceback.print_exc()
class Broken(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = torch.nn.Linear(1, 1)
    def forward(self, x): return 1 / 0
DDP(Broken())(torch.ones(1))
"""


@pytest.mark.untimed
def test_graphs_tracebacks_warnings_and_pickles_are_those_of_the_bare_script(
    tmp_path: Path,
) -> None:
    script = tmp_path / "unseen.py"
    script.write_text(UNSEEN)
    boxes = tmp_path / "boxes"
    bare = job([sys.executable, str(script), str(tmp_path / "a")], None)
    watched = job([sys.executable, str(script), str(tmp_path / "b")], boxes)
    stamps = re.compile(r"\d{6,}|\d\d:\d\d:\d\d\.\d+ \d+")
    assert (watched.code, watched.out) == (bare.code, bare.out)
    assert stamps.sub("", watched.err) == stamps.sub("", bare.err)
    (box,) = watched.boxes
    assert box.last_words["line"] == len(UNSEEN.splitlines()) - 1
    assert box.state == "exception"
    assert "off" not in box.last_words


@pytest.mark.untimed
def test_a_hook_that_breaks_switches_the_probe_off_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "broken_hook.py"
    script.write_text(
        "import torch, sys\n"
        "probe = sys.modules['_mgpu_probe.probe_start'].start()\n"
        "model = torch.nn.Linear(2, 2); o = torch.optim.SGD(model.parameters(), lr=.1)\n"
        "for turn in range(20):\n"
        "    if turn == 10:\n"
        "        del probe.steps.now\n"
        "    model(torch.ones(1, 2)).sum().backward(); o.step()\n"
        "print('turns', turn + 1)\n"
    )
    done = job([sys.executable, str(script)], tmp_path / "boxes")
    assert (done.code, done.out, done.err) == (0, "turns 20\n", "")
    (box,) = done.boxes
    assert box.state == "off"
    assert "AttributeError" in box.last_words["off"]


@pytest.mark.untimed
def test_auto_in_a_script_that_has_imported_torch(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.distributed import all_reduce\n"
        "import mgpu_probes\n"
        "print(mgpu_probes.auto(), mgpu_probes.auto(), all_reduce is dist.all_reduce)\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/meet', "
        "rank=0, world_size=1)\n"
        "model = torch.nn.Linear(2, 2); o = torch.optim.SGD(model.parameters(), lr=.1)\n"
        "for turn in range(10):\n"
        "    model(torch.ones(1, 2)).sum().backward(); all_reduce(torch.ones(1)); o.step()\n"
        "print('turns', turn + 1)\n"
    )
    with alone():
        done = subprocess.run(
            [sys.executable, str(script)],
            env=os.environ | {"MGPU_DOCTOR_BOXES": str(tmp_path / "boxes")},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "True False True\nturns 10\n"
    (box,) = [read_box(path) for path in (tmp_path / "boxes").glob("*.box")]
    assert len(box.steps) == 10
    assert box.steps["collectives"].tolist() == [1] * 10
