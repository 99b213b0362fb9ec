"""What is done to the honest inputs of each format."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence

from tests.fuzz.boxes import changed_box, damaged_box, more_boxes
from tests.fuzz.byte_damage import damaged
from tests.fuzz.compressed_files import bomb, repacked
from tests.fuzz.console_texts import changed_text_file, hostile_text
from tests.fuzz.folders import deep, linked_inside, more_files, renamed, replaced, swapped
from tests.fuzz.json_changes import changed_lines, changed_text
from tests.fuzz.mutation_context import Mutator, Scene
from tests.fuzz.pickles import changed_dump, damaged_dump, strange_opcodes
from tests.fuzz.protobuf_changes import changed_profile


def mutate(format: str, index: int, scene: Scene) -> str:
    """Changes the subject; says what was done. All mutators of a format have their turn, and about
    every third input gets a second change."""
    mutators = MUTATORS[format]
    done = [mutators[index % len(mutators)](scene)]
    while scene.rng.random() < 0.3:
        more = scene.rng.choice(mutators)
        try:
            done.append(more(scene))
        except _IMPOSSIBLE:  # with what the first one left
            done.append(f"no {more.__name__}")
    return "; ".join(done)


def changed_json(scene: Scene) -> str:
    """One JSON file says something hostile."""
    path = scene.file(".json", ".json.gz")
    if path is None or path.name.endswith(".pb"):
        return changed_profile(scene)
    raw = path.read_bytes()
    is_packed = raw.startswith(b"\x1f\x8b")
    text = (gzip.decompress(raw) if is_packed else raw).decode("utf-8", "replace")
    new = changed_text(text, scene.hostile)
    path.write_bytes(gzip.compress(new, 1) if is_packed else new)
    return f"changed {path.name}"


def changed_json_lines(scene: Scene) -> str:
    """Lines of samples, exits or looks say something hostile."""
    path = scene.file(".jsonl")
    if path is None:
        return changed_json(scene)
    path.write_bytes(changed_lines(path.read_text("utf-8", "replace"), scene.hostile))
    return f"changed {path.name}"


def changed_console(scene: Scene) -> str:
    """What the job printed is hostile."""
    path = scene.file(".log", ".1")
    if path is None:
        return "no console"
    path.write_bytes(hostile_text(path.read_bytes(), scene.hostile))
    return f"changed {path.name}"


def damaged_file(scene: Scene) -> str:
    """Bytes of one file are damaged."""
    path = scene.file()
    if path is None:
        return "no file"
    path.write_bytes(damaged(path.read_bytes(), scene.rng))
    return f"damaged {path.name}"


_IMPOSSIBLE = (EOFError, LookupError, OSError, RecursionError, ValueError, struct.error, zlib.error)
_FOLDERS = (replaced, linked_inside, more_files, renamed, swapped, deep)
MUTATORS: dict[str, Sequence[Mutator]] = {
    "recordings": (
        changed_json,
        changed_json_lines,
        replaced,
        changed_json,
        changed_json_lines,
        linked_inside,
        changed_console,
        damaged_file,
        changed_json,
        more_files,
        changed_json_lines,
        changed_box,
        renamed,
        changed_json,
        swapped,
        changed_json_lines,
        deep,
    ),
    "boxes": (
        changed_box,
        changed_box,
        damaged_box,
        changed_box,
        changed_box,
        more_boxes,
        changed_box,
        changed_box,
        damaged_file,
        changed_box,
        replaced,
    ),
    "dumps": (
        changed_dump,
        strange_opcodes,
        damaged_dump,
        changed_dump,
        strange_opcodes,
        repacked,
        changed_dump,
        bomb,
        strange_opcodes,
        changed_dump,
        *_FOLDERS,
    ),
    "traces": (
        changed_profile,
        changed_json,
        damaged_dump,
        changed_profile,
        changed_json,
        repacked,
        changed_json,
        bomb,
        changed_json,
        *_FOLDERS,
    ),
    "logs": (
        changed_text_file,
        changed_text_file,
        changed_text_file,
        repacked,
        changed_text_file,
        changed_text_file,
        bomb,
        changed_text_file,
        changed_text_file,
        *_FOLDERS,
    ),
    "snapshots": (
        changed_dump,
        strange_opcodes,
        changed_dump,
        damaged_dump,
        changed_dump,
        strange_opcodes,
        changed_dump,
        repacked,
        bomb,
    ),
}
