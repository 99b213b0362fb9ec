"""The plan for a terminal. Readable without colours, by marks and letters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from mgpu_doctor.analysis.memory.allocator_replay import Composition
from mgpu_doctor.analysis.memory.fix_search import FixSet, Offer
from mgpu_doctor.analysis.memory.memory_plan import Checkpointing, Framework, Plan, Strategy
from mgpu_doctor.analysis.memory.stream import Kind
from mgpu_doctor.formatting import format_bytes, format_count
from mgpu_doctor.plan.planned import Planned
from mgpu_doctor.report import text

NARROWEST, WIDEST = 40, 100
OFFERED = 8
"""The most fixes shown; `--json` has all."""
LETTERS = {
    Kind.WEIGHTS: "W",
    Kind.GRADIENTS: "G",
    Kind.OPTIMIZER: "O",
    Kind.ACTIVATIONS: "A",
    Kind.BUCKETS: "D",
    Kind.BATCH: "B",
    Kind.TEMPORARY: "T",
}
_INK = {"W": "44", "G": "42", "O": "45", "A": "43", "D": "46", "B": "47", "T": "41"}
_GOOD, _BAD, _DIM, _BOLD = "1;32", "1;31", "2", "1"
"""Select Graphic Rendition: ECMA-48."""
_ASCII = str.maketrans("✓✗→·≥", "+x>->")
_TITLE = 24


def render(planned: Planned, *, width: int, colour: bool, unicode: bool) -> str:
    width = max(NARROWEST, min(width, WIDEST))
    page = _Page(width, colour)
    lines = [
        *page.verdict(planned),
        "",
        *page.numbers(planned),
        "",
        *page.peak(planned.prediction.composition),
        *page.fixes(planned),
        "",
        *page.method(planned),
    ]
    printed = "".join(f"{line.rstrip()}\n" for line in lines)
    return printed if unicode else printed.translate(_ASCII).encode("ascii", "replace").decode()


class _Page:
    def __init__(self, width: int, colour: bool) -> None:
        self.width = width
        self.colour = colour

    def verdict(self, planned: Planned) -> Iterator[str]:
        device, needed = planned.device, format_bytes(planned.prediction.needed)
        about = f"{text.line(planned.subject.name)}: {_described(planned.prediction.plan)}"
        yield from self._wrapped(about)
        if device is None:
            least = "at least " if planned.bound else ""
            yield from self._wrapped(
                f"needs {least}{needed} of a GPU (--gpu says which one)", _BOLD
            )
        elif planned.fits is None:
            sentence = f"· needs at least {needed}: whether it fits {device.name} is not known"
            yield from self._wrapped(sentence, _BOLD)
        elif planned.fits:
            yield from self._wrapped(f"✓ fits {device.name}: it needs {needed}", _GOOD)
        else:
            least = "at least " if planned.bound else ""
            sentence = f"✗ will not fit {device.name}: it needs {least}{needed}"
            if planned.prediction.needed <= device.capacity:
                sentence = (
                    f"✗ may not fit {device.name}: it needs {needed}, and the margin has no room"
                )
            yield from self._wrapped(sentence, _BAD)

    def numbers(self, planned: Planned) -> Iterator[str]:
        prediction, device = planned.prediction, planned.device
        torch = prediction.plan.framework is Framework.TORCH
        held = "peak of all tensors" if torch else "chunks in use, with enough memory"
        yield self._row("peak allocated", prediction.allocated, held)
        yield self._row("smallest that works", prediction.capacity, "what the allocator needs")
        takes = "with enough free memory" if torch else "with memory growth, else all"
        yield self._row("peak reserved", prediction.reserved, takes)
        for constant in prediction.outside:
            yield self._row(
                f"+ {constant.name}", constant.size, f"±{format_bytes(constant.margin)}"
            )
        most = f"up to {format_bytes(prediction.needed_at_most)} with all margins"
        yield self._row("needed", prediction.needed, most)
        if device is not None:
            yield self._row(device.name, device.capacity, device.source)
        if device is not None and not planned.bound:
            largest = "not known" if planned.largest is None else str(planned.largest)
            if planned.largest == 0:
                largest = "not even 1 fits"
            yield f"{'largest batch that fits':<{_TITLE}}{largest:>10}"

    def peak(self, made: Composition) -> Iterator[str]:
        if made.phase is None:
            return
        named = "in set-up" if made.phase.value == "setup" else f"in {made.phase.value}"
        yield from self._wrapped(f"Composition of the peak, {named}", _BOLD)
        parts = [(kind, made.kinds[kind]) for kind in LETTERS if made.kinds.get(kind)]
        yield "".join(
            self._inked(LETTERS[kind] * cells, _INK[LETTERS[kind]])
            for (kind, _), cells in zip(
                parts, cells([size for _, size in parts], self.width), strict=True
            )
        )
        legend = "  ".join(
            f"{LETTERS[kind]} {kind.value} {format_bytes(size)}" for kind, size in parts
        )
        yield from self._wrapped(legend)

    def fixes(self, planned: Planned) -> Iterator[str]:
        advice = planned.advice
        if advice is None:
            return
        if advice.offers:
            yield ""
            yield from self._wrapped("What would help; the cheapest that fits comes first", _BOLD)
        for number, offer in enumerate(advice.offers[:OFFERED], start=1):
            yield from self._offer(number, offer, planned)
        if (left := len(advice.offers) - OFFERED) > 0:
            yield f"    and {left} more (--json)"
        if advice.cheapest is not None and len(advice.cheapest.fixes) > 1:
            yield from self._together(advice.cheapest)

    def method(self, planned: Planned) -> Iterator[str]:
        followed = planned.followed
        basis = planned.prediction.basis
        way = followed.method.value if basis == "traced" else f"{followed.method.value}, {basis}"
        yield from self._wrapped(f"Method: {way}.", _DIM)
        for reason in followed.reasons:
            yield from self._wrapped(f"  {text.line(reason)}.", _DIM)
        for note in planned.notes:
            yield from self._wrapped(f"  {text.line(note)}.", _DIM)

    def _offer(self, number: int, offer: Offer, planned: Planned) -> Iterator[str]:
        before, after = planned.prediction.needed, offer.prediction.needed
        mark = {True: "✓ ", False: "✗ ", None: ""}[offer.fits]
        time = "time unknown"
        if offer.time.fraction is not None:
            time = f"time {offer.time.fraction:+.0%}" if offer.time.fraction else "no slower"
        yield from self._wrapped(f"{number:>2}. {offer.fix.summary}", indent=4)
        change = f"    {mark}{format_bytes(before)} → {format_bytes(after)}, {time}"
        yield self._inked(change, {True: _GOOD, False: "", None: ""}[offer.fits])
        yield from self._wrapped(f"    {offer.how}", _DIM, indent=4)
        if offer.fix.caveat:
            yield from self._wrapped(f"    · {offer.fix.caveat}", _DIM, indent=6)
        treatment = offer.fix.treatment_for(offer.prediction.plan)
        if treatment is not None:
            words = f"    · try it: `mgpu-doctor treat --only {treatment.name} -- COMMAND`"
            yield from self._wrapped(words, _DIM, indent=6)

    def _together(self, chosen: FixSet) -> Iterator[str]:
        names = ", ".join(fix.id for fix in chosen.fixes)
        needed = format_bytes(chosen.prediction.needed)
        settings = chosen.prediction.plan.settings
        yield from self._wrapped(
            f"✓ Together they fit: {names} ({needed}; batch {settings.batch}, "
            f"accumulate {settings.accumulate})",
            _GOOD,
            indent=2,
        )

    def _row(self, title: str, size: int, note: str) -> str:
        row = f"{title:<{_TITLE}}{format_bytes(size):>10}"
        room = self.width - len(row) - 3
        return f"{row}   {text.cut(text.line(note), room)}" if room > 10 else row

    def _wrapped(self, words: str, code: str = "", indent: int = 2) -> list[str]:
        lines = textwrap.wrap(
            words,
            self.width,
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
            break_long_words=False,  # commands stay whole
        )
        return [self._inked(line, code) for line in lines]

    def _inked(self, words: str, code: str) -> str:
        return f"\x1b[{code}m{words}\x1b[0m" if self.colour and code else words


def _described(plan: Plan) -> str:
    settings = plan.settings
    parts = [f"batch {settings.batch}"]
    if settings.accumulate > 1:
        parts.append(f"{settings.accumulate} micro-batches per step")
    parts += [settings.precision.value, settings.optimizer.value]
    if settings.checkpointing is not Checkpointing.NONE:
        parts.append(f"checkpointing {settings.checkpointing.value}")
    if plan.strategy is not Strategy.SINGLE:
        parts.append(f"{plan.strategy.value} on {format_count(plan.ranks, 'rank')}")
    return ", ".join(parts)


def cells(sizes: list[int], width: int) -> list[int]:
    """Returns the cells of a bar for each size, at least one each, `width` in all."""
    whole, edges, total = sum(sizes), [], 0
    for size in sizes:
        total += size
        edges.append(round(total * width / whole))
    cells = [edge - before for edge, before in zip(edges, [0, *edges], strict=False)]
    for place, size in enumerate(cells):
        if not size:
            cells[place] = 1
            cells[cells.index(max(cells))] -= 1
    return cells
