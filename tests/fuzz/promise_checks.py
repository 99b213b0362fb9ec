"""Holds what a command did and wrote against what is promised for foreign files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.canary import TOKEN
from tests.fuzz.hostile_values import MARKUP
from tests.fuzz.isolated_runs import CPU_SECONDS, HUNG_SECONDS, Ended
from tests.fuzz.reading_commands import View

MOST_MEMORY = 256 << 20
"""Bytes above what the same command takes for an honest input."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile(
    r"[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_OWN = "mgpu-doctor: "
_BINARY = (".parquet",)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|nan|inf)", re.IGNORECASE)


def faults(view: View, ended: Ended, baseline: int, out: Path, touched: list[str]) -> list[str]:
    """What is wrong, in words that begin with the kind of it. `baseline`: the peak of memory of the
    same view of an honest input; `touched`: what was done to files outside of the subject."""
    found = list(_of_process(view, ended, baseline))
    found += [f"outside: {deed}" for deed in touched]
    found += [f"deed: {deed}" for deed in ended.deeds]
    texts = {"stdout": ended.stdout, "stderr": ended.stderr}
    texts |= {str(path.relative_to(out)): path.read_bytes() for path in _files(out)}
    for name, raw in texts.items():
        found += [f"{fault} in {name}" for fault in _of_text(view, name, raw)]
    for line in ended.stderr.decode("utf-8", "replace").splitlines():
        if not line.startswith(_OWN):
            found.append(f"stderr: {line[:200]!r}")
            break
    return found


def _of_process(view: View, ended: Ended, baseline: int) -> Iterator[str]:
    if ended.error is not None:
        yield f"exception: {_short(ended.error)}"
    elif ended.signal is not None:
        hung = ended.wall >= HUNG_SECONDS
        yield f"hung: {ended.wall:.0f} s" if hung else f"signal: {ended.signal}"
    elif ended.code not in view.codes:
        yield f"exit code: {ended.code}"
    if ended.cpu > CPU_SECONDS:
        yield f"time: {ended.cpu:.1f} s of the processor"
    if ended.peak - baseline > MOST_MEMORY:
        yield f"memory: {(ended.peak - baseline) >> 20} MiB above the baseline"


def _of_text(view: View, name: str, raw: bytes) -> Iterator[str]:
    if name.endswith(_BINARY) or "tfevents" in name:
        if TOKEN.encode() in raw:
            yield "outside: the canary's text"
        return
    if name.endswith(".gz"):
        raw = gzip.decompress(raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        yield "encoding: no UTF-8"
        return
    if name.endswith(".csv"):
        text = text.replace("\r\n", "\n")
        yield from _of_cells(text)
    yield from _of_words(text)
    if name.endswith(".html") and MARKUP in text:
        yield "markup: not escaped"
    if name.endswith(".json") or (name == "stdout" and "--json" in view.words):
        yield from _of_json(text)


def _of_words(text: str) -> Iterator[str]:
    if TOKEN in text:
        yield "outside: the canary's text"
    for kind, pattern in (("control", _CONTROLS), ("invisible", _INVISIBLE)):
        if (wrong := pattern.search(text)) is not None:
            around = text[max(0, wrong.start() - 60) : wrong.end() + 20]
            yield f"{kind}: {wrong[0]!r} within {around!r}"


def _of_json(text: str) -> Iterator[str]:
    """What cannot be parsed, and what it says once it is."""
    for line in [text] if not text.strip() or _is_json(text) else text.splitlines():
        if not line.strip():
            continue
        try:
            tree = json.loads(line, parse_constant=_refuse)
        except ValueError as error:
            yield f"json: {error}"
            return
        yield from _of_words("\n".join(_texts(tree)))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _texts(tree: Any) -> Iterator[str]:
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            todo += node
        elif isinstance(node, dict):
            todo += [*node, *node.values()]


def _of_cells(text: str) -> Iterator[str]:
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            if cell.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(cell):
                yield f"formula: {cell[:60]!r}"
                return


def _files(out: Path) -> list[Path]:
    return sorted(path for path in out.rglob("*") if path.is_file())


def _short(error: str) -> str:
    """The exception and the innermost frame of the doctor's own code: what one bug is known by."""
    own = re.findall(r'File "[^"]*/(mgpu_(?:doctor|probes)/[^"]+)", line (\d+), in (\S+)', error)
    where = f"{own[-1][0]}:{own[-1][1]} {own[-1][2]}" if own else "?"
    return f"{error.strip().splitlines()[-1][:200]} at {where}"
