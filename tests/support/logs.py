"""Writes logs for tests and scans them; lines that healthy jobs print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside.logs.log_files import open_log
from mgpu_probes.outside.logs.log_scanner import Engine
from mgpu_probes.outside.logs.scanned_logs import Scanned

RECORDED = Path(__file__).parents[1] / "recorded"


@dataclass(frozen=True)
class Text:
    """A signature, as far as the log scanner needs it."""

    id: str
    needle: str
    pattern: str
    least: int = 1
    heads: tuple[str, ...] = ()


OOM = Text(
    "oom", "CUDA out of memory", r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)"
)
LOST = Text("lost", "closed by peer", r"Connection closed by peer \[(?P<host>[^\]]+)\]")


def scanned(path: Path, *wanted: Text) -> Scanned:
    log = open_log(path)
    return Engine(wanted or (OOM, LOST)).scan(log.name, log.blocks())


def scanned_text(text: str | bytes, *wanted: Text) -> Scanned:
    raw = text.encode() if isinstance(text, str) else text
    return Engine(wanted or (OOM, LOST)).scan("text", (raw,))


def progress(count: int, *, first: int = 0, label: str = "") -> list[str]:
    """Progress lines of a healthy training."""
    return [f"{label}epoch 0 step {n} loss {1 / (n + 1):.4f}" for n in range(first, first + count)]


def write(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
