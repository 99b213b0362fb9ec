"""A line of a log, taken apart: whose it is, when it was written, and what it says.

Before the text may stand, in any order and several of them: torch's `[rank2]:`, torchrun's
`[default2]:` and `[trainer2]:`, mpirun's `[1,2]<stderr>:`, Horovod's `[2]<stdout>:`, srun's `2: `,
Hydra's `[2] `, kubectl's `[pod/name/container]`, docker compose's `name-1  | `, the container
runtime's `stderr F `, journalctl's `host unit[pid]: `, Ray's `(name pid=1, ip=…)`, and time stamps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from mgpu_probes.outside.logs import stamps

MOST_PREFIXES = 8
LINE_LIMIT = 4096
MOST_SAMPLED = 2000
LEAST_SAMPLED = 4
NUMBERED_SHARE = 0.75
"""Share of lines that must begin with a number before it is taken for a task's: srun -l and Hydra
label every line, but a list of things (`1: …`) is only a part of a text."""

_RANK = re.compile(r"\[rank:? ?(\d{1,7})\]:? ?|rank ?(\d{1,7}): ", re.IGNORECASE)
_MPI = re.compile(r"\[(?:[\w.@-]{0,200}[,@])?(\d{1,7})(?:,\d{1,7})?\]<std(?:out|err|diag)>: ?")
_LOCAL = re.compile(r"\[[A-Za-z_][\w-]{0,40}?(\d{1,5})\]: ?")
_NOBODYS = re.compile(
    r"\[pod/[^\]\s]{1,300}\] ?"
    r"|std(?:out|err) [FP] "
    r"|[A-Za-z][\w.-]{0,80}-\d{1,5} {1,80}\| "
    r"|\([A-Za-z_][^()]{0,80} pid=\d{1,10}(?:, ip=[\w.:]{1,60})?\) ?"
)
_SYSLOG = re.compile(r"[\w.-]{1,64} (?:kernel|[\w.@/-]{1,80}\[\d{1,10}\]): ")
_SRUN = re.compile(r" {0,6}(\d{1,6}): ?")
_HYDRA = re.compile(r"\[(\d{1,6})\] ")
_MAYBE = re.compile(
    r"[\[( 0-9]|[Rr]ank|RANK|std|[IWEFDC]\d|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) "
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) |[A-Za-z][\w.-]{0,80}-\d{1,5} {1,80}\| "
)
"""How all of these begin: one look instead of ten at the many lines that have nothing of it."""
_INNER = re.compile(r"\[(?:[^\[\]]{0,120} )?[Rr]ank:? ?(\d{1,7})\]")
"""How loggers name the rank that writes: NCCL's watchdog, DeepSpeed, Lightning."""

NUMBERED = {"srun": _SRUN, "hydra": _HYDRA}


@dataclass(frozen=True, slots=True)
class Line:
    rank: int | None
    local_rank: int | None
    at: float | None
    """Seconds since the epoch by its own stamp."""
    year: int | None
    """That the stamp names."""
    text: str


def numbered_style(lines: Iterable[str]) -> str | None:
    """Which of `NUMBERED` stands before the lines of a log, by a sample of it."""
    sample = [line for line in lines if line.strip()][:MOST_SAMPLED]
    if len(sample) < LEAST_SAMPLED:
        return None
    for name, form in NUMBERED.items():
        found = [match[1] for line in sample if (match := form.match(line))]
        if len(found) >= NUMBERED_SHARE * len(sample) and not _counts_up(found):
            return name
    return None


def split(line: str, style: str | None = None, year: int | None = None) -> Line:
    """Takes a line apart. `style`: by `numbered_style`; `year`: for stamps that have none."""
    rank = local = at = own_year = None
    text = line[:LINE_LIMIT]
    for _ in range(MOST_PREFIXES):
        if not _MAYBE.match(text):
            break
        if stamp := stamps.take(text, year):
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
        elif not (found := _NOBODYS.match(text)):
            break
        text = text[found.end() :]
    if rank is None and "ank" in text and (inner := _INNER.search(text, 0, 400)):
        rank = int(inner[1])
    return Line(rank, local, at, own_year, text)


def _mpi_rank(prefix: str) -> int:
    """`[1,2]<stdout>` of Open MPI is rank 2 of job 1, `[2]<stdout>` of Horovod rank 2."""
    return int(re.split(r"[,@]", prefix.partition("]")[0].lstrip("["))[-1])


def _counts_up(numbers: list[str]) -> bool:
    """Line numbers, not tasks: each is one more than the last."""
    values = [int(number) for number in numbers]
    return len(values) > 1 and all(b - a == 1 for a, b in pairwise(values))
