"""The recording of a running job: begins it, places its black boxes, notes facts, finishes it.

A failing disk never ends the job: what can be written is written, and the first error is reported
at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from mgpu_doctor.launch import box_storage
from mgpu_doctor.launch.job_nodes import JobNodes
from mgpu_doctor.launch.messages import print_message
from mgpu_doctor.recording import home, layout
from mgpu_doctor.recording.joint_recordings import (
    JOINT,
    NODE,
    NODES,
    claim_recording,
    join_recording,
    name_host,
    name_part,
)
from mgpu_doctor.recording.live_recordings import find_outside, read_object, read_tasks
from mgpu_doctor.recording.write import OccupiedError, create, private_folder, write_json


class RunRecording:
    """Writes a recording. `folder` and `boxes` are None if there is none. `part`: the folder of
    this node's `recording.json`, `end.json` and console; `folder` itself unless several nodes write
    into it. `leads`: whether this node writes about the whole job; `task`: number of this task of
    the job among those on this host, from 0."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.part = folder
        self.leads = True
        self.task = 0
        self.boxes: Path | None = None
        self.host = name_host()
        self._info: dict[str, object] = {"schema": layout.SCHEMA, "host": self.host}
        self.boxes_elsewhere = False
        self._trouble: OSError | None = None

    @classmethod
    def begin(
        cls, folder: Path, info: Mapping[str, object], nodes: JobNodes | None = None
    ) -> RunRecording:
        """Starts a recording in `folder`, or this node's part of one. Raises `write.OccupiedError`.
        If it cannot be written, prints a message and returns a recording that writes nothing."""
        folder = Path(os.path.abspath(folder))
        recording = cls(folder)
        recording._info.update(info)
        try:
            part = recording._create(folder, nodes)
            private_folder(part / layout.CONSOLE)
            recording._place_boxes(folder)
            recording._write_info()
        except OSError as error:
            recording._discard(folder)
            return cls.nowhere(folder, error)
        return recording

    def _create(self, folder: Path, nodes: JobNodes | None) -> Path:
        """Makes the folder, and returns the part of it that is this node's."""
        if nodes is None:
            create(folder)
            return folder
        self._info |= {JOINT: nodes.key, NODES: nodes.least, NODE: nodes.number}
        own = name_part(self.host, nodes.task)
        self.part, made = join_recording(folder, self._info, nodes.key, own)
        self.leads = made if nodes.first is None else nodes.first
        self.task = nodes.task
        return self.part

    @classmethod
    def begin_at_home(
        cls,
        name: str,
        started: float,
        info: Mapping[str, object],
        environment: Mapping[str, str],
        nodes: JobNodes | None = None,
    ) -> RunRecording:
        """Starts a recording with a new id in the doctor's home, or a part of the one that another
        node of the job has started there. If it cannot be written, prints a message and returns a
        recording that writes nothing: the job starts anyway."""
        try:
            if nodes is None:
                folder = home.new_recording(name, started, environment)
            else:
                part = name_part(name_host(), nodes.task)
                folder = claim_recording(nodes.key, name, started, part, environment)
            recording = cls.begin(folder, {"id": folder.name, **info}, nodes)
        except (OSError, OccupiedError) as error:
            return cls.nowhere(home.runs(environment), error)
        if recording.folder is None:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return recording

    @classmethod
    def nowhere(cls, folder: Path, error: Exception) -> RunRecording:
        """Prints why, and returns a recording that writes nothing."""
        why = error.strerror if isinstance(error, OSError) else error
        print_message(
            f"the recording cannot be written to {folder} ({why}); the job runs "
            "without one. Choose another place with --dir, or MGPU_DOCTOR_HOME."
        )
        return cls(None)

    def _place_boxes(self, folder: Path) -> None:
        """Finds a folder for the live boxes; without one the job runs without the probe."""
        try:
            place = box_storage.boxes_place(folder, self.host)
        except box_storage.NoLocalStorageError:
            kind = box_storage.file_system_of(folder)
            why = f"{folder} is on a file system of type {kind}, and no local folder is known"
            self._info |= {"probe": False, "no_probe": why}
            print_message(
                f"the ranks' steps are not recorded: {why}. Set TMPDIR to a folder on a local disk "
                "(ext4, xfs, tmpfs)."
            )
            return
        self.boxes, self.boxes_elsewhere = place.folder, place.key is not None
        self._info["probe"] = True
        if place.key is not None:
            self._info |= {"boxes": str(place.folder), "boxes_key": place.key}

    def note(self, **more: object) -> None:
        """Adds to `recording.json`."""
        self._info.update(more)
        self.guarded(self._write_info)

    def _write_info(self) -> None:
        folders = {self.part, self.folder} if self.leads else {self.part}
        for folder in folders:
            if folder is not None:
                write_json(folder / layout.INFO, self._info)

    def list_box_folders(self) -> list[Path]:
        """Folders of the live boxes of all tasks of the job on this host."""
        own = [] if self.boxes is None else [self.boxes]
        if self.folder is None:
            return own
        first = read_object(self.folder, f"{layout.HOSTS}/{self.host}/{layout.INFO}") or {}
        others = find_outside((first, *read_tasks(self.folder)))
        return list(dict.fromkeys((*own, *others)))

    def touch(self) -> None:
        """Shows other nodes that this one still writes its part."""
        part = self.part
        if part is not None and part != self.folder:
            self.guarded(lambda: os.utime(part / layout.INFO))

    def finish(self, **end: object) -> None:
        """Writes `end.json`, of this node."""
        self._write(self.part, layout.END, end)

    def _write(self, folder: Path | None, name: str, content: Mapping[str, object]) -> None:
        if folder is not None:
            self.guarded(lambda: write_json(folder / name, content))

    def guarded(self, write: Callable[[], None]) -> None:
        """Calls `write`; a disk error is kept for later, not raised."""
        try:
            write()
        except OSError as error:
            self._trouble = self._trouble or error

    def report_trouble(self) -> None:
        """Prints the first disk error, once the job prints no more."""
        if self._trouble is not None:
            reason = self._trouble.strerror or self._trouble
            print_message(f"parts of the recording {self.folder} could not be written ({reason}).")

    def _discard(self, folder: Path) -> None:
        """Removes the empty folders of a recording that could not be started."""
        boxes, part = layout.boxes(folder, self.host), self.part or folder
        with contextlib.suppress(OSError):
            (part / layout.INFO).unlink()
        for empty in (
            part / layout.CONSOLE,
            boxes,
            *([] if part == folder else [part, part.parent]),
            boxes.parent,
            boxes.parent.parent,
        ):
            with contextlib.suppress(OSError):
                empty.rmdir()
        with contextlib.suppress(OSError):
            if not (folder / layout.HOSTS).exists():
                (folder / layout.INFO).unlink()
