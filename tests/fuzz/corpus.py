"""Honest inputs of each format: recorded from real jobs, or made by the tests' builders."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer

from tests.fuzz.canary import TOKEN
from tests.fuzz.folders import write_sparse
from tests.fuzz.pickles import repickled
from tests.support import boxes, kineto, memory_snapshots, recordings, timed_dumps

RECORDED = Path(__file__).parents[1] / "recorded"
HANG = RECORDED / "recordings/hang.tar.xz"
MOST_EVENTS = 400
"""Of a trace: a small one is mutated many times while a large one is once."""
_TEXT = (".txt", ".log", ".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class Seed:
    """`make` puts the honest input at a path that does not exist yet, whose name is `file`."""

    name: str
    make: Callable[[Path], object]
    file: str = "subject"


def seeds(format: str) -> tuple[Seed, ...]:
    """Those of a format, the first of which is the measure of time and memory."""
    return tuple(_SEEDS[format]())


def unpacked(target: Path) -> None:
    """The recording of a real job: three ranks that hang, and `run --on-hang stop`."""
    folder = target.with_name(f"{target.name}.unpacked")
    with tarfile.open(HANG) as archive:
        for member in archive.getmembers():
            if member.isfile():
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                file = archive.extractfile(member)
                assert file is not None
                write_sparse(path, file.read())
    (folder / "hang").rename(target)
    folder.rmdir()


def copied(source: Path, target: Path) -> None:
    """A copy of a seed, in which holes stay holes."""
    if source.is_dir():
        shutil.copytree(source, target, copy_function=_copy_sparse)
    else:
        _copy_sparse(str(source), str(target))


def mark(folder: Path) -> None:
    """Every text file below says the canary's token: that it is shown proves that it was read."""
    for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        if path.is_file() and path.name.endswith(_TEXT):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{TOKEN} RuntimeError: {TOKEN}\n")
        elif path.is_file() and path.name.endswith(layout.BOX_SUFFIX):
            at = layout.areas()["strings"] + 2
            boxes.overwrite(path, at, TOKEN.encode())


def _recordings() -> Iterator[Seed]:
    yield Seed("hang", unpacked)
    yield Seed("healthy", partial(_recording, [recordings.HEALTHY] * 2))
    yield Seed("straggler", partial(_recording, [recordings.WAITING] * 3 + [recordings.SLOW_INPUT]))
    yield Seed("two-hosts", _two_hosts)
    yield Seed("unfinished", _unfinished)


def _boxes() -> Iterator[Seed]:
    yield Seed("hang", unpacked)
    yield Seed("finished", _finished)
    yield Seed("straggler", partial(_recording, [recordings.WAITING] * 3 + [recordings.SLOW_INPUT]))
    yield Seed("long", _long)


def _dumps() -> Iterator[Seed]:
    flights = RECORDED / "flight"
    for folder in sorted(flights.iterdir()):
        yield Seed(folder.name, partial(shutil.copytree, folder))
    yield Seed("one-file", partial(shutil.copy, flights / "deadlock/trace_0"), "trace_0")
    packed = flights / "deadlock-json/rank0.json.gz"
    yield Seed("one-json", partial(shutil.copy, packed), packed.name)
    yield Seed("python-pickle", partial(_repickled, flights / "branch"))
    times = [[6.0, 5.0, 7.0], [2.0, 2.0, 2.0]]
    yield Seed("timed", partial(timed_dumps.write_dumps, milliseconds=times))
    yield Seed("timed-json", partial(timed_dumps.write_dumps, milliseconds=times, pickled=False))


def _traces() -> Iterator[Seed]:
    for name in ("late", "well"):
        yield Seed(name, partial(_short_traces, RECORDED / "traces" / name))
    yield Seed("kineto", partial(kineto.written, job=kineto.Job(ranks=2, steps=3, kernels=8)))
    yield Seed("one-file", _one_trace, "rank0.json.gz")
    yield Seed("xplane", partial(shutil.copytree, RECORDED / "xplane"))
    yield Seed("xplane-file", partial(_copied, "*.xplane.pb"), "node.xplane.pb")


def _logs() -> Iterator[Seed]:
    for path in sorted((*RECORDED.glob("console/**/*.*"), *RECORDED.glob("logs/*"))):
        if path.is_file():
            yield Seed(path.stem, partial(shutil.copy, path), "train.log")
    yield Seed("folder", _log_folder)


