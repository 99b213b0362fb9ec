"""The titles of panels: what they show, and how old it is."""

from __future__ import annotations

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.panels import header
from tests.support import multi_host
from tests.support.frames import AT, BUSY, MANY_RANKS, REPLAYED, gpu


def titles_of(frame: Frame) -> list[str]:
    return [title(frame) for title in (header.gpus_title, header.ranks_title, header.steps_title)]


def test_what_is_fresh_is_not_dated() -> None:
    for frame in (MANY_RANKS, REPLAYED, structs.replace(BUSY, ranks_age=0.9, gpus_age=2.1)):
        assert titles_of(frame) == ["GPUs", "Ranks", "Steps"]


@pytest.mark.parametrize(
    ("interval", "age", "dated"),
    [
        (1.0, 2.4, False),
        (1.0, 2.6, True),
        (0.1, 2.4, False),
        (0.1, 2.6, True),
        (5.0, 12.0, False),
        (5.0, 13.0, True),
        (0.0, 15.0, True),
    ],
)
def test_what_is_older_than_was_asked_for_says_how_old(
    interval: float, age: float, dated: bool
) -> None:
    frame = structs.replace(BUSY, interval=interval, ranks_age=age, gpus_age=0.0)
    ago = f", {age:.0f} s ago" if dated else ""
    assert titles_of(frame) == ["GPUs", f"Ranks{ago}", f"Steps{ago}"]
    assert header.rank_title(frame) == f"Rank{ago}"
    assert header.gpu_title(structs.replace(frame, gpus_age=age)) == f"GPU{ago}"


def test_whose_gpus_they_are() -> None:
    assert header.gpus_title(multi_host.FOUR_HOSTS) == "GPUs of 4 hosts"
    fewer = structs.replace(multi_host.FOUR_HOSTS, elsewhere=multi_host.FOUR_HOSTS.elsewhere[1:])
    assert header.gpus_title(fewer) == "GPUs of 3 of 4 hosts"
    bare = DeviceSample(AT, (), "no driver", host="a")
    one = Frame(AT, "r", devices=bare, elsewhere=(DeviceSample(AT, (gpu(0),), host="b"),))
    assert header.gpus_title(one) == "GPUs of b"
