"""A panel of the screen: lines of text from a frozen frame, painted only where they change.

Textual's DataTable takes about ten times as long to update as lines (64 rows, Textual 8.2).
Painting a line takes several times as long as making its text, and sends bytes to the terminal, so
a line that says the same as before is not painted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Region, Size, Spacing
from textual.markup import escape
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.line_strips import make_strip
from mgpu_doctor.tui.panels.header import Title
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from typing_extensions import Self


Draw = Callable[[Frame, int, View], Sequence[Text]]


class Room(NamedTuple):
    """A panel's share of the height of a screen.

    `weight`: its share of the lines if there are too few for all panels. `least`: with fewer lines
    it is hidden. `spare`: it shares only the lines that the others leave.
    """

    weight: int
    least: int = 1
    spare: bool = False


class Panel(ScrollView, inherit_bindings=False):
    """Shows the lines that `draw` makes from the newest frame; hidden while there are none.

    The head of `Rows` stays at the top. When another row is marked, it is scrolled into view.
    """

    KEYS: ClassVar[str] = ""
    """What its own keys do, shown in its title while it has the focus."""
    KEYS_ANYWHERE: ClassVar[str] = ""
    """What keys do with its content whichever panel has the focus."""
    TAKES_FOCUS: ClassVar[bool] = False
    """Whether its keys work at once where no other panel has the focus."""
    _retitled = False
    """Whether its title is being set."""
    _keys_work = True

    # No left and right arrows: nothing scrolls sideways, and replays use them.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "up", show=False),
        Binding("down", "scroll_down", "down", show=False),
        Binding("pageup", "page_up", "page up", show=False),
        Binding("pagedown", "page_down", "page down", show=False),
        Binding("home", "scroll_home", "to the top", show=False),
        Binding("end", "scroll_end", "to the bottom", show=False),
    ]

    def __init__(
        self,
        draw: Draw,
        title: str = "",
        *,
        id: str,
        entitle: Title | None = None,
        room: Room | None = None,
        reachable: bool = True,
        compact: Draw | None = None,
    ) -> None:
        """`entitle` makes the title from a frame. `room`: None if it is always shown in full.
        `reachable`: Tab stops at it. `compact`: draws fewer lines where `draw` has too many."""
        self._strips: dict[int, Strip] = {}
        """The painted lines, by the cells below the top of the text, until they change."""
        super().__init__(id=id, classes="framed" if title and room else None)
        self.room = room
        self._draw, self._draw_compact = draw, compact
        self._compact = False
        self._title = title
        self._entitle = entitle
        self.border_title = self._titled = self._make_title()
        self._shown: tuple[Frame, View] | None = None
        self._lines: Sequence[Text] = ()
        self._painted: dict[int, tuple[int, Text]] = {}
        """What each screen line was painted from: its number and text. Kept as long as Textual may
        cache the painted line."""
        self._base_style: Style | None = None
        """That of its text, from the style sheet; None: not known yet."""
        self._gutter: Spacing | None = None
        """The title and the padding; None: not known yet."""
        self._width = self._line_width = 0
        """Cells of a line of text (0: not known yet), and of a line with what is right of it."""
        self._marked: int | None = None
        self._due = False
        self._wanted = True
        self._squeezed = False
        """Whether it got no line of the screen."""
        self.can_focus = bool(title) and reachable
        self.display = False  # until the first frame, so that the screen is laid out once

    @property
    def focusable(self) -> bool:
        """Returns whether it can take the focus. When a page closes, Textual gives the focus to the
        first widget that can, even one that is hidden."""
        return super().focusable and self.display

    @property
    def wish(self) -> int:
        """Returns the lines needed to show everything; 0 if there is nothing to show."""
        return len(self._lines) + bool(self._title) if self._lines else 0

    @property
    def full_wish(self) -> int:
        """Returns the lines needed to show everything in the usual form."""
        if not self._compact or self._shown is None or not self._wanted:
            return self.wish
        lines = len(self._draw(self._shown[0], self._cells, self._shown[1]))
        return lines + bool(self._title) if lines else 0

    @property
    def has_compact(self) -> bool:
        """Returns whether it has a form with fewer lines."""
        return self._draw_compact is not None

    @property
    def compact(self) -> bool:
        """Sets whether it is drawn in its form with fewer lines, if it has one."""
        return self._compact

    @compact.setter
    def compact(self, compact: bool) -> None:
        if self._draw_compact is not None and compact != self._compact:
            self._compact = compact
            self._redraw()

    @property
    def _cells(self) -> int:
        """Cells of a line of text; those of the screen until the panel was laid out."""
        self._width = self._width or self.scrollable_content_region.width
        return self._width or self.app.size.width

    @property
    def wanted(self) -> bool:
        """Sets whether the screen has room for it; if not, it is hidden and draws nothing."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._redraw()

    @property
    def stays(self) -> int:
        """Lines of its header, which do not scroll."""
        return len(self._lines.head) if isinstance(self._lines, Rows) else 0

    def lower(self, lines: int) -> None:
        """Starts `lines` lines below the title."""
        if self.styles.padding.top != lines:
            self.styles.padding = (lines, 0, 0, 0)

    def take(self, lines: int) -> None:
        """Takes this many lines of the screen; with 0 it is hidden, including its title."""
        if self.styles.height is None or self.styles.height.cells != lines:
            self.styles.height = lines
        self._squeezed = not lines
        self.display = bool(self._lines) and not self._squeezed

    def show(self, frame: Frame, view: View) -> None:
        """Draws this frame from now on."""
        self._shown = frame, view
        if self._entitle is not None:
            self._title = self._entitle(frame, view)
        self._keys_work = self.has_rows()
        self._set_title()
        self._redraw()

    def has_rows(self) -> bool:
        """Returns whether there is something for the panel's keys."""
        return True

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self._set_title()

    def _set_title(self) -> None:
        titled = self._make_title()
        if titled != self._titled:
            self._titled = titled
            self._retitled = True
            self.border_title = titled
            self._retitled = False

    def _make_title(self) -> str:
        """Returns the title as markup, with what keys do now."""
        keys = (self.KEYS if self.has_focus else "", self.KEYS_ANYWHERE)
        shown = "  ".join(filter(None, keys)) if self._title and self._keys_work else ""
        return escape(" · ".join(filter(None, (self._title, shown))))

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Repaints. On a new title Textual would repaint the whole panel; one line is enough."""
        if self._retitled:
            left, top = self.content_offset
            regions = (Region(-left, -top, self.outer_size.width, 1),)
        for region in regions:
            for y in region.line_range:
                self._strips.pop(y, None)
        if not regions:
            self._forget_style()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def on_resize(self, _event: Resize) -> None:
        self._marked, self._width = None, 0
        self._forget_style()
        self._redraw()

    def _redraw(self) -> None:
        if self._shown is None or not self._wanted:
            self._lines, self.display = (), False
            return
        frame, view = self._shown
        width = self._cells
        draw = (self._draw_compact if self._compact else None) or self._draw
        before, self._lines = self._lines, draw(frame, width, view)
        self.display = bool(self._lines) and not self._squeezed
        size = Size(width, len(self._lines))
        if self.virtual_size != size and not self._scroll_over(size):
            self.virtual_size = size
            self._painted = {}
            self.refresh(layout=True)
        elif self._lines is not before:
            self._paint_changed(width)
        marked = self._lines.marked if isinstance(self._lines, Rows) else None
        if marked != self._marked:
            self._marked, self._due = marked, marked is not None
            self.call_after_refresh(self._bring)

    def _scroll_over(self, size: Size) -> bool:
        """Sets the number of lines if that moves nothing but the scroll bar, and returns whether it
        does. Textual would lay out and paint the whole screen, whenever a process comes or goes."""
        room = self.scrollable_content_region.height
        last_top = size.height - room
        stays = room and self.scroll_offset.y <= last_top and self.virtual_size.height > room
        if not stays or last_top <= 0 or size.width != self.virtual_size.width:
            return False
        self.set_reactive(Panel.virtual_size, size)
        self.vertical_scrollbar.window_virtual_size = size.height
        return True

    def _paint_changed(self, width: int) -> None:
        before, self._painted = self._painted, {}
        changed = [y for y, (_, shown) in before.items() if not _same(shown, self._text(y))]
        if changed:
            self.refresh(*_join_lines(changed, width))

    def _text(self, y: int) -> Text:
        """Returns the newest frame's line `y` cells below the top. Made once."""
        line = self.line_at(y)
        known = self._painted.get(y)
        if known is None or known[0] != line:
            shown = self._lines[line] if line < len(self._lines) else Text()
            known = self._painted[y] = (line, shown)
        return known[1]

    def _bring(self) -> None:
        """Scrolls just far enough to show the marked row."""
        lines = self._lines
        room = self.scrollable_content_region.height
        if not self._due or not room or not isinstance(lines, Rows) or lines.marked is None:
            return
        self._due = False
        least = lines.marked - max(1, room - len(lines.head)) + 1
        top = max(least, min(lines.marked, int(self.scroll_offset.y)))
        # Forced: whether there is a scroll bar is only known after layout.
        self.scroll_to(y=top, animate=False, force=True)

    def line_at(self, y: int) -> int:
        """Returns the line shown `y` cells below the top."""
        return y if y < self.stays else y + int(self.scroll_offset.y)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Paints the lines that have changed, and returns all. There is nothing at the sides of the
        text, so Textual's painting, which takes twice as long, is only needed for the title."""
        top, right, bottom, left = self._measure()
        if left or right or bottom or crop.x or crop.width != self.outer_size.width:
            return super().render_lines(crop)
        missing = [y for y in crop.line_range if y - top not in self._strips]
        if missing:
            self._line_width = crop.width
            filters, background = self.get_line_filters(), self.background_colors[1]
            for y in missing:
                if y < top:
                    (strip,) = super().render_lines(Region(0, y, crop.width, 1))
                else:
                    strip = self.render_line(y - top)
                    for line_filter in filters:
                        strip = strip.apply_filter(line_filter, background)
                self._strips[y - top] = strip
        return [self._strips[y - top] for y in crop.line_range]

    def _measure(self) -> Spacing:
        """Returns the title and the padding, and learns how wide lines are. Done once per size."""
        if self._gutter is None:
            self._gutter = self.styles.gutter
            self._width = self._line_width = self.scrollable_content_region.width
        return self._gutter

    def render_line(self, y: int) -> Strip:
        self._measure()
        if self._base_style is None:
            self._base_style = self.rich_style
        text, console = self._text(y), self.app.console
        return make_strip(text, self._line_width, self._base_style, console, self._width)

    def notify_style_update(self) -> None:
        self._forget_style()
        super().notify_style_update()

    def _forget_style(self) -> None:
        """Has everything painted again."""
        self._base_style = self._gutter = None
        self._strips.clear()


def _join_lines(lines: Sequence[int], width: int) -> Iterator[Region]:
    """Yields the regions of lines, in ascending order; neighbours are one region."""
    first = last = lines[0]
    for line in (*lines[1:], -1):
        if line != last + 1:
            yield Region(0, first, width, last + 1 - first)
            first = line
        last = line


def _same(text: Text, other: Text) -> bool:
    """Returns whether two texts are equal, including the base style, which Rich's comparison
    ignores."""
    return text is other or (text == other and text.style == other.style)