def _snapshots() -> Iterator[Seed]:
    refused = memory_snapshots.oom(900 << 20, 100 << 20)
    for protocol in (4, 2):
        for name, segments in (("full", memory_snapshots.FULL), ("apart", memory_snapshots.APART)):
            make = partial(_snapshot, segments=segments, refused=refused, protocol=protocol)
            yield Seed(f"{name}-{protocol}", make, "snapshot.pickle")


_SEEDS: dict[str, Callable[[], Iterator[Seed]]] = {
    "recordings": _recordings,
    "boxes": _boxes,
    "dumps": _dumps,
    "traces": _traces,
    "logs": _logs,
    "snapshots": _snapshots,
}
FORMATS = tuple(_SEEDS)


def _recording(ranks: list[dict[str, float]], target: Path) -> None:
    recordings.recording(target, ranks)
    for path in target.rglob(f"*{layout.BOX_SUFFIX}"):
        write_sparse(path, path.read_bytes())
    console = target / "console"
    console.mkdir()
    log = RECORDED / "console/torchrun-raise.txt"
    (console / "stderr.log").write_bytes(log.read_bytes())
    (console / "stdout.log").write_text("[rank0]: step 10 loss 2.5\n" * 20)


def _two_hosts(target: Path) -> None:
    """The real recording as a part of a job of several nodes, and the same on a second host and as
    a further task of a Slurm step, of which this machine has one too."""
    unpacked(target)
    shutil.copytree(target / "hosts/n1", target / "hosts/n2")
    for path in list((target / "hosts/n2/boxes").iterdir()):
        path.rename(path.with_name(path.name.replace("n1", "n2")))
    info = json.loads((target / "recording.json").read_text()) | {"joint": "key", "nodes": 2}
    (target / "recording.json").write_text(json.dumps(info))
    for part in ("n1", "n2", "n2/tasks/1", f"{os.uname().nodename}/tasks/1"):
        folder = target / "hosts" / part
        shutil.copytree(target / "console", folder / "console")
        for name in ("recording.json", "end.json"):
            shutil.copy(target / name, folder / name)


def _unfinished(target: Path) -> None:
    """The real recording of a doctor that was killed, without boxes of one rank."""
    unpacked(target)
    (target / "end.json").unlink()
    next((target / "hosts/n1/boxes").iterdir()).unlink()


def _finished(target: Path) -> None:
    """A folder of boxes alone, with events and last words."""
    boxes.finished(target, steps=300)


def _long(target: Path) -> None:
    """Boxes whose rings went around, so that the history tells of the beginning."""
    _recording([recordings.HEALTHY], target)
    writer = Writer.open(target / "hosts/n1/boxes", rank=1, local_rank=1, world_size=2)
    writer.birth({"framework": "torch", "strategy": "fsdp", "groups": [{"name": "tp"}]})
    values = [recordings.HEALTHY.get(name, nan) for name in layout.PHASES]
    for number in range(9000):
        at = boxes.SECOND + (number + 1) * 40_000_000
        writer.step(at, 37_000_000, number, 0, values, 8, 512, 2.5, 0.0, number + 1, 1, 1)
        if number % 100 == 0:
            writer.event(number // 100 % len(layout.EVENTS), at, number, 10_000_000, 1.0, "text")
    writer.state(layout.RUNNING)
    writer.close()


def _repickled(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()):
        repickled(path, target / path.name, 4)


def _short_traces(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()):
        (target / path.name.removesuffix(".gz")).write_text(_shortened(path))


def _one_trace(target: Path) -> None:
    target.write_bytes(gzip.compress(_shortened(RECORDED / "traces/late/rank0.json.gz").encode()))


def _shortened(path: Path) -> str:
    tree = json.loads(gzip.decompress(path.read_bytes()))
    tree["traceEvents"] = tree["traceEvents"][:MOST_EVENTS]
    return json.dumps(tree, indent=1)


def _copied(pattern: str, target: Path) -> None:
    shutil.copy(next((RECORDED / "xplane").rglob(pattern)), target)


def _log_folder(target: Path) -> None:
    target.mkdir()
    for rank, name in enumerate(("torchrun-raise", "torchrun-kill", "spawn-raise")):
        raw = (RECORDED / f"console/{name}.txt").read_bytes()
        (target / f"rank_{rank}.log").write_bytes(raw)
        (target / f"rank_{rank}.log.1.gz").write_bytes(gzip.compress(raw, mtime=0))


def _snapshot(
    target: Path,
    *,
    segments: tuple[dict[str, object], ...],
    refused: dict[str, object],
    protocol: int,
) -> None:
    memory_snapshots.written(target, *segments, events=(refused,), protocol=protocol)


def _copy_sparse(source: str, target: str) -> str:
    write_sparse(Path(target), Path(source).read_bytes())
    return target
