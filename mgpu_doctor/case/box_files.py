"""The black boxes of a recording: their paths, and reports about damaged ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mgpu_probes.inprocess.layout import BOX_SUFFIX
from mgpu_probes.outside.untrusted_files import entries_below

from mgpu_doctor.case import untrusted_json
from mgpu_doctor.case.model import Gap, Unexamined
from mgpu_doctor.case.untrusted_json import Json
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.box import Box, BoxFile
from mgpu_doctor.recording.live_recordings import find_outside
from mgpu_doctor.recording.parallel_boxes import Read

MOST_BOXES = 32_768
MOST_HOSTS, MOST_TASKS = 8192, 1024
LONGEST = 5000
"""Most characters of a reason, which may contain a whole path."""
MOST_REPORTED = 8
"""Unreadable boxes that are reported one by one."""


def find_boxes(path: Path, infos: Iterable[Mapping[str, Json]]) -> list[BoxFile]:
    """Every box file: in the recording, beside its samples, or in the folders of live boxes that
    `infos`, its `recording.json` and those of its parts on this host, name. A file that has several
    names is one box."""
    folders = [(path, path), *((path, folder / layout.BOXES) for folder in host_folders(path))]
    folders += [(outside, outside) for outside in find_outside(infos)]
    by_name: dict[str, tuple[int, BoxFile]] = {}
    for root, folder in folders:
        for entry in entries_below(root, folder):
            if entry.name.endswith(BOX_SUFFIX) and len(by_name) < MOST_BOXES:
                # A live box outside of the recording is newer than the copy in it.
                by_name[entry.name] = entry.inode, BoxFile(entry.path, root)
    inodes = Counter(inode for inode, _ in by_name.values())
    once: dict[object, BoxFile] = {}
    for name in sorted(by_name):
        inode, file = by_name[name]
        once.setdefault(name if inodes[inode] == 1 else _identity(file.path), file)
    return list(once.values())


def _identity(path: Path) -> tuple[int, int] | Path:
    """A key that is equal for all names of one file."""
    try:
        status = path.lstat()
    except OSError:
        return path
    return status.st_dev, status.st_ino


def host_folders(path: Path) -> list[Path]:
    """The folder of each host, with its samples and boxes, by name."""
    entries = entries_below(path, path / layout.HOSTS)
    return [entry.path for entry in entries if entry.is_folder][:MOST_HOSTS]


def part_folders(root: Path, host: Path) -> list[tuple[int, Path]]:
    """Number and folder of each task of a host that wrote into the recording `root`: with its
    `recording.json`, its `end.json` and its console."""
    entries = entries_below(root, host / layout.TASKS)
    numbered = [entry for entry in entries if entry.is_folder and entry.name.isdecimal()]
    return [(0, host), *((int(task.name), task.path) for task in numbered[:MOST_TASKS])]


def readable_boxes(read: Sequence[Read], unexamined: list[Unexamined]) -> list[Box]:
    """The boxes that could be read; `unexamined` gets the reasons of the others."""
    bad = [reason for reason in read if isinstance(reason, str)]
    whole = [box for box in read if not isinstance(box, str)]
    remedy = "record the job again, or read the box on the machine and version that wrote it"
    for reason in bad[:MOST_REPORTED]:  # it names the file, whose name may be hostile
        unexamined.append(
            Unexamined("black box", untrusted_json.text(reason, LONGEST) or "?", remedy)
        )
    if len(bad) > MOST_REPORTED:
        more = f"{len(bad) - MOST_REPORTED} more boxes cannot be read"
        unexamined.append(Unexamined("black box", more, remedy))
    damaged = [box for box in whole if box.damage]
    if damaged:
        reason = f"{len(damaged)} boxes are damaged in places: {damaged[0].damage[0]}"
        unexamined.append(Unexamined("black box", reason, "nothing: the whole parts were examined"))
    return whole


def stopped_probes(boxes: Iterable[Box]) -> list[Unexamined]:
    """Reports probes that stopped by themselves, by the reason that they gave."""
    where = defaultdict(list)
    for box in boxes:
        reason = untrusted_json.text(box.last_words.get("off"), 200)
        if box.state == "off" or reason:
            where[reason or "no reason given"].append(box.identity.rank)
    return [
        Unexamined(
            "in-process probe",
            f"it switched itself off on {len(ranks_)} ranks: {reason}",
            "only what was recorded until then was examined; please report it with this text",
            Gap.PROCESS_PROBE,
        )
        for reason, ranks_ in list(where.items())[:MOST_REPORTED]
    ]
