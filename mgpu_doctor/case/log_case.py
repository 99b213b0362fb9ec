"""Converts console logs to a Case: signs, endings and ranks, as far as text shows them."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path

from mgpu_probes.outside.logs.log_files import STDIN, NoText, UnreadableLog, open_log
from mgpu_probes.outside.logs.log_scanner import Engine
from mgpu_probes.outside.logs.scanned_logs import Hit, Scanned
from mgpu_probes.outside.untrusted_files import within_budget

from mgpu_doctor.case.last_exceptions import find_last_exceptions
from mgpu_doctor.case.log_ends import endings_of, with_joined_messages
from mgpu_doctor.case.log_job import FACTS, Fact, job_of_logs, ranks_of_logs, world_size_of
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.log_sources import (
    LabelledLog,
    find_mixed_folders,
    log_files,
    ranks_seen,
    with_ranks,
)
from mgpu_doctor.case.model import Case, Console, LoggedEnd, Subject, Unexamined
from mgpu_doctor.case.worded_errors import find_worded_errors
from mgpu_doctor.signatures.error_endings import ENDINGS
from mgpu_doctor.signatures.error_topics import ENDING, TOPICS, WORDED_CAUSES
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from mgpu_doctor.signatures.signature import Role

MOST_TAIL = 400
LEAST_TAIL = 5
FRESH = 60.0
"""A log written within this many seconds may have running ranks."""
MOST_UNREADABLE = 8
"""Most unreadable logs that are reported one by one."""


MOST_NAMED = 3
"""Folders that a message names."""


class NotALog(ValueError):  # noqa: N818 - like `NotARecording`
    """No log could be read. Its text is one sentence that says what to do."""


def load_logs(subjects: Sequence[str]) -> Case:
    """A case from the console logs of one job.

    `subjects`: files (plain, gzip, bzip2, xz), folders of them, or `-` for standard input. A
    growing log is read up to its current end. What cannot be read is listed under `unexamined`.
    Raises NotALog if nothing can be read.
    """
    with within_budget():
        paths = log_files(subjects)
        if mixed := find_mixed_folders(paths):
            raise NotALog(_ask_for_one_job(subjects, len(paths), mixed))
        found = _read(paths)
    if not found.scanned:
        raise NotALog(_why_not(subjects, found.unexamined))
    return _case(subjects, found)


def signs_of(
    streams: Mapping[str, Iterable[str]], ends: Sequence[LoggedEnd] | None = None
) -> tuple[LogMatch, ...]:
    """The signs in lines that were read already, by stream. `rank` is None where no line says.

    `ends`: of a job that failed, how its processes ended; if no known message says why, the words
    of its last errors count, as in a log. None: the job did not fail, or not yet."""
    logs = [
        LabelledLog(_engine().scan(name, ("\n".join(lines).encode("utf-8", "replace"),)))
        for name, lines in streams.items()
    ]
    signs = _signs(logs)
    if ends is None:
        return signs
    caught = endings_of(logs, max(len(ranks_seen(logs)), 1)).caught
    worded = _worded_signs(signs, logs, ends, caught)
    return (*signs, *(sign for sign in worded if sign.signature not in _HOW_ENDED))


@cache
def _engine() -> Engine:
    """One for all logs: it remembers what it has seen, and compiling it costs milliseconds."""
    return Engine((*SIGNATURES, *FACTS, *_OVERCOMING))


_OVERCOMING = tuple(
    Fact(f"overcome: {text}", text, re.escape(text))
    for text in sorted({text for signature in SIGNATURES for text in signature.overcome_by})
)
_GRAVE = {signature.id for signature in SIGNATURES if signature.severity == "critical"}
_CODES = {signature.id: signature.code for signature in (*SIGNATURES, *TOPICS, *ENDINGS)}
_ENDINGS = frozenset({"failed-exception", "failed-killed", "failed-signal"})
"""Codes of messages which may only say that a process ended."""
_TELLING = {
    signature.id
    for signature in SIGNATURES
    if signature.severity == "critical"
    and not signature.wrapper
    and not (signature.role is Role.SYMPTOM and signature.code in _ENDINGS)
}
"""Signatures that say why a job failed, or what its ranks waited for."""
_SYMPTOMS = frozenset(signature.id for signature in SIGNATURES if signature.role is Role.SYMPTOM)
_HOW_ENDED = frozenset(
    signature.id for signature in (*TOPICS, *ENDINGS) if signature.weight <= ENDING
)
"""Words that say only how a process ended: a recording has its exit code and signal."""
_OVERCOME_BY = {
    signature.id: {f"overcome: {text}" for text in signature.overcome_by}
    for signature in SIGNATURES
    if signature.overcome_by
}
"""Signature -> the facts which show that the job got over it."""


@dataclass(slots=True)
class _LogSources:
    """The readable logs, and reports about the others. `fresh`: one was written to just now."""

    scanned: list[Scanned] = field(default_factory=list)
    unexamined: list[Unexamined] = field(default_factory=list)
    fresh: bool = False


def _read(names: Mapping[str, Path | None]) -> _LogSources:
    """`names`: with the folder that the user named where that was not the file itself."""
    found = _LogSources()
    for name, folder in names.items():
        try:
            log = open_log(name, root=folder)
            found.scanned.append(_engine().scan(log.name, log.blocks()))
        except UnreadableLog as error:
            if not (isinstance(error, NoText) and folder is not None):
                found.unexamined.append(_unread(str(error)))
            continue
        found.unexamined += [_unread(note) for note in log.notes]
        found.fresh |= log.modified is not None and time.time() - log.modified < FRESH
    if len(found.unexamined) > MOST_UNREADABLE:
        more = len(found.unexamined) - MOST_UNREADABLE
        more_unread = _unread(f"{more} more logs could not be read whole")
        found.unexamined = [*found.unexamined[:MOST_UNREADABLE], more_unread]
    return found


def _unread(reason: str) -> Unexamined:
    return Unexamined("console log", reason, "nothing: all other text was examined")


def _why_not(subjects: Sequence[str], unexamined: Sequence[Unexamined]) -> str:
    if unexamined:
        return unexamined[0].reason
    return f"{', '.join(subjects)} holds no console logs: name the logs themselves."


def _ask_for_one_job(subjects: Sequence[str], files: int, folders: Sequence[str]) -> str:
    named = ", ".join(folders[:MOST_NAMED])
    return (
        f"{', '.join(subjects)} holds {files} files that look like logs, in {len(folders)} unlike "
        f"folders such as {named}: they are hardly of one job. Name the logs or the folder of one."
    )


def _case(subjects: Sequence[str], found: _LogSources) -> Case:
    scanned = found.scanned
    world_size = world_size_of(hit for one in scanned for hit in one.hits)
    logs = with_ranks(scanned, world_size)
    signs = _signs(logs)
    seen = ranks_seen(logs)
    endings = endings_of(logs, max(world_size or 0, len(seen), 1))
    signs = tuple(sign for sign in signs if not _was_caught(sign, endings.caught))
    endings.ends = with_joined_messages(endings.ends, signs)
    if not endings.ends and not any(sign.signature in _GRAVE for sign in signs):
        endings.ends = find_last_exceptions(logs, endings.caught)
    signs = (*signs, *_worded_signs(signs, logs, endings.ends, endings.caught))
    job = job_of_logs(scanned, endings.ends, endings.asked, world_size)
    return Case(
        subject=Subject("log", _reference(subjects)),
        job=job,
        observed=job.ended or time.time(),
        ranks=ranks_of_logs(
            seen, endings.ends, endings.hosts, job, alive=found.fresh and not signs
        ),
        console=Console(_tail(scanned), tuple(endings.ends)),
        signs=signs,
        unexamined=tuple(found.unexamined),
    )


def _signs(logs: Sequence[LabelledLog]) -> tuple[LogMatch, ...]:
    known = {signature.id for signature in SIGNATURES}
    found = [
        _sign(hit, log)
        for log in logs
        for hit in sorted(log.scanned.hits, key=lambda hit: hit.number)
        if hit.signature in known and not _was_overcome(hit, log.scanned.hits)
    ]
    if all(sign.at is not None for sign in found):
        found.sort(key=lambda sign: sign.at or 0.0)  # stable: within a log, the order of its lines
    return tuple(found)


def _worded_signs(
    known: Sequence[LogMatch],
    logs: Sequence[LabelledLog],
    ends: Sequence[LoggedEnd],
    caught: Collection[tuple[str, int]],
) -> Iterator[LogMatch]:
    """The errors without a known message, if no known one says why the job failed: those that say
    more than the known endings. If ranks only report what they waited for, exceptions count."""
    telling = {sign.signature for sign in known} & _TELLING
    if telling - _SYMPTOMS:
        return
    texts = {sign.text for sign in known}
    codes = {_CODES[sign.signature] for sign in known}
    has_ended = any(sign.signature in _GRAVE for sign in known)
    for sign in find_worded_errors(logs, ends, caught, exceptions_only=bool(telling)):
        is_known = sign.text in texts or _CODES[sign.signature] in codes
        if telling and sign.signature not in WORDED_CAUSES:
            continue
        if not is_known and (sign.signature in WORDED_CAUSES or not has_ended):
            yield sign


def _was_overcome(hit: Hit, hits: Iterable[Hit]) -> bool:
    """Whether the same log later shows that the job got over it."""
    by = _OVERCOME_BY.get(hit.signature)
    return by is not None and any(
        other.signature in by and other.number > hit.number for other in hits
    )


def _was_caught(sign: LogMatch, caught: Container[tuple[str, int]]) -> bool:
    return sign.count == 1 and (sign.source, sign.number) in caught


def _sign(hit: Hit, log: LabelledLog) -> LogMatch:
    return LogMatch(
        signature=hit.signature,
        rank=log.of(hit.rank, hit.local_rank),
        source=log.scanned.source,
        number=hit.number,
        text=hit.text,
        at=hit.at,
        values=hit.values,
        count=hit.count,
        context=hit.context,
        after=hit.after,
        later=hit.later,
        form=hit.form,
    )


def _tail(scanned: Sequence[Scanned]) -> tuple[str, ...]:
    each = max(LEAST_TAIL, MOST_TAIL // len(scanned))
    return tuple(chain.from_iterable(one.tail[-each:] for one in scanned))[-MOST_TAIL:]


def _reference(subjects: Sequence[str]) -> str:
    first = "standard input" if subjects[0] == STDIN else subjects[0]
    more = len(subjects) - 1
    return f"{first} and {more} more" if more else first
