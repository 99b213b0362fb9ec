"""A rank's memory on its device or host; nothing is shown if nothing is known."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceProcess, DeviceSample
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.panels import rank_table
from mgpu_doctor.tui.screens.rank_memory import memory_lines
from mgpu_doctor.tui.view import View
from tests.support import diagnoses
from tests.support.frames import AT, GIB, HOST, STRAGGLER, gpu
from tests.support.metadata import with_metadata


def first_rank_lines(frame: Frame, birth: dict[str, Any] | None = None) -> list[str]:
    """Of the first rank."""
    assert frame.diagnosis is not None
    rank, known = frame.diagnosis.ranks[0], frame.diagnosis.case.ranks[0]
    return [line.plain for line in memory_lines(frame, rank, with_metadata(known, **birth or {}))]


def on_gpus(*, used: int | None = 70, own: int | None = 20) -> Frame:
    """Rank 0 on a GPU of 80 GiB."""
    processes = (DeviceProcess(4000, None if own is None else own * GIB),)
    first = gpu(0, memory_used=None if used is None else used * GIB, processes=processes)
    return structs.replace(STRAGGLER, devices=DeviceSample(AT, (first, gpu(1), gpu(2), gpu(3))))


def test_its_own_part_what_others_hold_and_what_is_free() -> None:
    (line,) = first_rank_lines(on_gpus())
    assert line == "memory 20 GiB of 80 GiB of its GPU  ████▒▒▒▒▒▒▒▒▒▒··  88 % in use by all"


def test_what_torch_made_of_it() -> None:
    torch = {"allocated": 12 * GIB, "allocated_peak": 15 * GIB, "reserved": 19 * GIB, "retries": 2}
    _, line = first_rank_lines(on_gpus(), {"device_memory": torch})
    assert line.strip() == (
        "by torch: 12 GiB allocated, 15 GiB at most, 7 GiB unused cache, "
        "cache flushed 2 times to make room"
    )
    assert (
        len(first_rank_lines(on_gpus(), {"device_memory": {"allocated": diagnoses.HOSTILE}})) == 1
    )


def test_the_host_of_a_job_without_gpus() -> None:
    host = structs.replace(HOST, processes={4000: (1.0, 32 * GIB)})
    (line,) = first_rank_lines(structs.replace(STRAGGLER, devices=None, host=host))
    assert line == "memory 32 GiB of 128 GiB of its host  ████▒▒··········  38 % in use by all"


def test_where_nothing_is_known_nothing_is_reported() -> None:
    assert first_rank_lines(structs.replace(STRAGGLER, devices=None, host=None)) == []
    assert (
        first_rank_lines(
            structs.replace(STRAGGLER, devices=None, host=structs.replace(HOST, host="elsewhere"))
        )
        == []
    )
    assert first_rank_lines(on_gpus(used=None, own=None)) == []


def test_the_table_shows_it_where_there_is_room_and_it_is_known() -> None:
    def head(frame: Frame, width: int) -> str:
        return rank_table.rank_lines(frame, width, View())[1].plain

    assert "memory" in head(on_gpus(), 160)
    assert "memory" not in head(on_gpus(), 100)
    assert "memory" not in head(structs.replace(STRAGGLER, devices=None, host=None), 160)
