"""What the person at the graphs chose. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mgpu_doctor.live.history.collect import History
from mgpu_doctor.live.history.measures import Measure
from mgpu_doctor.tui.history.subjects import Lane, Subject, subjects
from mgpu_doctor.tui.history.window import Window


@dataclass(frozen=True, slots=True)
class Choice:
    """`measure`: place among the subject's measures. `scrolled`: graphs above the first shown."""

    window: Window = field(default_factory=Window)
    subject: Subject | None = None
    measure: int = 0
    scrolled: int = 0

    def shown(self, history: History) -> Subject:
        """The subject, or the first one where it is not chosen yet or gone."""
        there = subjects(history)
        return self.subject if self.subject in there and self.subject else there[0]

    def measured(self, history: History) -> Measure:
        """The measure that stands out."""
        measures = self.shown(history).measures
        return measures[self.measure % len(measures)]

    def turned(self, history: History, by: int) -> Choice:
        """So many subjects on; round the corner."""
        there = subjects(history)
        return self.on(there[(there.index(self.shown(history)) + by) % len(there)])

    def on(self, subject: Subject) -> Choice:
        """Another subject; the same measure where it has it."""
        kept = self.measure if self.subject is None else self._same(subject)
        return replace(self, subject=subject, measure=kept, scrolled=0)

    def _same(self, subject: Subject) -> int:
        assert self.subject is not None
        measure = self.subject.measures[self.measure % len(self.subject.measures)]
        return subject.measures.index(measure) if measure in subject.measures else 0

    def next_measure(self, history: History, by: int) -> Choice:
        """So many measures on; round the corner."""
        count = len(self.shown(history).measures)
        return replace(self, measure=(self.measure + by) % count, scrolled=0)

    def picked(self, history: History, lane: Lane) -> Choice:
        """A graph was pointed at: of many its subject, of one its measure."""
        shown = self.shown(history)
        if shown.is_many:
            here = replace(self, subject=shown)
            return here.on(lane.subject)
        return replace(self, subject=shown, measure=shown.measures.index(lane.measure), scrolled=0)

    def scrolled_by(self, by: int, most: int) -> Choice:
        """So many graphs down, `most` at most."""
        return replace(self, scrolled=max(0, min(most, self.scrolled + by)))
