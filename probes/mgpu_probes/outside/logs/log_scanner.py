"""Scans a log: which signatures match, which lines report failures, and its last lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

from mgpu_probes.outside.logs.cut_lines import cut_heads, find_cut_messages
from mgpu_probes.outside.logs.joined_lines import Physical, Sought, breaks_of, find_broken_messages
from mgpu_probes.outside.logs.log_blocks import WINDOW, Block, bare, decoded, pieces_of
from mgpu_probes.outside.logs.log_lines import Line, indentation_of, numbered_style, split_line
from mgpu_probes.outside.logs.log_shapes import Shapes
from mgpu_probes.outside.logs.repeated_lines import RepeatedLines
from mgpu_probes.outside.logs.scanned_logs import Form, Hit, KeptLine, Scanned
from mgpu_probes.outside.terminal_text import clean_line

TEXT_LIMIT = 500
VALUE_LIMIT = 600
MOST_HITS = 20_000
LOOK_BACK = 200
"""Lines before one without a time stamp that are searched for the last stamp."""
SAMPLE = 2000
TAIL_LINES = 200
TAIL_LIMIT = 500
TAIL_BYTES = 1 << 16

STRUCTURE = (
    "Traceback (most recent call last)",
    'File "',
    "Fatal Python error",
    "Root Cause (first",
    "Failures:",
    "exitcode",
    "-- Process ",
    "death signal",
    "got signal",
    "closing signal",
)
"""Texts of failures: tracebacks, faulthandler, reports of torchrun and mp.spawn."""
BEFORE = 3
FOLLOWING = 60
"""Lines before and after such a line that are kept for the parser of failures."""
MOST_TOLD = 10_000
"""Number of the first, and of the last, such lines that are kept."""


class Wanted(Protocol):
    """A signature to search for. `pattern` is searched in lines that contain `needle`; it must
    match `least` times on a rank. `heads` are literals that are enough where the pattern fails."""

    @property
    def id(self) -> str: ...
    @property
    def needle(self) -> str: ...
    @property
    def pattern(self) -> str: ...
    @property
    def least(self) -> int: ...
    @property
    def heads(self) -> tuple[str, ...]: ...


class Engine:
    """Searches logs for signatures. Shapes learned from one log speed up the next."""

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        """Raises ValueError for a needle that is too short, re.error for a bad pattern."""
        self.wanted = tuple(wanted)
        self.patterns = [re.compile(one.pattern) for one in self.wanted]
        by_pattern = [
            Sought(number, one.needle, self.patterns[number])
            for number, one in enumerate(self.wanted)
        ]
        by_head = [
            Sought(number, head, None)
            for number, one in enumerate(self.wanted)
            for head in one.heads
        ]
        self.messages = [*by_pattern, *by_head]
        self.cut_heads = tuple(cut_heads((head.wanted, head.literal) for head in by_head))
        needles = [*(message.literal for message in self.messages), *STRUCTURE]
        self.sought = [needle.encode() for needle in needles]
        self.shapes = Shapes(needles)

    def scan(self, source: str, blocks: Iterable[bytes]) -> Scanned:
        """The facts in one log. `blocks`: whole lines, see `log_files.Log.blocks`."""
        scanner = _Scanner(self)
        for block in blocks:
            scanner.feed(block)
        return scanner.scanned(source)


LEVEL_LIMIT = 200
MILD = re.compile(
    rb"(?<!NCCL )\b(?:[A-Za-z]{0,40}Warning|WARN|WARNING|INFO|DEBUG)\b|(?:^|[\s\[])[WI](?: |\d{4} )"
)
"""Log levels that report no failure: by word, or by letter as in glog, absl and torch."""

Hot = tuple[int, tuple[int, ...]]
"""The position of a piece and the needles that it may hold."""
Key = tuple[int, int | None, int | None]
"""The index of what was searched for, rank and local rank."""


@dataclass(slots=True)
class _Seen:
    """A hit, its count, and the number of progress lines before its last match."""

    first: Hit
    counted: int
    count: int = 1

    def again(self, counted: int) -> None:
        self.count += 1
        self.counted = counted


class _Scanner:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lines = 0
        self._counted = 0
        self._hits: dict[Key, _Seen] = {}
        self._partial: dict[Key, _Seen] = {}
        self._first_lines: list[tuple[int, bytes, int]] = []
        self._last_lines: deque[tuple[int, bytes, int]] = deque(maxlen=MOST_TOLD)
        self._following = 0
        self._first: list[str] | None = None
        self._last = b""
        self._style: str | None = None
        self._indentation = 0
        self._year: int | None = None
        self._seen: list[Line] = []
        self._counted_at: float | None = None
        self._looked = 0
        self._stamped: tuple[int, float] | None = None
        self._repeated: RepeatedLines[_Seen] = RepeatedLines()

    def feed(self, block: bytes) -> None:
        block = bare(block)
        if self._first is None:
            self._begin(block)
        self._last = block if len(block) >= TAIL_BYTES else self._last[-TAIL_BYTES:] + block
        shapes = self._engine.shapes.of(block)
        hot = self._engine.shapes.hot(shapes)
        ends = block.count(b"\n")
        if hot or self._following or self._hits or self._partial or self._first_lines:
            pieces = pieces_of(block)
            counting = self._engine.shapes.progress(shapes, pieces)
            whole = Block.of(block, pieces, counting, self._lines, self._counted)
            self._look(whole, hot, shapes)
            self._counted += len(counting)
            if counting:
                self._counted_at = self._stamp_before(pieces, counting[-1] + 1) or self._counted_at
        self._lines += ends

    def scanned(self, source: str) -> Scanned:
        lines = self._last.split(b"\n")[-SAMPLE:]
        last = [self._line(decoded(line)) for line in lines]
        self._seen += last
        joined = [*self._joined_hits(lines, last), *self._cut_hits(lines, last)]
        first = self._lines + 2 - len(lines)
        tail = [(first + n, line) for n, line in enumerate(lines) if line.strip()][-TAIL_LINES:]
        stamps = [line.at for line in self._seen if line.at is not None]
        return Scanned(
            source=source,
            lines=self._lines,
            hits=(
                *self._counted_hits(self._hits),
                *(hit for hit in joined if hit.form is Form.JOINED),
                *self._partial_hits(joined),
            ),
            kept_lines=tuple(self._kept_lines()),
            tail=tuple(clean_line(decoded(line), TAIL_LIMIT) for _, line in tail),
            tail_numbers=tuple(number for number, _ in tail),
            ranks=frozenset(line.rank for line in self._seen if line.rank is not None),
            local_ranks=frozenset(
                line.local_rank for line in self._seen if line.local_rank is not None
            ),
            began=min(stamps, default=None),
            ended=max(stamps, default=None),
        )

    def _counted_hits(self, hits: Mapping[Key, _Seen]) -> Iterator[Hit]:
        for (number, *_), seen in hits.items():
            if seen.count >= self._engine.wanted[number].least:
                yield replace(
                    seen.first,
                    count=seen.count,
                    after=self._counted - seen.counted,
                    later=self._later(seen.first.at),
                )

    def _partial_hits(self, joined: Iterable[Hit]) -> Iterator[Hit]:
        """Heads alone, of signatures that were not found in a better way."""
        known = {self._engine.wanted[number].id for number, *_ in self._hits}
        known |= {hit.signature for hit in joined if hit.form is Form.JOINED}
        in_lines = [hit for hit in self._counted_hits(self._partial) if hit.signature not in known]
        known |= {hit.signature for hit in in_lines}
        yield from in_lines
        yield from (hit for hit in joined if hit.signature not in known)

    def _joined_hits(self, pieces: Sequence[bytes], lines: Sequence[Line]) -> list[Hit]:
        """Hits of messages that only joined lines hold. `pieces` and `lines`: the last ones; kept
        lines near failures are searched, too."""
        engine = self._engine
        first = self._lines + 2 - len(pieces)
        kept = {
            number: (self._line(decoded(piece)), len(piece), counted)
            for number, piece, counted in chain(
                self._first_lines[:SAMPLE], list(self._last_lines)[-SAMPLE:]
            )
            if number < first
        }
        physical = [
            Physical(number, line.text, width, (line.rank, line.local_rank))
            for number, (line, width, _) in kept.items()
        ]
        physical += [
            Physical(first + n, line.text, len(piece), (line.rank, line.local_rank))
            for n, (piece, line) in enumerate(zip(pieces, lines, strict=True))
        ]
        known = {number for number, *_ in self._hits}
        known |= {number for number, one in enumerate(engine.wanted) if one.least > 1}
        hits = []
        for message in find_broken_messages(physical, engine.messages, engine.shapes, known):
            number = message.first.number
            rank, local = message.first.label
            hits.append(
                Hit(
                    signature=engine.wanted[message.wanted].id,
                    rank=rank,
                    local_rank=local,
                    number=number,
                    text=message.text[:TEXT_LIMIT].strip(),
                    at=None,
                    values=_short(message.values),
                    context=(message.text[:TEXT_LIMIT].strip(), message.following[:TEXT_LIMIT]),
                    after=self._counted - kept[number][2]
                    if number in kept
                    else self._progress(pieces[message.last + 1 - first :]),
                    form=Form.JOINED if message.whole else Form.HEAD,
                )
            )
        return hits

    def _cut_hits(self, pieces: Sequence[bytes], lines: Sequence[Line]) -> Iterator[Hit]:
        """Messages whose end is lost with the end of the log."""
        at = next((n for n in range(len(lines) - 1, -1, -1) if lines[n].text.strip()), None)
        if at is None or MILD.search(pieces[at][:LEVEL_LIMIT]):
            return
        line = lines[at]
        for wanted in find_cut_messages(line.text, self._engine.cut_heads):
            yield Hit(
                signature=self._engine.wanted[wanted].id,
                rank=line.rank,
                local_rank=line.local_rank,
                number=self._lines + 2 - len(pieces) + at,
                text=line.text[-TEXT_LIMIT:].strip(),
                at=line.at,
                values={},
                form=Form.HEAD,
            )

    def _progress(self, pieces: Sequence[bytes]) -> int:
        """How many of the pieces report progress."""
        shapes = [self._engine.shapes.of(piece)[0] for piece in pieces]
        return len(self._engine.shapes.progress(shapes, pieces))

    def _kept_lines(self) -> Iterator[KeptLine]:
        kept = [*self._first_lines, *self._last_lines]
        lines = [self._line(decoded(piece)) for _, piece, _ in kept]
        breaks = breaks_of([len(piece) for _, piece, _ in kept])
        if not any(breaks):
            breaks = breaks_of([len(line.text) for line in lines])
        at: float | None = None
        whole: KeptLine | None = None
        lost: str | None = None
        for (number, _, counted), line, after in zip(kept, lines, breaks, strict=True):
            at = line.at if line.at is not None else at
            if whole is not None and lost is not None and line.rank is None:
                whole = replace(whole, text=f"{whole.text}{lost}{line.text}")
            else:
                if whole is not None:
                    yield whole
                left, later = self._counted - counted, self._later(at)
                whole = KeptLine(number, line.labelled, left, later, at)
            lost = after
        if whole is not None:
            yield whole

    def _later(self, at: float | None) -> float | None:
        return None if at is None or self._counted_at is None else self._counted_at - at

    def _begin(self, block: bytes) -> None:
        """Detects the label style and the year from the first lines."""
        pieces = pieces_of(block[:TAIL_BYTES])[:SAMPLE]
        self._first = [decoded(piece) for piece in pieces]
        self._indentation = indentation_of(self._first)
        self._style = numbered_style(text[self._indentation :] for text in self._first)
        seen = [self._line(text) for text in self._first]
        self._year = next((line.year for line in seen if line.year is not None), None)
        self._seen = [self._line(text) for text in self._first] if self._year else seen

    def _look(self, block: Block, hot: Iterable[Hot], shapes: Sequence[bytes]) -> None:
        wanted, messages = len(self._engine.wanted), len(self._engine.messages)
        telling: list[int] = []
        self._looked, self._stamped = 0, None
        for position, held in hot:
            piece = block.pieces[position]
            if (seen := self._repeated.find(shapes[position], piece)) is not None:
                counted = block.counted_until(position)
                for match in seen:
                    match.again(counted)
                continue
            raw = ""
            line: Line | None = None
            matches: dict[int, _Seen] = {}
            found: _Seen | None = None
            for number in held:  # patterns before heads
                if self._engine.sought[number] not in piece:
                    continue
                if number >= messages:
                    telling.append(position)
                    break  # the last ones
                if line is None:
                    raw = decoded(piece)
                    line = self._line(raw)
                if number < wanted:
                    found = self._try(number, block, position, line, raw)
                elif not any(other < wanted for other in matches):
                    found = self._take_head(number, block, position, line)
                if found is not None:
                    matches[number] = found
            if line is not None and telling[-1:] != [position]:
                self._repeated.learn(shapes[position], piece, (line.rank, line.local_rank), matches)
        self._keep(block, telling)

    def _try(self, number: int, block: Block, position: int, line: Line, raw: str) -> _Seen | None:
        """Searches one line for one signature; None: it is not there. `raw`: with its prefixes."""
        piece = block.pieces[position]
        place = piece.find(self._engine.sought[number])
        text, found = self._found(number, piece, place, line.text, raw)
        if found is None:
            return None
        key = (number, line.rank, line.local_rank)
        if (known := self._hits.get(key)) is not None:
            known.again(block.counted_until(position))
            return known
        start = max(0, found.start() - TEXT_LIMIT // 2) if len(text) > TEXT_LIMIT else 0
        hit = self._hit(number, block, position, line, text[start : start + TEXT_LIMIT])
        seen = _Seen(replace(hit, values=_short(found.groupdict())), block.counted_until(position))
        if len(self._hits) < MOST_HITS:
            self._hits[key] = seen
        return seen

    def _take_head(self, number: int, block: Block, position: int, line: Line) -> _Seen | None:
        """Counts a line that contains a head and matches no pattern, unless it is a warning."""
        if MILD.search(block.pieces[position][:LEVEL_LIMIT]):
            return None
        wanted = self._engine.messages[number].wanted
        key = (wanted, line.rank, line.local_rank)
        if (known := self._partial.get(key)) is not None:
            known.again(block.counted_until(position))
            return known
        place = line.text.find(self._engine.messages[number].literal)
        text = line.text if 0 <= place < TEXT_LIMIT // 2 else line.text[max(0, place - 100) :]
        hit = self._hit(wanted, block, position, line, text[:TEXT_LIMIT])
        seen = _Seen(replace(hit, form=Form.HEAD), block.counted_until(position))
        if len(self._partial) < MOST_HITS:
            self._partial[key] = seen
        return seen

    def _hit(self, number: int, block: Block, position: int, line: Line, text: str) -> Hit:
        return Hit(
            signature=self._engine.wanted[number].id,
            rank=line.rank,
            local_rank=line.local_rank,
            number=block.numbers[position],
            text=text.strip(),
            at=line.at if line.at is not None else self._stamp_of(block, position),
            values={},
            context=block.around(position),
        )

    def _found(
        self, number: int, piece: bytes, place: int, text: str, raw: str
    ) -> tuple[str, re.Match[str] | None]:
        """The searched text and its match; of very long lines only the part near the needle."""
        pattern = self._engine.patterns[number]
        if place > WINDOW // 2:
            text = decoded(piece[place - WINDOW // 2 : place + WINDOW])
        found = pattern.search(text)
        if found is None and place <= WINDOW // 2 and raw != text:
            text, found = raw, pattern.search(raw)  # some patterns match what looks like a prefix
        return text, found

    def _keep(self, block: Block, telling: Iterable[int]) -> None:
        """Keeps the lines around those that report a failure."""
        end = len(block.pieces)
        until = min(self._following, end)
        positions = list(range(until))
        for start in telling:
            positions += range(max(start - BEFORE, until, 0), min(start + FOLLOWING, end))
            until = max(until, start + FOLLOWING)
        self._following = max(0, until - end)
        room = MOST_TOLD - len(self._first_lines)
        self._first_lines += [block.locate(position) for position in positions[:room]]
        self._last_lines += [block.locate(position) for position in positions[room:][-MOST_TOLD:]]

    def _stamp_before(self, pieces: Sequence[bytes], position: int) -> float | None:
        found = self._last_stamp(pieces, max(0, position - LOOK_BACK), position)
        return None if found is None else found[1]

    def _stamp_of(self, block: Block, position: int) -> float | None:
        """Like `_stamp_before`, for positions of one block in ascending order: each line is read
        once, however many hits follow it."""
        begin = max(0, position - LOOK_BACK)
        found = self._last_stamp(block.pieces, max(begin, self._looked), position)
        self._looked, self._stamped = position, found or self._stamped
        if self._stamped is None or self._stamped[0] < begin:
            return None
        return self._stamped[1]

    def _last_stamp(
        self, pieces: Sequence[bytes], begin: int, end: int
    ) -> tuple[int, float] | None:
        """The position and the seconds of the last line that has a stamp, of those between."""
        for position in range(end - 1, begin - 1, -1):
            at = self._line(decoded(pieces[position][:TEXT_LIMIT])).at
            if at is not None:
                return position, at
        return None

    def _line(self, text: str) -> Line:
        if self._indentation and not text[: self._indentation].strip():
            text = text[self._indentation :]
        return split_line(text, self._style, self._year)


def _short(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value[:VALUE_LIMIT] for name, value in values.items() if value is not None}
