"""Blocks of a log become hits, the text around failures, and the last lines."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside import console_errors
from mgpu_probes.outside.logs.log_blocks import bare
from mgpu_probes.outside.logs.log_files import BLOCK, open_log
from mgpu_probes.outside.logs.log_shapes import Shapes
from mgpu_probes.outside.logs.repeated_lines import LEAST_LOOKS

from tests.support.logs import LOST, OOM, RECORDED, Text, progress, scanned, scanned_text, write

RAN_OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a …"


def test_a_hit_tells_who_where_when_and_what() -> None:
    lines = [
        "2026-01-02T03:04:05Z [rank1]: step 7",
        "[rank1]: Traceback (most recent call last):",
        f"[rank1]: {RAN_OUT}",
        "[rank1]: bye",
    ]
    (hit,) = scanned_text("\n".join(lines)).hits
    assert (hit.signature, hit.rank, hit.number, hit.count) == ("oom", 1, 3, 1)
    assert hit.text == RAN_OUT
    assert hit.values == {"size": "2.00 GiB"}
    assert hit.at == 1767323045.0
    assert hit.context == tuple(lines)


def test_each_rank_has_its_first_hit_and_a_count() -> None:
    lines = [f"[rank{n % 3}]: {RAN_OUT}" for n in range(30)]
    hits = scanned_text("\n".join(lines)).hits
    brief = [(hit.rank, hit.number, hit.count) for hit in hits]
    assert brief == [(0, 1, 10), (1, 2, 10), (2, 3, 10)]


def test_a_line_that_repeats_without_end_is_counted() -> None:
    text = f"[rank1]: {RAN_OUT}\n" * (3 * LEAST_LOOKS)
    (hit,) = scanned_text(text).hits
    assert hit.count == 3 * LEAST_LOOKS


NAN = Text("nan", "loss", r"\bloss nan\b")


def test_ranks_that_repeat_a_line_are_counted_each() -> None:
    count = 8 * LEAST_LOOKS
    lines = [f"[rank{n % 4}]: epoch {n % 4} step {n} loss nan" for n in range(count)]
    lines += ["[rank7]: epoch 3 step 9 loss nan", "[rank0]: epoch 3 step 9 loss 0.5"]
    hits = scanned_text("\n".join(lines), NAN).hits
    found = [(hit.rank, hit.number, hit.count, hit.after) for hit in hits]
    each = count // 4
    last = (7, count + 1, 1, 1)
    assert found == [*((n, n + 1, each, 5 - n) for n in range(4)), last]


def test_lines_whose_numbers_decide_are_all_searched() -> None:
    failed = Text("failed", "exit code", r"exit code [1-9]")
    lines = ["worker 3 left with exit code 7"] * (2 * LEAST_LOOKS)
    lines[1::2] = ["worker 3 left with exit code 0"] * LEAST_LOOKS
    (hit,) = scanned_text("\n".join(lines), failed).hits
    assert hit.count == LEAST_LOOKS


def test_a_local_rank_of_several_hosts_is_no_label() -> None:
    lines = [f"[rank{n % 4}]: [default{n % 2}]: step {n} loss nan" for n in range(8 * LEAST_LOOKS)]
    hits = scanned_text("\n".join(lines), NAN).hits
    assert [(hit.rank, hit.count) for hit in hits] == [(n, 2 * LEAST_LOOKS) for n in range(4)]


def test_what_must_be_there_often_is_no_hit_before() -> None:
    often = Text("often", "loss nan", "loss nan", least=3)
    lines = [f"[rank{n % 2}]: step {n} loss nan" for n in range(5)]
    assert [(hit.rank, hit.count) for hit in scanned_text("\n".join(lines), often).hits] == [(0, 3)]


def test_a_needle_alone_is_no_hit() -> None:
    assert scanned_text("CUDA out of memory was avoided").hits == ()


def test_colours_carriage_returns_and_zeros_hide_nothing() -> None:
    raw = (
        b"  3%|#   | 3/100 [00:01]\r  4%|##  | 4/100 [00:02]\r"
        b"\x1b[1;35mtorch.OutOfMemoryError\x1b[0m: \x1b[35mCUDA out of\x1b[0m memory. "
        b"Tried\0 to allocate 2.00 GiB.\r\n"
        b"next\r\n\x1b]0;title\x07Connection closed by peer [10.0.0.1]:5\n"
    )
    oom, lost = scanned_text(raw).hits
    assert (oom.number, oom.text[:30]) == (1, "torch.OutOfMemoryError: CUDA o")
    assert (lost.number, lost.values["host"]) == (3, "10.0.0.1")


def test_lines_are_numbered_by_line_feeds_alone() -> None:
    text = "a\r\nb\rc\rd\n" + "\rbar" * 50 + f"\n{RAN_OUT}\n"
    assert scanned_text(text).hits[0].number == 4


def test_bytes_that_are_no_utf8_are_read_as_latin1() -> None:
    raw = "Gerät: CUDA out of memory. Tried to allocate 2 GiB".encode("latin-1")
    assert scanned_text(raw).hits[0].text.startswith("Gerät: CUDA")


def test_a_needle_deep_in_an_endless_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"." * (3 * BLOCK) + RAN_OUT.encode() + b"." * (2 * BLOCK))
    (hit,) = scanned(path).hits
    assert hit.number == 1
    assert len(hit.text) <= 500
    assert "CUDA out of memory" in hit.text


def test_a_needle_across_the_edge_of_a_block_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for shift in (1, 10, 40):
        start = b"x" * 99 + b"\n"
        filler = start * (BLOCK // 100) + b"y" * (BLOCK % 100 - shift)
        path.write_bytes(filler + RAN_OUT.encode() + b"\n" + start)
        assert [hit.signature for hit in scanned(path).hits] == ["oom"]


def test_how_far_training_went_on_after_the_last_hit() -> None:
    lines = [RAN_OUT, *progress(300), RAN_OUT, *progress(70, first=300), "done"]
    assert scanned_text("\n".join(lines)).hits[0].after == 70


def test_progress_across_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "x.log", [RAN_OUT, *progress(60_000)])
    assert path.stat().st_size > BLOCK
    assert scanned(path).hits[0].after == 60_000


@pytest.mark.parametrize(
    "line",
    [
        '  File "train.py", line 12, in training_step',
        "frame #3: c10d::ProcessGroupNCCL::WorkNCCL::step (0x7f in lib.so)",
        "Connection retry 4: step 3",
        "loading the model",
        "ValueError: batch 3 has no loss",
        "srun: Terminating job step 4711.0",
        "slurmstepd: error: *** STEP 4711.0 ON node3 CANCELLED AT 2026-01-02T03:04:05 ***",
        "[rank1]:     loss = model(x).sum()",
        "[rank1]:     loss = criterion(out, batch[0]) / 4",
        "/aten/native/cuda/Loss.cu:250: kernel: block: [0,0,0] Assertion `t >= 0` failed.",
    ],
)
def test_what_is_no_progress(line: str) -> None:
    assert scanned_text("\n".join([RAN_OUT, *[line] * 40])).hits[0].after == 0


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 3/10 loss: 0.12",
        "iteration 100/ 5000 | consumed samples: 800 | lm loss: 6.9E+00",
        " 42%|████▏     | 420/1000 [00:10<00:14, 41.2it/s, loss=0.1]",
        "{'loss': 1.32, 'learning_rate': 5e-05, 'epoch': 0.1}",
        "10/100 [==>...] - ETA: 3s - loss: 0.3 - accuracy: 0.91",
        "step=10, skipped=0, lr=[0.001]",
        "Epoch: [0][  10/391]\tTime  0.3 ( 0.4)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.00 (  0.20)",
    ],
)
def test_what_is_progress(line: str) -> None:
    assert scanned_text("\n".join([RAN_OUT, line])).hits[0].after == 1


def test_how_long_training_went_on_by_stamps() -> None:
    lines = [f"2026-01-02T03:0{n}:00Z step {n}" for n in range(5)]
    lines.insert(1, RAN_OUT)
    lines.append("2026-01-02T09:00:00Z watchdog")
    assert scanned_text("\n".join(lines)).hits[0].later == 240


def test_a_stamp_of_the_lines_before_serves() -> None:
    lines = ["2026-01-02T03:04:05Z step 1", "no stamp", RAN_OUT, "2026-01-02T09:00:00Z later"]
    scan = scanned_text("\n".join(lines))
    assert scan.hits[0].at == 1767323045.0
    assert scan.ended is not None
    assert scan.began == 1767323045.0
    assert scan.ended - scan.began == 5 * 3600 + 55 * 60 + 55


def test_labels_tell_who_printed() -> None:
    scan = scanned_text("\n".join(f"[rank{n % 4}]: step {n}" for n in range(40)))
    assert scan.ranks == {0, 1, 2, 3}


def test_the_last_lines_are_kept_clean(tmp_path: Path) -> None:
    lines = [f"line {n} \x1b[31mred\x1b[0m" for n in range(50_000)]
    scan = scanned(write(tmp_path / "x.log", lines))
    assert len(scan.tail) == 200
    assert scan.tail[-1] == "line 49999 red"
    assert scan.lines == 50_000


@pytest.mark.parametrize("path", sorted((RECORDED / "console").glob("*.txt")), ids=lambda p: p.stem)
def test_recorded_endings_are_reported_in_full(path: Path) -> None:
    """What is kept of a log tells the same as all of it."""
    whole = console_errors.parse_console(path.read_text(encoding="utf-8").split("\n"))
    kept = console_errors.parse_console(line.text for line in scanned(path).kept_lines)
    brief = [
        (traceback.rank, traceback.traceback.type, traceback.traceback.frames)
        for traceback in whole.tracebacks
    ]
    assert [(o.rank, o.traceback.type, o.traceback.frames) for o in kept.tracebacks] == brief
    assert [(f.rank, f.pid, f.exit_code, f.signal, f.first) for f in kept.failures] == [
        (f.rank, f.pid, f.exit_code, f.signal, f.first) for f in whole.failures
    ]
    assert kept.asked == whole.asked


def test_an_ending_amid_megabytes_is_found(tmp_path: Path) -> None:
    report = (RECORDED / "console/torchrun-raise.txt").read_text(encoding="utf-8").split("\n")
    path = write(tmp_path / "x.log", [*progress(50_000), *report, *["idle"] * 50_000])
    kept = console_errors.parse_console(line.text for line in scanned(path).kept_lines)
    assert [traceback.rank for traceback in kept.tracebacks] == [2, 1, 3]
    assert kept.failures[0].rank == 2


def test_endings_behind_container_stamps_and_srun_labels() -> None:
    report = (RECORDED / "console/torchrun-raise.txt").read_text(encoding="utf-8").split("\n")
    stamped = [f"2026-01-02T03:04:05.123456789Z stderr F {line}" for line in report]
    kept = console_errors.parse_console(
        line.text for line in scanned_text("\n".join(stamped)).kept_lines
    )
    first = kept.tracebacks[0]
    assert (first.rank, first.traceback.type) == (2, "ValueError")
    assert kept.failures[0].pid == 6515


def test_tracebacks_without_end_stay_bounded() -> None:
    noise = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: 1\n'
    assert len(scanned_text(noise * 30_000).kept_lines) <= 20_000


def test_a_needle_must_have_letters() -> None:
    for needle in ("", "-9)", "12 34", "a b c"):
        with pytest.raises(ValueError, match="letters in a row"):
            Shapes([needle])


WORDS = st.sampled_from(
    ["CUDA out", "of memory", "CUDA", "memory", "closed", "by peer", "é█", "\t"]
)


@given(
    lines=st.lists(
        st.lists(st.one_of(WORDS, st.integers().map(str), st.text(max_size=5)), max_size=8).map(
            " ".join
        ),
        max_size=30,
    ),
    chunk=st.integers(1, 10),
    most=st.sampled_from((0, 3, 100_000)),
)
def test_every_line_with_a_needle_is_looked_at(lines: list[str], chunk: int, most: int) -> None:
    """The fast way finds what plain search finds, whatever was seen before and is forgotten."""
    shapes = Shapes([OOM.needle, LOST.needle])
    for start in range(0, len(lines), chunk):
        block = "\n".join(lines[start : start + chunk]).encode("utf-8", "replace")
        pieces = re.split(rb"[\n\r\x08\x0b\x0c]", block)
        with patch("mgpu_probes.outside.logs.log_shapes.MOST_SHAPES", most):
            hot = dict(shapes.hot(shapes.of(block)))
        for number, needle in enumerate((OOM.needle, LOST.needle)):
            wanted = {at for at, piece in enumerate(pieces) if needle.encode() in piece}
            assert wanted <= {at for at, held in hot.items() if number in held}


@given(st.binary(max_size=3000))
def test_no_bytes_break_it(raw: bytes) -> None:
    scanned_text(raw, OOM, LOST, Text("all", "abc", r"(?P<x>.*)"))


def test_escapes_end_where_they_end() -> None:
    raw = b"\x1b[31;1mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b(Bplain\x1b[K\x1b[1A."
    assert bare(raw) == b"red link plain."


READ = """
import sys
from pathlib import Path
from mgpu_probes.outside.logs.log_files import open_log
from mgpu_probes.outside.logs.log_scanner import Engine
from tests.support.logs import OOM, LOST
log = open_log(sys.argv[1])
found = Engine((OOM, LOST)).scan(log.name, log.blocks())
status = Path("/proc/self/status").read_text().split()
print(found.lines, len(found.hits), status[status.index("VmHWM:") + 1])
"""


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_log_holds(tmp_path: Path) -> None:
    """30 MB of text of ever new shapes and numbers, a tenth of it about endings; then as much again
    in which each line is about an ending, with new words around it."""
    random.seed(4)
    letters = "abcdefghij"

    def word() -> str:
        return "".join(random.choices(letters, k=12))

    chunk = "".join(
        f"{word()} {n} {RAN_OUT if n % 50 == 0 else ''}\n"
        + ('  File "x.py", line 3, in f\n' if n % 10 == 0 else "")
        for n in range(80_000)
    ).encode()
    path = tmp_path / "x.log.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(30_000_000 // len(chunk)):
            file.write(chunk)
        for _ in range(300_000):
            file.write(f"{word()} {RAN_OUT} {word()}\n".encode())
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
    )
    _, hits, resident = map(int, done.stdout.split())
    assert hits == 1
    assert resident * 1024 < 100 << 20


def test_open_log_names_its_source(tmp_path: Path) -> None:
    path = write(tmp_path / "x.log", ["a"])
    assert open_log(path).name == str(path)
