"""The type of a signature: a known failure message, as data.

Each signature is one object in a module of this package. A module is named after what fails
(`gpu_memory`, `host_connections`), or after the program that reports it (`slurm`, `deepspeed`).
`log_scanner` searches logs for signatures, and the rules of `rules/failures` turn matches into
findings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

LEAST_WORDS = 3
_WORD = re.compile(r"[A-Za-z]{2,}")


class Role(str, Enum):
    """What a message says about the job's failure."""

    CAUSE = "cause"
    """It states what went wrong."""
    SYMPTOM = "symptom"
    """It follows from a failure elsewhere: a timeout, a broken pipe, a closed socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A known failure message.

    `pattern` is a regular expression, searched in one line without its rank prefix, escapes and
    time stamp; its named groups become `LogMatch.values` (`bytes`, `file`, `line`, `rank`,
    `device`, `signal`, `port`, …). `needle` is a literal in every matching line, which is searched
    first because that is fast. `example` is a real line that matches.

    Logs are untrusted, so a search must take linear time. An unbounded repeat may only be followed
    by a character that it cannot match (`\\d+ MiB`), or by `\\b` (`\\w+\\b.{0,200}`), and must not
    begin the pattern unless `\\b` or `(?<!…)` precedes it. All other repeats must be bounded.
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
    """Where the example comes from: `made: HOW` if the failure was provoked, `source: FILE of torch
    2.13` if the text was read in the framework's source, `recalled: FILE of …` if it should be
    there but has not been checked."""
    severity: str = "critical"
    """The finding's severity: `critical`, `warning` or `info`."""
    least: int = 1
    """How often a rank must have printed it before it counts."""
    weight: float = 0.9
    """Confidence, 0..1, that the finding is right if this line was printed."""
    needle_tells: bool = True
    """Whether the needle alone counts when `pattern` does not match, because the rest is cut off or
    worded differently. The finding then has no values and less confidence. A needle of fewer than
    three words never counts alone, nor that of a signature with `least` or a lower severity."""
    more_heads: tuple[str, ...] = ()
    """Other literals of three words or more, each of which counts in the same way."""
    wrapper: bool = False
    """It only reports that another process or thread raised something; that exception outranks
    it."""
    overcome_by: tuple[str, ...] = ()
    """Literals which show, in a later line, that the job recovered: what it waited for came."""
    needs_failure: bool = False
    """It is harmless unless the text also reports a failure."""
    mutual: bool = False
    """It says that ranks disagree, so the rank that prints it is not the culprit."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Literals that count as a match if the pattern does not match."""
        if self.severity != "critical" or self.least > 1:
            return ()
        by_needle = self.needle_tells and len(_WORD.findall(self.needle)) >= LEAST_WORDS
        return ((self.needle,) if by_needle else ()) + self.more_heads
