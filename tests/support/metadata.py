"""Sets process metadata of synthetic ranks, by the keys of a black box."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import process_metadata


def with_metadata(rank: Rank, **facts: Any) -> Rank:
    """The rank, with these facts of its process metadata changed."""
    known = process_metadata(facts)
    changed = {name: getattr(known, name) for name in facts if hasattr(known, name)}
    return replace(rank, metadata=msgspec.structs.replace(rank.metadata, **changed))
