"""Hostile console text: what jobs print, and what no job would."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import chain, islice, repeat

from mgpu_probes.outside.logs.log_blocks import WINDOW

from mgpu_doctor.signatures.known_signatures import SIGNATURES
from tests.fuzz.byte_damage import damaged
from tests.fuzz.compressed_files import packed
from tests.fuzz.hostile_values import WHOLE, Hostile
from tests.fuzz.mutation_context import Scene
from tests.support.hostile_lines import hostile_lines
from tests.support.patterns import variants

LONGEST = 4 << 20
_DIGITS = re.compile(rb"\d+")
_NUMBERS = (*(str(one).encode() for one in WHOLE), b"9" * 5000, b"0" * 400, b"00", b"-7", b"1e99")
_LABELS = (b"[rank%d]: ", b"[rank%d]:[E1] ", b"%d: ", b"[default%d]:", b"n1:%d:%d [0] NCCL INFO ")
_STRANGE = (
    b"Traceback (most recent call last):\n",
    b'  File "/a.py", line 1, in f\n',
    b"During handling of the above exception, another exception occurred:\n\n",
    b"The above exception was the direct cause of the following exception:\n\n",
    b"\x1b[2K\r 37%|###   | 3/8 [00:01<00:02]\r",
    b"\x1b]0;owned\x07\x1b[31m",
    b"\x9b2J\xc2\x9b2J\xe2\x80\xae",
    b"\x00" * 100,
    b"{" * 3000 + b"\n",
    b"Root Cause (first observed failure):\n[0]:\n  rank : 999999999 (local_rank: -1)\n",
    b"  exitcode  : -9999999999 (pid: 99999999999999)\n",
    b"  time      : 9999-99-99_99:99:99\n  host      : \x1b]0;x\x07\n",
    b"RuntimeError: CUDA out of memory. Tried to allocate 99999999999999999999 GiB.\n",
    b"slurmstepd: error: Detected 1 oom_kill event in StepId=1.0\n",
)


def changed_text_file(scene: Scene) -> str:
    """A log after some changes to its lines."""
    rng = scene.rng
    path = scene.file()
    if path is None:
        return "no file"
    data = path.read_bytes()
    names = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        change = rng.choice(_CHANGES)
        data = change(data, scene.hostile)[:LONGEST]
        names.append(change.__name__)
    if rng.random() < 0.1:
        data = packed(data, rng)
    path.write_bytes(data)
    return f"{path.name}: {', '.join(names)}"


def hostile_text(data: bytes, hostile: Hostile) -> bytes:
    """Text after one change."""
    return hostile.rng.choice(_CHANGES)(data, hostile)[:LONGEST]


def _numbers(data: bytes, hostile: Hostile) -> bytes:
    """Some of its numbers are at an edge."""
    rng = hostile.rng
    share = rng.choice((0.02, 0.3, 1.0))
    return _DIGITS.sub(
        lambda found: rng.choice(_NUMBERS) if rng.random() < share else found[0], data
    )


def _lines(data: bytes, hostile: Hostile) -> bytes:
    """Lines are repeated, torn, shuffled or gone."""
    rng = hostile.rng
    lines = data.splitlines(keepends=True) or [b"\n"]
    kind = rng.randrange(5)
    at = rng.randrange(len(lines))
    if kind == 0:
        most = LONGEST // len(lines[at])
        lines[at:at] = [lines[at]] * min(rng.choice((5, 2000, 20_000)), most)
    elif kind == 1:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    elif kind == 2:
        rng.shuffle(lines)
    elif kind == 3:
        del lines[at : at + rng.choice((1, 10))]
    else:
        lines = list(_again(lines, rng.choice((3, 100))))
    return b"".join(lines)


def _again(lines: list[bytes], times: int) -> Iterator[bytes]:
    """The lines over and over, up to the longest text."""
    length = 0
    for line in chain.from_iterable(repeat(lines, times)):
        yield line
        length += len(line)
        if length > LONGEST:
            return


def _labels(data: bytes, hostile: Hostile) -> bytes:
    """Lines of very many ranks."""
    rng = hostile.rng
    label = rng.choice(_LABELS)
    most = rng.choice((3, 100_000, 10**12))
    lines = data.splitlines(keepends=True) or [b"\n"]
    numbers = [rng.randrange(most) for _ in range(label.count(b"%d"))]
    step = rng.choice((0, 1, 1000))
    return b"".join(
        label % tuple(number + at * step for number in numbers) + line
        for at, line in enumerate(_again(lines, rng.choice((1, 200))))
    )


def _strangers(data: bytes, hostile: Hostile) -> bytes:
    """Lines that no job prints, or a hostile value in the midst of a line."""
    rng = hostile.rng
    for _ in range(rng.choice((1, 5))):
        text = hostile.text().encode("utf-8", "surrogatepass")
        more = rng.choice((*_STRANGE, text, rng.choice(_STRANGE) * 500))
        at = rng.randrange(len(data) + 1)
        data = data[:at] + more + data[at:]
    return data


def _long_line(data: bytes, hostile: Hostile) -> bytes:
    """Its line ends are gone, or one line is a megabyte."""
    rng = hostile.rng
    if rng.random() < 0.5:
        line = data.replace(b"\n", rng.choice((b"", b" ", b"\r", b"\x00")))
        return b"".join(_again([line], rng.choice((1, 50))))
    lines = data.splitlines() or [b"x"]
    return data + b"".join(_again([rng.choice(lines)], 1 << 14))


def _pattern_lines(data: bytes, hostile: Hostile) -> bytes:
    """Lines on which a search by one of the doctor's patterns has much to try."""
    rng = hostile.rng
    found = variants(rng.choice(SIGNATURES).pattern, 0, WINDOW)
    made = hostile_lines(rng.choice(found), rng, rng.choice((WINDOW, 200_000)))
    lines = list(islice(made, 200))
    chosen = rng.sample(lines, min(len(lines), 3))
    return data + "\n".join(chosen).encode("utf-8", "replace") + b"\n"


def _encoding(data: bytes, hostile: Hostile) -> bytes:
    """In another encoding, or with the mark of one."""
    rng = hostile.rng
    text = data.decode("utf-8", "replace")
    marks = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE)
    codec = rng.choice(("utf-16", "utf-32", "utf-16-le", "utf-7", "latin-1", "cp037"))
    return rng.choice((text.encode(codec, "replace"), rng.choice(marks) + data))


def _damage(data: bytes, hostile: Hostile) -> bytes:
    return damaged(data, hostile.rng)


_CHANGES = (
    _numbers,
    _numbers,
    _lines,
    _lines,
    _labels,
    _strangers,
    _strangers,
    _long_line,
    _pattern_lines,
    _encoding,
    _damage,
)
