"""What analysis knows about a case: the input of every rule."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.case.model import Case


@dataclass(frozen=True, slots=True)
class Measures:
    case: Case
