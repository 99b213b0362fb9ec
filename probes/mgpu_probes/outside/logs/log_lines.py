"""A line of a log, split into rank, time stamp and text.

These prefixes may precede the text, in any order: torch's `[rank2]:`, torchrun's
`[default2]:` and `[trainer2]:`, mpirun's `[1,2]<stderr>:`, Horovod's `[2]<stdout>:`, srun's `2:
`, Hydra's `[2] `, kubectl's `[pod/name/container]`, docker compose's `name-1  | `, the container
runtime's `stderr F `, Accelerate's `stderr: `, a mail's `> `, torchrun's `"message": "`,
journalctl's `host unit[pid]: `, Ray's `(name pid=1, ip=…)`, and time stamps.

Time stamps: ISO 8601 and RFC 3339 (also Python's logging, absl, slurm, kubernetes, docker), glog
and torch's C++ log (`I0102 03:04:05.678901`, no year), syslog and journalctl (`Jan  2 03:04:05`,
no year). A stamp without a zone is local time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise

MOST_ZONE = timedelta(hours=24)

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_FORMS = (
    re.compile(
        rf"[\[(]?(?P<y>(?:19|20)\d\d)[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ]{_CLOCK}"
        r"(?: ?(?P<z>Z|UTC|[+-]\d\d:?\d\d))?(?:[\])]|(?![\d.]))[:,]? ?"
    ),
    re.compile(rf"(?P<open>\[?)[IWEFDC](?P<mo>\d\d)(?P<d>\d\d) {_CLOCK} ?"),
    re.compile(
        rf"\[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?P<mon>{_MONTHS}) +(?P<d>\d\d?) {_CLOCK}"
        r"(?: (?P<y>(?:19|20)\d\d))?(?:\] ?| |(?=\[))"
    ),
)
_ABBREVIATED = _MONTHS.split("|")
MOST_PREFIXES = 8
LINE_LIMIT = 4096
MOST_SAMPLED = 2000
LEAST_SAMPLED = 4
NUMBERED_SHARE = 0.75
"""Share of lines with a leading number from which that is a task's: srun -l and Hydra label every
line, but a numbered list (`1: …`) is only a part of a text."""

_RANK = re.compile(r"\[rank:? ?(\d{1,7})\]:? ?|rank ?(\d{1,7}): ", re.IGNORECASE)
_MPI = re.compile(r"\[(?:[\w.@-]{0,200}[,@])?(\d{1,7})(?:,\d{1,7})?\]<std(?:out|err|diag)>: ?")
_LOCAL = re.compile(r"\[[A-Za-z_][\w-]{0,40}?(\d{1,5})\]: ?")
_NOBODYS = re.compile(
    r"\[pod/[^\]\s]{1,300}\] ?"
    r"|std(?:out|err) [FP] |std(?:out|err): "
    r"|[A-Za-z][\w.-]{0,80}-\d{1,5} {1,80}\| "
    r"|\((?:[A-Za-z_][^()]{0,80} )?pid=\d{1,10}(?:, ip=[\w.:]{1,60})?\) ?"
    r'| {0,16}"message": "(?=[A-Za-z_][\w.]{2,80}(?:Error|Exception): )'
)
_QUOTE = re.compile(r">(?: |$|(?=> ))")
"""The mark of a quoted text in a mail or an issue."""
_SYSLOG = re.compile(r"[\w.-]{1,64} (?:kernel|[\w.@/-]{1,80}\[\d{1,10}\]): ")
_SRUN = re.compile(r" {0,6}(\d{1,6}): ?")
_HYDRA = re.compile(r"\[(\d{1,6})\] ")
_MAYBE = re.compile(
    r"[\[( 0-9>\"]|[Rr]ank|RANK|std|[IWEFDC]\d|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) "
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) |[A-Za-z][\w.-]{0,80}-\d{1,5} {1,80}\| "
)
"""Matches the beginning of all prefixes: one search instead of ten for lines without any."""
_INNER = re.compile(r"\[(?:[^\[\]]{0,120} )?[Rr]ank:? ?(\d{1,7})\]")
"""The rank as loggers write it: NCCL's watchdog, DeepSpeed, Lightning."""

NUMBERED = {"srun": _SRUN, "hydra": _HYDRA}


