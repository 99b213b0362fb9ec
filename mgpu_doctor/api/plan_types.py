"""A memory plan as typed, frozen data: the object of docs/plan.schema.json, key by key.

Bytes and fractions from 0 to 1; None: unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mgpu_doctor.api.notebook_views import Card, Result
from mgpu_doctor.formatting import format_bytes


class Settings(msgspec.Struct, frozen=True):
    """What was planned. `batch`: samples per rank in one micro-batch."""

    batch: int
    accumulate: int
    checkpointing: str
    precision: str
    optimizer: str
    strategy: str
    ranks: int


class Gpu(msgspec.Struct, frozen=True):
    """The GPU, its memory in bytes, and where this number comes from."""

    name: str
    capacity: int
    source: str


class OutsideMemory(msgspec.Struct, frozen=True):
    """Memory outside of the allocator, such as the CUDA context."""

    name: str
    bytes: int
    margin: int
    source: str


class Tensor(msgspec.Struct, frozen=True):
    """A large tensor that is alive at the peak."""

    name: str
    bytes: int


class Prediction(msgspec.Struct, frozen=True):
    """Predicted memory. `needed`: what the GPU must have; `margin`: a fraction of the peak, by
    which it may be wrong."""

    peak_allocated: int
    smallest_capacity: int
    peak_reserved: int
    needed: int
    needed_at_most: int
    margin: float
    basis: str
    outside: tuple[OutsideMemory, ...]
    peak_phase: str | None
    peak_by_kind: Mapping[str, int]
    peak_by_phase: Mapping[str, int]
    largest: tuple[Tensor, ...]


class MemoryFix(msgspec.Struct, frozen=True):
    """A change that saves memory. `time_fraction`: by how much a step takes longer."""

    id: str
    summary: str
    how: str
    caveat: str | None
    needed: int
    saved: int
    time_fraction: float | None
    time_basis: str
    fits: bool | None
    basis: str
    treatment: str | None = None
    """What `mgpu-doctor treat --only` can try in its place on a job; None: nothing."""


class NotOffered(msgspec.Struct, frozen=True):
    """A fix that does not apply, and why."""

    id: str
    reason: str


class Together(msgspec.Struct, frozen=True):
    """The cheapest fixes with which it fits."""

    fixes: tuple[str, ...]
    prediction: Prediction


class Plan(Result, frozen=True, kw_only=True):
    """What a training step needs. `fits`: None without a GPU, or if only a lower bound is known."""

    subject: str
    plan: Settings
    framework: str
    gpu: Gpu | None
    method: str
    reasons: tuple[str, ...]
    lower_bound: bool
    parameters: int
    fits: bool | None
    largest_batch: int | None
    prediction: Prediction
    fixes: tuple[MemoryFix, ...]
    not_offered: tuple[NotOffered, ...]
    together: Together | None
    notes: tuple[str, ...]

    def make_card(self) -> Card:
        """What the short views show."""
        least = "at least " if self.lower_bound else ""
        where = "" if self.gpu is None else f" of {format_bytes(self.gpu.capacity)}"
        verdict = {True: "It fits", False: "It does not fit", None: "Memory of a step"}[self.fits]
        settings = self.plan
        about = f"batch {settings.batch}, {settings.precision}, {settings.optimizer}"
        rows = [
            (
                fix.id,
                fix.summary,
                f"{format_bytes(fix.needed)} needed",
                {True: "fits", False: "does not fit", None: "–"}[fix.fits],
            )
            for fix in self.fixes
        ]
        return Card(
            headline=f"{verdict}: {least}{format_bytes(self.prediction.needed)}{where}",
            about=f"{self.subject}, {settings.strategy}, {settings.ranks} ranks, {about}",
            columns=("fix", "what", "memory", "result"),
            rows=tuple(rows),
            notes=self.notes,
        )
