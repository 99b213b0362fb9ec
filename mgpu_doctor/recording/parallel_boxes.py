"""Reads many boxes; those of a large job in two processes, if a second core is free. The columns of
a large job stay in temporary files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import structs

from mgpu_doctor.recording.box import HISTORY_DTYPE, BadBox, Box, BoxFile, read_box
from mgpu_doctor.recording.boxheader import Room
from mgpu_doctor.recording.column_file import ColumnFile
from mgpu_doctor.recording.columns import Packer
from mgpu_doctor.recording.records import ImplausibleError, check_plausible, join_records
from mgpu_doctor.recording.second_process import sharing

MANY = 2000
"""Number of boxes from which a second process pays: reading them takes half a second. With 640
nothing was gained (on two busy cores)."""
AT_ONCE = 64
"""Boxes that a process takes from the queue at once."""

TOGETHER = 16
"""Boxes that are read before their records are packed, while these lie in the caches."""
ROOM = 4 << 20
"""Bytes for them; a full ring of steps takes 1 MiB."""

Read: TypeAlias = "Box | str"
"""A box, or one sentence why it cannot be read."""


@contextlib.contextmanager
def reading(
    files: Sequence[BoxFile], read: Callable[[BoxFile], Box] = read_box
) -> Iterator[Callable[[], Iterator[tuple[int, Read]]]]:
    """A function that yields what is in each of the `files`, with its place among them, as they are
    read; a second process begins at once.

    `read`: reads a box. Any other than `read_box` is called in this process, and its boxes are not
    packed.
    """
    if read is not read_box:
        yield lambda: ((place, _read_one_file(file, read)) for place, file in enumerate(files))
    elif len(files) < MANY:
        yield lambda: enumerate(_packed(files, Packer()))
    else:
        shares = [files[at : at + AT_ONCE] for at in range(0, len(files), AT_ONCE)]

        def begin(file: ColumnFile | None) -> Callable[[int], list[Read]]:
            packer = Packer(file)
            return lambda number: _packed(shares[number], packer)

        with sharing(len(shares), begin) as read_shares:
            yield lambda: (
                (number * AT_ONCE + at, box)
                for number, share in read_shares()
                for at, box in enumerate(share)
            )


class KeptBoxes:
    """Boxes that are read once, as they are then; called like `read_box`."""

    def __init__(self, files: Sequence[BoxFile]) -> None:
        with reading(files) as read_all:
            self._boxes = {files[place]: box for place, box in read_all()}

    def __call__(self, file: BoxFile) -> Box:
        """The box in a file. Raises BadBox."""
        box = self._boxes.get(file)
        if box is None:
            box = self._boxes[file] = _read_one_file(file, read_box)
        if isinstance(box, str):
            raise BadBox(box)
        return box


def _read_one_file(file: BoxFile, read: Callable[[BoxFile], Box]) -> Read:
    try:
        return read(file)
    except BadBox as error:
        return str(error)
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror or error}"


def _packed(files: Sequence[BoxFile], packer: Packer) -> list[Read]:
    room = Room(ROOM)
    packed: list[Read] = []
    for start in range(0, len(files), TOGETHER):
        room.clear()  # the steps before are packed
        some = files[start : start + TOGETHER]
        reads = [_read_one_file(file, partial(read_box, room=room)) for file in some]
        try:
            packed += _with_columns(reads, packer)
        except ImplausibleError:
            packed += _with_columns([_read_one_file(file, read_box) for file in some], packer)
    return packed


def _with_columns(reads: Sequence[Read], packer: Packer) -> list[Read]:
    """The same boxes with their steps as columns. Raises ImplausibleError."""
    whole = [box for box in reads if not isinstance(box, str)]
    check_plausible(join_records([box.history for box in whole], HISTORY_DTYPE))
    columns = iter(packer.pack_all([box.steps for box in whole], checked=True))
    return [
        box if isinstance(box, str) else structs.replace(box, steps=next(columns)) for box in reads
    ]
