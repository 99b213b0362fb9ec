"""How fast console logs are read, in how much memory, and how many failures they are searched for.

    python -m benchmarks.logs [--megabytes 400] [--runs 3]

Each kind of text is written once and read by a process of its own: CPU seconds of the reading alone
(imports left out), resident memory of the whole process. `words` is the worst case: every line is
new, of words that healthy and failing jobs share.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support import ROOT, machine, spread
from mgpu_doctor.rules.failures.log_codes import family_of
from mgpu_doctor.signatures.known_signatures import SIGNATURES

SEED = 7
UNIT = 1_000_000
CHUNK = 4 * UNIT
PLAIN = 10 * UNIT
"""Bytes that are searched plainly."""
VOCABULARY = """
    loading model checkpoint path shape dtype device memory tensor gradient optimizer worker error
    failed warning batch timeout connection received retry data cache shard index server client
    process group rank barrier reduce gather version config value default deprecated please use
    future removed release function module layer attention head hidden loss scale step
"""
WORDS = VOCABULARY.split()
READ = """
import json, sys, time
from pathlib import Path
from mgpu_doctor.case.log_case import load_logs
start = time.process_time()
case = load_logs(sys.argv[1:])
seconds = time.process_time() - start
status = Path("/proc/self/status").read_text().split()
peak = int(status[status.index("VmHWM:") + 1]) * 1024
print(json.dumps([seconds, len(case.signs), len(case.console.ends), peak]))
"""


@dataclass(frozen=True)
class Reading:
    """CPU seconds, bytes and counts of one read."""

    cpu: float
    signs: int
    ends: int
    resident: int


def training(count: int, chance: random.Random) -> Iterator[str]:
    """What eight ranks log, with NCCL's banner and warnings in between."""
    for n in range(count):
        rank, drawn = n % 8, chance.random()
        stamp = f"2026-01-02 03:{n // 60 % 60:02}:{n % 60:02},{chance.randrange(1000):03}"
        if drawn < 0.9:
            yield (
                f"[rank{rank}]: {stamp} INFO trainer: epoch {n // 9000} step {n} loss "
                f"{chance.random():.4f} error: {chance.random():.3f} lr {chance.random():.2e}\n"
            )
        elif drawn < 0.97:
            yield f"node{rank}:{471 + rank}:{500 + rank} [{rank}] NCCL INFO Channel {n % 32:02}/0\n"
        else:
            yield f"/opt/venv/lib/x.py:{n % 900}: UserWarning: deprecated\n  warnings.warn(\n"


def bars(count: int, chance: random.Random) -> Iterator[str]:
    """Progress bars without a line end."""
    for n in range(count):
        percent = n % 101
        yield (
            f"\r{percent:3}%|{'█' * (percent // 4):<25}| {n}/100000 "
            f"[{n // 60:02}:{n % 60:02}<1:02:11, "
            f"{50 * chance.random():.2f}it/s, loss={chance.random():.3f}]"
        )


def storm(count: int, chance: random.Random) -> Iterator[str]:
    """A loop that catches an exception again and again."""
    for n in range(count // 6):
        yield f"step {n} loss {chance.random():.4f}\nTraceback (most recent call last):\n"
        yield f'  File "/home/user/train.py", line {n % 400}, in step\n    batch = next(batches)\n'
        yield f"MemoryError: sample {n}\nskipping sample {n}\n"


def diverged(count: int, chance: random.Random) -> Iterator[str]:
    """What eight ranks log after the loss became NaN: each line matches signatures."""
    for n in range(count):
        stamp = f"2026-01-02 03:{n // 60 % 60:02}:{n % 60:02},{chance.randrange(1000):03}"
        yield (
            f"[rank{n % 8}]: {stamp} INFO trainer: epoch {n // 9000} step {n} loss nan "
            f"grad_norm nan lr {chance.random():.2e}\n"
        )


def random_words(count: int, chance: random.Random) -> Iterator[str]:
    """Lines that never repeat."""
    for n in range(count):
        yield f"[rank{n % 8}]: {' '.join(chance.choices(WORDS, k=14))} {n}\n"


KINDS: dict[str, Callable[[int, random.Random], Iterator[str]]] = {
    "training": training,
    "progress bars": bars,
    "tracebacks": storm,
    "losses of NaN": diverged,
    "words": random_words,
}


def written(folder: Path, kind: str, megabytes: int) -> Path:
    """The path of a new log of at least `megabytes` MB."""
    path = folder / f"{kind.replace(' ', '-')}.log"
    chance, size = random.Random(SEED), 0
    with path.open("wb") as file:
        while size < megabytes * UNIT:
            chunk = "".join(KINDS[kind](CHUNK // 100, chance)).encode()
            file.write(chunk)
            size += len(chunk)
    return path


def read(path: Path) -> Reading:
    process = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return Reading(*json.loads(process.stdout))


def format_reading(name: str, path: Path, size: int, runs: int) -> str:
    readings = [read(path) for _ in range(runs)]
    speed = spread([size / reading.cpu / UNIT for reading in readings], "MB/s", digits=0)
    memory = max(reading.resident for reading in readings) / (1 << 20)
    last = readings[-1]
    return (
        f"{name:<22} {size / UNIT:6.0f} MB  {speed:<24}  {memory:4.0f} MiB"
        f"  {last.signs} signs, {last.ends} ends"
    )


def plainly(text: bytes) -> Iterator[str]:
    """What plain searches for the same needles would take, on one core."""
    needles = sorted({signature.needle.encode() for signature in SIGNATURES})
    either = re.compile(b"|".join(map(re.escape, needles)))
    ways: dict[str, Callable[[], object]] = {
        "a search for each needle": lambda: [text.count(needle) for needle in needles],
        "one regular expression": lambda: sum(1 for _ in either.finditer(text)),
    }
    for name, way in ways.items():
        start = time.process_time()
        way()
        speed = len(text) / (time.process_time() - start) / UNIT
        yield f"{name:<26} {len(needles)} needles {speed:6.1f} MB/s"


def signatures() -> Iterator[str]:
    """How many there are, by family of their code."""
    families = Counter(family_of(signature.code) for signature in SIGNATURES)
    reproduced = Counter(
        family_of(signature.code) for signature in SIGNATURES if signature.origin.startswith("made")
    )
    codes = {signature.code for signature in SIGNATURES}
    for family, count in families.most_common():
        of_it = sum(family_of(code) == family for code in codes)
        yield (
            f"{family:<10} {count:4} signatures, {of_it:3} codes, "
            f"{reproduced[family]:3} made to happen"
        )
    total = reproduced.total()
    yield f"{'all':<10} {len(SIGNATURES):4} signatures, {len(codes):3} codes, {total:3}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in KINDS:
            path = written(folder, kind, chosen.megabytes)
            print(format_reading(kind, path, path.stat().st_size, chosen.runs), flush=True)
            if kind == "training":
                packed = folder / "training.log.gz"
                packed.write_bytes(gzip.compress(path.read_bytes(), compresslevel=1))
                print(
                    format_reading(f"{kind}, gzip", packed, path.stat().st_size, chosen.runs),
                    flush=True,
                )
                packed.unlink()
            path.unlink()
    sample = "".join(training(PLAIN // 100, random.Random(SEED))).encode()
    print("\n".join([*plainly(sample), *signatures()]))


if __name__ == "__main__":
    main()
