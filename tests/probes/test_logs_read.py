"""Logs become blocks of whole lines, whatever they are written in."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mgpu_probes.outside.logs import log_files
from mgpu_probes.outside.logs.log_files import LONGEST, UnreadableLog, open_log
from mgpu_probes.outside.untrusted_files import within_budget

TEXT = "first line\nsecond: größer ≥ 3\nlast without an end"


def content(path: Path | str) -> bytes:
    return b"".join(open_log(path).blocks())


def test_a_plain_file_is_given_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(TEXT)
    assert content(tmp_path / "x.log") == TEXT.encode()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_known_by_their_first_bytes(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "no-suffix").write_bytes(compress(TEXT.encode()))
    assert content(tmp_path / "no-suffix") == TEXT.encode()


def test_a_compressed_file_that_is_cut_short_gives_what_it_holds(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"line {n} {n * n}\n" for n in range(100_000)).encode())
    (tmp_path / "x.gz").write_bytes(whole[: len(whole) // 2])
    log = open_log(tmp_path / "x.gz")
    text = b"".join(log.blocks())
    assert text.startswith(b"line 0 0\nline 1 1\n")
    assert "cut short" in log.notes[0]


def test_a_packed_log_of_a_megabyte_never_earns_ten_seconds(tmp_path: Path) -> None:
    stream = gzip.compress(bytes(1 << 20).replace(b"\0", b"\n"), 1)
    raw = stream * ((1 << 20) // len(stream))
    (tmp_path / "x.gz").write_bytes(raw)
    with within_budget() as budget:
        began = time.thread_time()
        assert sum(map(len, open_log(tmp_path / "x.gz").blocks())) > 32 * len(raw)
        assert 7 < budget.deadline - began < 9


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_any_unicode_becomes_utf8(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "x.log").write_bytes((TEXT + "\nmore\n" * 50).encode(encoding))
    assert content(tmp_path / "x.log") == (TEXT + "\nmore\n" * 50).encode()


def test_latin1_and_holes_of_zeros_are_text(tmp_path: Path) -> None:
    raw = b"\0" * 70_000 + "Fehler: ungültig\n".encode("latin-1") * 10
    (tmp_path / "x.log").write_bytes(raw)
    assert content(tmp_path / "x.log") == raw


def test_blocks_end_where_lines_do(tmp_path: Path) -> None:
    lines = [f"{n} {'x' * (n % 200)}\n".encode() for n in range(40_000)]
    (tmp_path / "x.log").write_bytes(b"".join(lines))
    blocks = list(open_log(tmp_path / "x.log").blocks())
    assert len(blocks) > 2
    assert all(block.endswith(b"\n") for block in blocks)
    assert b"".join(blocks) == b"".join(lines)


def test_an_endless_line_is_given_in_pieces_that_overlap(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"y" * (20 * LONGEST))
    sizes = [len(block) for block in open_log(tmp_path / "x.log").blocks()]
    assert len(sizes) > 1
    assert max(sizes) <= log_files.BLOCK + LONGEST
    assert sum(sizes) > 20 * LONGEST


def test_progress_bars_end_blocks_like_lines(tmp_path: Path) -> None:
    bar = "".join(f"\r{n:3}%|{'█' * 40}| {n}/100 [00:01<00:02, 3.1it/s]" for n in range(40_000))
    (tmp_path / "x.log").write_text(bar)
    sizes = [len(block) for block in open_log(tmp_path / "x.log").blocks()]
    assert sum(sizes) == len(bar.encode())


def test_a_file_that_grows_is_read_up_to_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"before\n" * 1000)
    log = open_log(path)
    blocks = log.blocks()
    with path.open("ab") as file:
        file.write(b"after\n" * 1000)
    assert b"".join(blocks) == b"before\n" * 1000


def test_a_pipe_is_read_to_its_end() -> None:
    """As `diagnose <(kubectl logs …)` names it."""
    reader, writer = os.pipe()
    os.write(writer, TEXT.encode())
    log = open_log(f"/dev/fd/{reader}")
    os.write(writer, b"\nand more")
    os.close(writer)
    assert b"".join(log.blocks()) == f"{TEXT}\nand more".encode()
    os.close(reader)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(TEXT.encode()))))
    monkeypatch.setattr(sys, "stdin", fake)
    assert content("-") == TEXT.encode()


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"")
    assert content(tmp_path / "x.log") == b""


@pytest.mark.parametrize(
    "raw",
    [random.Random(4).randbytes(50_000), b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 50],
    ids=["nothing", "a program"],
)
def test_what_is_no_text_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.log").write_bytes(raw)
    with pytest.raises(UnreadableLog, match=r"x\.log is not text"):
        content(tmp_path / "x.log")


@pytest.mark.parametrize(
    ("raw", "tool"), [(b"\x28\xb5\x2f\xfd", "zstd -dc"), (b"PK\x03\x04", "unzip -p")]
)
def test_other_compressions_are_named_with_their_tool(
    tmp_path: Path, raw: bytes, tool: str
) -> None:
    (tmp_path / "x.log").write_bytes(raw + b"rest")
    with pytest.raises(UnreadableLog, match=tool):
        content(tmp_path / "x.log")


def test_missing_files_and_folders_and_devices_are_reported_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="does not exist"):
        open_log(tmp_path / "none.log")
    with pytest.raises(UnreadableLog, match="neither a file nor a pipe"):
        open_log(tmp_path)
    with pytest.raises(UnreadableLog, match="neither a file nor a pipe"):
        open_log("/dev/zero")
    with pytest.raises(UnreadableLog, match="cannot be opened"):
        open_log("name\0with zero")


def test_a_file_of_others_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableLog, match="You may not read"):
        open_log(tmp_path / "x.log")


def test_very_long_logs_are_cut_and_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MOST_BYTES", 1 << 20)
    (tmp_path / "x.log").write_bytes(b"line\n" * 500_000)
    log = open_log(tmp_path / "x.log")
    assert sum(map(len, log.blocks())) == 1 << 20
    assert "only the first" in log.notes[0]


def test_an_xz_file_whose_reader_needs_much_memory_is_refused(tmp_path: Path) -> None:
    """Its first bytes ask for a window of up to 4 GiB before anything is unpacked."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 256 << 20}]
    path = tmp_path / "x.log.xz"
    path.write_bytes(lzma.compress(b"step 1\n" * 100, lzma.FORMAT_XZ, filters=filters))
    log = open_log(path)
    assert b"".join(log.blocks()) == b""
    assert "Memory usage limit" in log.notes[0]
