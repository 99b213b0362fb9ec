"""What the peak of a rank's memory is made of, as a bar and its legend. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.style import Style
from rich.text import Text

from mgpu_doctor.analysis.capacity.makeup import CACHE, REST, Makeup, makeup
from mgpu_doctor.case.model import Rank
from mgpu_doctor.report import text
from mgpu_doctor.report.phases import cells
from mgpu_doctor.tui.panels.parts import DIM

INDENT = 7
WIDEST = 100
"""Cells of the bar: wider ones tell no more."""
LOOKS = {
    "weights": ("W", "#0072b2"),
    "gradients": ("G", "#d55e00"),
    "optimizer": ("O", "#009e73"),
    "buckets": ("B", "#cc79a7"),
    REST: ("A", "#e69f00"),
    CACHE: ("·", "#808080"),
}
"""Letter and colour, so that it can be read without colours."""
WORDS = {
    ("device", REST): "activations and the rest",
    ("host", REST): "activations, Python and the rest",
    ("device", CACHE): "kept unused beside it",
}


def peak(rank: Rank | None, width: int) -> Iterator[Text]:
    """A bar and what its letters mean, or why there is none."""
    if rank is None:
        return
    made = makeup(rank)
    if isinstance(made, str):
        yield Text(f"What its peak memory is made of is not known: {made}.", style=DIM)
        return
    where = "its GPU" if made.where == "device" else "its process"
    yield Text.assemble(
        ("peak   ", DIM), (text.size(made.peak), "bold"), f" of {where} at most, made of"
    )
    yield _bar(made, min(WIDEST, width - INDENT))
    yield from _legend(made, width)


def _bar(made: Makeup, width: int) -> Text:
    bar = Text(" " * INDENT)
    sizes = list(made.parts.values())
    wide = cells([float(size) for size in sizes], float(sum(sizes)), width)
    for name, count in zip(made.parts, wide, strict=True):
        letter, colour = LOOKS[name]
        bar.append(letter * count, style=Style(color=colour))
    return bar


def _legend(made: Makeup, width: int) -> Iterator[Text]:
    """As many entries a line as there is room for."""
    line = Text(" " * INDENT)
    for name, size in made.parts.items():
        letter, colour = LOOKS[name]
        words = WORDS.get((made.where, name), name)
        entry = Text.assemble((letter, Style(color=colour)), f" {words} {text.size(size)}")
        if line.cell_len > INDENT and line.cell_len + 2 + entry.cell_len > width:
            yield line
            line = Text(" " * INDENT)
        if line.cell_len > INDENT:
            line.append("  ")
        line.append_text(entry)
    yield line
