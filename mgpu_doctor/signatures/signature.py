"""What a signature is. Adding one means adding one object in one file, with a real example."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LEAST_WORDS = 3
_WORD = re.compile(r"[A-Za-z]{2,}")


class Role(str, Enum):
    """What a line tells of the job's end."""

    CAUSE = "cause"
    """It says itself what went wrong."""
    SYMPTOM = "symptom"
    """Something went wrong elsewhere or before: a time-out, a broken pipe, a closed socket."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A text by which a failure gives itself away.

    `pattern` is a regular expression, searched in one line without its rank prefix, escapes and
    time stamp; its named groups become `LogMatch.values` (`bytes`, `file`, `line`, `rank`,
    `device`, `signal`, `port`, …). `needle` is a literal that every matching line holds: it is
    looked for first, because that is fast. `example` is a real line that matches.

    Anyone may write such a line, so a search must be linear. A repeat without a bound may only be
    followed by a character that it cannot match (`\\d+ MiB`), or by `\\b` (`\\w+\\b.{0,200}`), and
    must not begin the pattern, unless `\\b` or `(?<!…)` is before it. All others have bounds.
    """

    id: str
    """Unique, lower case with hyphens."""
    code: str
    """The finding that it is evidence for."""
    role: Role
    needle: str
    pattern: str
    meaning: str
    """What happened, in one or two sentences for the user. May name groups: `{device}`."""
    fix: str
    """What to do or to type. May name groups."""
    example: str
    origin: str
    """Where the example comes from: `made: HOW` if we made the failure happen, `source: FILE of
    torch 2.13` if the framework's own text was read there, `recalled: FILE of …` if it should be
    there and nobody has checked."""
    severity: str = "critical"
    """`critical`, `warning` or `info`: of the finding."""
    least: int = 1
    """How often a rank must have printed it before it counts."""
    weight: float = 0.9
    """Confidence 0..1 that the finding is right where this line stands."""
    needle_tells: bool = True
    """Whether the needle alone tells the same, if it has three words: where `pattern` fails because
    the rest is cut off or worded otherwise. The finding then has no values and less confidence."""
    more_heads: tuple[str, ...] = ()
    """Other texts of three words and more, of which each does."""
    wrapper: bool = False
    """It only repeats that another process or thread raised something: that text outranks it."""
    overcome_by: tuple[str, ...] = ()
    """Texts which show, in a later line, that the job got over it: what it waited for came."""
    needs_failure: bool = False
    """It is harmless unless the text also reports a failure."""
    mutual: bool = False
    """It says that ranks disagree, so printing it makes no rank the culprit."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Texts that tell of a failure without matching the pattern."""
        if self.severity != "critical" or self.least > 1:
            return ()
        by_needle = self.needle_tells and len(_WORD.findall(self.needle)) >= LEAST_WORDS
        return ((self.needle,) if by_needle else ()) + self.more_heads
