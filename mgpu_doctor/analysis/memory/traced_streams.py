"""The stream of a plan: as traced, or derived from the nearest trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mgpu_doctor.analysis.memory.memory_plan import Settings
from mgpu_doctor.analysis.memory.stream import Stream
from mgpu_doctor.analysis.memory.stream_edits import (
    accumulate_gradients,
    interpolate_batch,
    rescale_batch,
)


@dataclass(frozen=True, slots=True)
class TracedStep:
    """`basis`: where the stream is from."""

    stream: Stream
    basis: str


@dataclass(frozen=True, slots=True)
class Traces:
    """Streams by what they were traced with. `flops`: floating-point operations of one step with
    the same settings, where they were counted."""

    streams: Mapping[Settings, Stream]
    flops: Mapping[Settings, int] = field(default_factory=dict)

    def find(self, settings: Settings) -> TracedStep | None:
        """The step for these settings: traced; else interpolated between (or extrapolated from) two
        traced batches; else rescaled from one; else with a single micro-batch. None: no similar
        step was traced."""
        alike = {stream.samples: stream for stream in self._alike(settings)}
        if (stream := alike.get(settings.batch)) is not None:
            return TracedStep(stream, "traced")
        if len(alike) > 1:
            least, most = min(alike), max(alike)
            between = interpolate_batch(alike[least], alike[most], settings.batch)
            if between is not None:
                return TracedStep(between, f"from traces at batch {least} and {most}")
        if alike:
            nearest = min(alike, key=lambda samples: abs(samples - settings.batch))
            return TracedStep(
                rescale_batch(alike[nearest], settings.batch), f"scaled from batch {nearest}"
            )
        if settings.accumulate > 1 and (whole := self.find(replace(settings, accumulate=1))):
            basis = f"{whole.basis}, with the gradients of earlier micro-batches added"
            return TracedStep(accumulate_gradients(whole.stream), basis)
        return None

    def extra_work(self, before: Settings, after: Settings) -> float | None:
        """Additional operations per sample, as a share; None: not counted."""
        now, then = self._work(before), self._work(after)
        return then / now - 1 if now and then else None

    def _work(self, settings: Settings) -> float | None:
        """Operations a sample: the same at any batch."""
        for traced, flops in self.flops.items():
            batch, accumulate = traced.batch, traced.accumulate
            if replace(settings, batch=batch, accumulate=accumulate) == traced:
                return flops / (batch * accumulate)
        return None

    def _alike(self, settings: Settings) -> Iterator[Stream]:
        """Streams that differ at most in the batch. Three micro-batches need what two need."""
        for traced, stream in self.streams.items():
            same = settings.accumulate == traced.accumulate or (
                min(settings.accumulate, traced.accumulate) > 1
            )
            batch, accumulate = settings.batch, settings.accumulate
            if same and replace(traced, batch=batch, accumulate=accumulate) == settings:
                yield stream
