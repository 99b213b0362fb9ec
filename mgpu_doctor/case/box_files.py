"""The black boxes of a recording: their paths, and reports about damaged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from mgpu_doctor.recording.second_process import in_order

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


class BoxReports:
    """Collects what is wrong with boxes, which may be read in any order. It keeps none of them."""

    def __init__(self) -> None:
        self.count = 0
        """Number of boxes that could be read"""
        self._bad: dict[int, str] = {}
        self._damaged: dict[int, str] = {}
        self._stopped: dict[int, str] = {}
        """Place of a box -> why its probe stopped"""

    def keep_readable(self, reads: Iterable[tuple[int, Read]]) -> Iterator[tuple[int, Box]]:
        """Yields the boxes that could be read. `reads`: also the place of each among all."""
        for place, box in reads:
            if isinstance(box, str):
                self._bad[place] = box
                continue
            self.count += 1
            if box.damage:
                self._damaged[place] = box.damage[0]
            reason = untrusted_json.text(box.last_words.get("off"), 200)
            if box.state == "off" or reason:
                self._stopped[place] = reason or "no reason given"
            yield place, box

    def unreadable(self) -> Iterator[Unexamined]:
        """Reports boxes that cannot be read, at all or in places."""
        remedy = "record the job again, or read the box on the machine and version that wrote it"
        for reason in in_order(self._bad)[:MOST_REPORTED]:  # it names the file: it may be hostile
            yield Unexamined("black box", untrusted_json.text(reason, LONGEST) or "?", remedy)
        if len(self._bad) > MOST_REPORTED:
            more = f"{len(self._bad) - MOST_REPORTED} more boxes cannot be read"
            yield Unexamined("black box", more, remedy)
        if self._damaged:
            first = in_order(self._damaged)[0]
            reason = f"{len(self._damaged)} boxes are damaged in places: {first}"
            yield Unexamined("black box", reason, "nothing: the whole parts were examined")

    def stopped(self) -> Iterator[Unexamined]:
        """Reports probes that stopped by themselves, by the reason that they gave."""
        where = Counter(in_order(self._stopped))
        for reason, count in list(where.items())[:MOST_REPORTED]:
            yield Unexamined(
                "in-process probe",
                f"it switched itself off on {count} ranks: {reason}",
                "only what was recorded until then was examined; please report it with this text",
                Gap.PROCESS_PROBE,
            )
