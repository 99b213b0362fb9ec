"""Makes the strip that Textual paints from a line of text: in every frame, for each changed line.

Rich renders any text, and Textual then styles every segment. Lines of panels have few styles, and
their spans follow one another, so the combined styles are cached and one pass makes the strip.
Rich leaves out the style of a whole line that has no spans."""

from __future__ import annotations

from functools import lru_cache

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip


def make_strip(
    line: Text, width: int, base: Style, console: Console, room: int | None = None
) -> Strip:
    """Returns a line, cut or padded to `width` cells, on the style `base`. `room`: cells for the
    line, if fewer."""
    plain, whole, cells = line.plain, line.style, line.cell_len
    if room is not None and cells > room:
        return make_strip(line, room, base, console).adjust_cell_length(width, base)
    segments: list[Segment] = []
    done = 0
    for start, end, style in line.spans:
        if start < done:  # one span within another
            strip = Strip(line.render(console), cells)
            return strip.adjust_cell_length(width, base).apply_style(base)
        if start > done:
            segments.append(Segment(plain[done:start], _combine(console, base, whole)))
        if end > start:
            segments.append(Segment(plain[start:end], _combine(console, base, whole, style)))
        done = end
    if done < len(plain):
        segments.append(Segment(plain[done:], _combine(console, base, whole)))
    if cells < width:
        segments.append(Segment(" " * (width - cells), base))
        cells = width
    return Strip(segments, cells).adjust_cell_length(width, base)


@lru_cache(1024)
def _combine(console: Console, *styles: str | Style) -> Style:
    """Returns the styles laid over one another; unknown names change nothing."""
    return Style.combine(console.get_style(style, default=Style.null()) for style in styles)
