"""A rank on a GPU whose memory consists of known parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mgpu_doctor.case.model import Rank
from tests.support.metadata import with_metadata
from tests.support.synthetic import Synthetic, synthetic_case

GIB = 1 << 30
PARTS = {"on": "cuda", "weights": 2 * GIB, "gradients": 2 * GIB, "optimizer": 4 * GIB}
DDP = {"gradient_as_bucket_view": False, "buckets": [GIB, GIB]}
TORCH = {"allocated": 8 * GIB, "allocated_peak": 20 * GIB, "reserved_peak": 24 * GIB}
BIRTH = {"memory_parts": PARTS, "ddp": DDP, "device_memory": TORCH}


def on_a_gpu(**birth: Any) -> Rank:
    (rank,) = synthetic_case(Synthetic(ranks=1, steps=1)).ranks
    return with_metadata(replace(rank, device="cuda:0"), **{**BIRTH, **birth})
