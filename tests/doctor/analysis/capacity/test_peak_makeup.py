"""The parts of a rank's peak memory by their sizes, and reasons if sizes do not suffice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.analysis.capacity.peak_makeup import PeakMakeup, find_makeup
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import UNKNOWN
from tests.support.memory_makeup import DDP, GIB, PARTS, TORCH, on_a_gpu
from tests.support.metadata import with_metadata


def made_of(rank: Rank) -> dict[str, float]:
    """GiB by part."""
    makeup = find_makeup(rank)
    assert isinstance(makeup, PeakMakeup)
    assert sum(size for name, size in makeup.parts.items() if name != "cache") == makeup.peak
    return {name: size / GIB for name, size in makeup.parts.items()}


def test_the_parts_add_up_to_the_peak_and_what_is_kept_lies_beside_it() -> None:
    whole = {"weights": 2, "gradients": 2, "optimizer": 4, "buckets": 2, "rest": 10, "cache": 4}
    assert made_of(on_a_gpu()) == whole
    viewed = made_of(on_a_gpu(ddp={**DDP, "gradient_as_bucket_view": True}))
    assert viewed == {**{k: v for k, v in whole.items() if k != "buckets"}, "rest": 12}
    assert made_of(on_a_gpu(ddp=None)) == viewed, "gradients lie in them, or there are none"


@pytest.mark.parametrize(("reserved", "cache"), [(None, None), (19, None), (20, None), (21, 1)])
def test_what_torch_keeps_is_what_it_reserved_beyond_the_peak(
    reserved: int | None, cache: int | None
) -> None:
    kept = {**TORCH, "reserved_peak": None if reserved is None else reserved * GIB}
    assert made_of(on_a_gpu(device_memory=kept)).get("cache") == cache


@pytest.mark.parametrize(("peak", "rest"), [(10 * GIB, None), (10 * GIB + 1, 1)])
def test_parts_may_be_all_of_the_peak_but_not_more(peak: int, rest: int | None) -> None:
    makeup = find_makeup(on_a_gpu(device_memory={**TORCH, "allocated_peak": peak}))
    assert isinstance(makeup, PeakMakeup)
    assert makeup.parts.get("rest") == rest
    small = on_a_gpu(device_memory={**TORCH, "allocated_peak": 10 * GIB - 1})
    assert "exceed its peak" in str(find_makeup(small))


def test_a_process_on_the_host() -> None:
    rank = with_metadata(
        replace(on_a_gpu(), device="cpu", metadata=UNKNOWN),
        memory_parts={**PARTS, "on": "cpu"},
        memory_peaks={"host": [[0, 8, 0, 9 * GIB], [4, 8, 0, 11 * GIB]]},
        device_memory={"reserved_peak": 30 * GIB},
    )
    makeup = find_makeup(rank)
    assert isinstance(makeup, PeakMakeup)
    assert (makeup.where, makeup.peak) == ("host", 11 * GIB)
    assert made_of(rank) == {"weights": 2, "gradients": 2, "optimizer": 4, "rest": 3}
    on_device = with_metadata(
        on_a_gpu(device_memory={}), memory_peaks={"device": [[0, 8, 0, 12 * GIB]]}
    )
    assert made_of(on_device)["rest"] == 2, "torch told no peak, the steps did"


@pytest.mark.parametrize(
    ("birth", "why"),
    [
        ({"memory_parts": None}, "no optimizer"),
        ({"memory_parts": {**PARTS, "on": "cpu"}}, "not kept where it computes"),
        ({"device_memory": {}}, "not known"),
    ],
)
def test_where_sizes_do_not_tell(birth: dict[str, Any], why: str) -> None:
    assert why in str(find_makeup(on_a_gpu(**birth)))
