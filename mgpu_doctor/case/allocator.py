"""What a rank's framework told of its device's memory in the birth certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.case.files import whole
from mgpu_doctor.case.model import Rank


@dataclass(frozen=True, slots=True)
class Allocator:
    """Bytes as of the last writing of the certificate, peaks and counters of the whole run."""

    allocated: int | None = None
    allocated_peak: int | None = None
    reserved: int | None = None
    """Taken from the device, in use or kept for later."""
    reserved_peak: int | None = None
    retries: int | None = None
    """Times that all kept memory had to be given back before a request could be met."""
    ooms: int | None = None


def allocator(rank: Rank) -> Allocator:
    """Of the rank's device; all unknown where it told nothing."""
    told = rank.birth.get("device_memory")
    if not isinstance(told, Mapping):
        return Allocator()
    return Allocator(
        allocated=whole(told.get("allocated")),
        allocated_peak=whole(told.get("allocated_peak")),
        reserved=whole(told.get("reserved")),
        reserved_peak=whole(told.get("reserved_peak")),
        retries=whole(told.get("retries")),
        ooms=whole(told.get("ooms")),
    )