def take_stamp(text: str, year: int | None = None) -> tuple[float | None, int | None, str] | None:
    """The stamp that `text` begins with: seconds, its own year, and the text after it.

    Seconds are None if the year is unknown or the date invalid. None if the text does not begin
    with a stamp. A bracket that a C++ log opens before its stamp stays open:
    `[E0102 03:04:05 x.cpp:1] text` becomes `x.cpp:1] text`.
    """
    for form in _FORMS:
        if found := form.match(text):
            own = int(found["y"]) if found.groupdict().get("y") else None
            return _seconds(found.groupdict(), own or year), own, text[found.end() :]
    return None


def _seconds(parts: dict[str, str | None], year: int | None) -> float | None:
    if year is None:
        return None
    month = parts.get("mo") or str(_ABBREVIATED.index(parts["mon"] or "") + 1)
    day, hour, minute, second = (int(parts[name] or 0) for name in ("d", "h", "m", "s"))
    fraction = float(f"0.{parts['f']}") if parts.get("f") else 0.0
    try:
        zone = _zone(parts.get("z"))
        moment = datetime(year, int(month), day, hour, minute, second, tzinfo=zone)
        return moment.timestamp() + fraction
    except (ValueError, OverflowError, OSError):  # the 31st of February; a year out of range
        return None


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    if text in ("Z", "UTC"):
        return timezone.utc
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    if offset >= MOST_ZONE:
        raise ValueError(f"no time zone: {text}")
    return timezone(-offset if text[0] == "-" else offset)


@dataclass(frozen=True, slots=True)
class Line:
    rank: int | None
    local_rank: int | None
    at: float | None
    """Seconds since the epoch by its own stamp."""
    year: int | None
    """The year in the stamp."""
    text: str

    @property
    def labelled(self) -> str:
        """The text with the label of its rank in torch's form."""
        if self.rank is not None:
            return f"[rank{self.rank}]: {self.text}"
        return self.text if self.local_rank is None else f"[local{self.local_rank}]: {self.text}"


def numbered_style(lines: Iterable[str]) -> str | None:
    """The key of `NUMBERED` that labels the lines of a log, by a sample; None if none does."""
    sample = [line for line in lines if line.strip()][:MOST_SAMPLED]
    if len(sample) < LEAST_SAMPLED:
        return None
    for name, form in NUMBERED.items():
        found = [match[1] for line in sample if (match := form.match(line))]
        if len(found) >= NUMBERED_SHARE * len(sample) and not _counts_up(found):
            return name
    return None


def indentation_of(lines: Iterable[str]) -> int:
    """The number of blanks or tabs with which all lines of an indented text begin."""
    blanks = (len(text) - len(text.lstrip(" \t")) for text in lines if text.strip())
    return min(blanks, default=0)


def split_line(line: str, style: str | None = None, year: int | None = None) -> Line:
    """The parts of a line. `style`: from `numbered_style`; `year`: for stamps without a year."""
    rank = local = at = own_year = None
    text = line[:LINE_LIMIT]
    for _ in range(MOST_PREFIXES):
        if not _MAYBE.match(text):
            break
        if stamp := take_stamp(text, year):
            when, own, text = stamp
            at = when if at is None else at
            own_year = own or own_year
            if found := _SYSLOG.match(text):
                text = text[found.end() :]
            continue
        if found := _RANK.match(text):
            rank = int(found[1] or found[2])
        elif found := _MPI.match(text):
            rank = _mpi_rank(found[0]) if rank is None else rank
        elif style and rank is None and (found := NUMBERED[style].match(text)):
            rank = int(found[1])
        elif local is None and rank is None and (found := _LOCAL.match(text)):
            local = int(found[1])
        elif not (found := _NOBODYS.match(text) or _QUOTE.match(text)):
            break
        text = text[found.end() :]
    if rank is None and "ank" in text and (inner := _INNER.search(text, 0, 400)):
        rank = int(inner[1])
    return Line(rank, local, at, own_year, text)


def _mpi_rank(prefix: str) -> int:
    """`[1,2]<stdout>` of Open MPI is rank 2 of job 1, `[2]<stdout>` of Horovod rank 2."""
    return int(re.split(r"[,@]", prefix.partition("]")[0].lstrip("["))[-1])


def _counts_up(numbers: list[str]) -> bool:
    """Whether these are line numbers, not tasks: each is one more than the previous."""
    values = [int(number) for number in numbers]
    return len(values) > 1 and all(b - a == 1 for a, b in pairwise(values))
