"""Findings about a cause that the console shows, and additions to other findings."""

from __future__ import annotations

import re

from mgpu_probes.outside.logs.scanned_logs import Form

from mgpu_doctor.analysis.postmortem.log_verdict import (
    GENERIC_CODES,
    KNOWN,
    LaggingRanks,
    LogCause,
    size_of,
)
from mgpu_doctor.analysis.postmortem.rank_failures import RankFailure
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.model import Case, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_codes import GROUP, general, summary_of
from mgpu_doctor.rules.rule import Addition
from mgpu_doctor.signatures.signature import Role, Signature

MISMATCH = "hang-collective-mismatch"
WORKER_ABSENT = "tf-worker-absent"
MOST_EVIDENCE = 4
TITLE_WIDTH = 160
LEAST_TITLE, LEAST_SUMMARY = 30, 8
"""Minimum of characters before a colon that make a title: `XID 79:` is too short."""
UNKNOWN = "(unknown)"
_WORKER = re.compile(r"\bworker (\d+) \(", re.ASCII)
_MILLISECONDS = re.compile(r"\b(\d{1,12}) ms\b", re.ASCII)
_SENTENCE = re.compile(r"(?<=[a-z0-9)`'\]])[.:;] ")


def make_finding(cause: LogCause, case: Case) -> Finding:
    """The cause as a finding of its own."""
    signature, best = cause.signature, cause.signs[0]
    meaning = fill_groups(signature.meaning, signature, best)
    symptom = cause.role is Role.SYMPTOM
    late = cause.lagging_ranks
    first = cause.explained[0] if cause.explained else None
    return Finding(
        code=cause.code,
        severity=Severity(signature.severity),
        confidence=cause.confidence,
        title=f"{_title(cause, case, meaning)}{_at(first)}",
        cause=_symptom(cause, meaning) if symptom else meaning,
        culprits=_culprits(cause, case) if not symptom else _late_culprits(late) if late else (),
        victims=_victims(cause, case),
        evidence=(
            *((_late_evidence(late),) if late else ()),
            *evidence(cause),
            *(_calls(case) if cause.code == MISMATCH else ()),
            *(failure_text.evidence_of(first, case) if first else ()),
        ),
        since_step=first.last_step if first else late.last if late else None,
        fixes=(fix(cause),),
        replaces=() if symptom or cause.code in GENERIC_CODES else tuple(sorted(GENERIC_CODES)),
        gives_way=cause.is_fatal,
    )


def _calls(case: Case) -> tuple[Evidence, ...]:
    """The collectives that ranks last entered, by their black boxes; the rarest first."""
    where: dict[str, list[int]] = {}
    for rank in case.ranks:
        if rank.rank is not None and rank.now is not None and rank.now.site:
            where.setdefault(rank.now.site, []).append(rank.rank)
    rows = []
    for site, those in sorted(where.items(), key=lambda item: (len(item[1]), item[1])):
        call, _, place = site.partition(" ")
        who = f"{format_ranks(those)} {'was' if len(those) == 1 else 'were'} in"
        rows.append(Evidence(who, call, "text", None, "black box", place or None))
    return tuple(rows[:MOST_EVIDENCE])


def _symptom(cause: LogCause, meaning: str) -> str:
    if cause.lagging_ranks is not None:
        return _late_cause(cause.lagging_ranks)
    known = f"It is known only that {_lower(meaning)}"
    if not cause.silent:
        return known
    silent = format_ranks(cause.silent)
    return f"{known} {silent.capitalize()} printed no such error: check what it was doing then."


def _names(late: LaggingRanks) -> str:
    return format_ranks(rank.rank for rank in late.ranks if rank.rank is not None)


def _late_culprits(late: LaggingRanks) -> tuple[Culprit, ...]:
    return tuple(Culprit(rank.rank, rank.host, rank.device, rank.pid) for rank in late.ranks)


def _late_cause(late: LaggingRanks) -> str:
    each = "it" if len(late.ranks) == 1 else "they"
    return (
        f"All ranks but {_names(late)} timed out in a collective. {_names(late).capitalize()} had "
        f"finished step {late.last}, the others step {late.others}: {each} never reached that "
        f"collective. It is unknown what {each} did instead."
    )


def _late_evidence(late: LaggingRanks) -> Evidence:
    return Evidence(
        "last finished step, against those that timed out",
        late.last,
        "steps",
        late.others,
        source="black boxes",
        where=_names(late),
    )


def _late_fix(late: LaggingRanks) -> Fix:
    return Fix(
        "look-while-it-stands",
        f"Find out where {_names(late)} was blocked after step {late.last}",
        "`mgpu-doctor diagnose PID` shows it while the job hangs. Set a longer timeout: "
        "`init_process_group(..., timeout=timedelta(minutes=60))`; `mgpu-doctor run` keeps the "
        "stacks of a job that hangs.",
    )


def make_addition(finding: Finding, cause: LogCause) -> Addition | None:
    """What the console adds to a finding of the same code; None if it adds nothing."""
    if fix(cause) in finding.fixes:
        return None
    meaning = fill_groups(cause.signature.meaning, cause.signature, cause.signs[0])
    known = {piece.value for piece in finding.evidence}
    return Addition(
        cause="" if meaning in finding.cause else meaning,
        evidence=tuple(piece for piece in evidence(cause) if piece.value not in known),
        fixes=(fix(cause),),
        gives_way=cause.is_fatal,
    )


def evidence(cause: LogCause) -> tuple[Evidence, ...]:
    """The console lines as evidence."""
    lines = [_line(sign) for sign in (*cause.signs, *cause.beside)[:MOST_EVIDENCE]]
    return tuple(lines)


def fix(cause: LogCause) -> Fix:
    how = fill_groups(cause.signature.fix, cause.signature, cause.signs[0])
    if cause.lagging_ranks is not None:
        return _late_fix(cause.lagging_ranks)
    first, rest = _divided(how, LEAST_SUMMARY)
    return Fix(cause.signature.id, first_sentence(how, LEAST_SUMMARY), rest or first)


def fill_groups(text: str, signature: Signature, sign: LogMatch) -> str:
    """The signature's text with the values that its groups captured."""
    if sign.form is Form.HEAD and GROUP.search(text):
        is_meaning = text == signature.meaning
        return summary_of(signature.code, (signature,)) if is_meaning else general(text)
    groups = re.compile(signature.pattern).groupindex

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return sign.values.get(name, UNKNOWN) if name in groups else match[0]

    return _MILLISECONDS.sub(_long, GROUP.sub(value, text))


def _long(match: re.Match[str]) -> str:
    milliseconds = int(match[1])
    return match[0] if milliseconds < 1000 else format_seconds(milliseconds / 1000)


def first_sentence(text: str, least: int = LEAST_TITLE) -> str:
    """The text before the first full stop, or before a colon if that is long enough, cut to a width
    of one or two lines."""
    first = _divided(text, least)[0].rstrip(".")
    return first if len(first) <= TITLE_WIDTH else f"{first[: TITLE_WIDTH - 1].rstrip()}…"


def _divided(text: str, least: int) -> tuple[str, str]:
    """The first sentence and the rest, which is empty if there is only one."""
    for end in _SENTENCE.finditer(text):
        if end[0] != ": " or end.start() >= least:
            return text[: end.start()], text[end.end() :]
    return text, ""


def _title(cause: LogCause, case: Case, meaning: str) -> str:
    sentence = first_sentence(meaning)
    if cause.lagging_ranks is not None:
        waited = format_ranks(cause.ranks)
        return f"{_names(cause.lagging_ranks).capitalize()} made no progress: {waited} timed out"
    if cause.everyone:
        return _of("Every rank", sentence, many=False) if size_of(case) > 1 else sentence
    if not cause.ranks:
        return sentence
    return _of(format_ranks(cause.ranks).capitalize(), sentence, many=len(cause.ranks) > 1)


def _of(who: str, sentence: str, *, many: bool) -> str:
    """The sentence with `who` as its subject instead of `This rank`."""
    own = sentence.removeprefix("This rank ")
    if own == sentence:
        return f"{who}: {_lower(sentence)}"
    return (
        f"{who} were {own.removeprefix('was ')}" if many and own[:4] == "was " else f"{who} {own}"
    )


def _at(failure: RankFailure | None) -> str:
    """`, at train.py:87`: the line of the user's code that raised it."""
    at = (
        failure_text.place(failure.error)
        if failure is not None and failure.error is not None
        else None
    )
    return f", at {at}" if at else ""


def _culprits(cause: LogCause, case: Case) -> tuple[Culprit, ...]:
    ended = failure_text.culprits_of(cause.failures)
    known = {culprit.rank for culprit in ended}
    more = tuple(Culprit(rank) for rank in sorted(cause.ranks - known))
    return (*ended, *more) or _absent(cause, case)


def _absent(cause: LogCause, case: Case) -> tuple[Culprit, ...]:
    """Workers that never connected, by the text, if these ranks left no sign. With a chief in the
    cluster, worker numbers are not rank numbers."""
    named = {int(number) for number in _WORKER.findall(cause.signs[0].text)}
    missing = [rank for rank in case.ranks if rank.state is State.MISSING]
    if cause.signature.id != WORKER_ABSENT or {rank.rank for rank in missing} != named:
        return ()
    return tuple(Culprit(rank.rank, rank.host) for rank in missing)


def _victims(cause: LogCause, case: Case) -> tuple[int, ...]:
    if cause.role is Role.SYMPTOM:
        showed = {sign.rank for sign in (*cause.signs, *cause.beside)}
        return tuple(sorted(rank for rank in showed if rank is not None))
    if cause.everyone or not cause.ranks or cause.signature.severity != "critical":
        return ()
    return tuple(
        rank.rank for rank in case.ranks if rank.rank is not None and rank.rank not in cause.ranks
    )


def _line(sign: LogMatch) -> Evidence:
    who = "printed" if sign.rank is None else f"rank {sign.rank} printed"
    times = f", {sign.count} times" if sign.count > 1 else ""
    where = f"{sign.source}:{sign.number}"
    role = " (symptom)" if KNOWN[sign.signature].role is Role.SYMPTOM else ""
    return Evidence(f"{who}{times}{role}", sign.text, "text", source="console", where=where)


def _lower(text: str) -> str:
    """The sentence with a lower-case first letter, except names such as `NCCL` and `DataLoader`."""
    word = text.split(" ", 1)[0]
    return text if not word[1:].islower() and word != "A" else text[:1].lower() + text[1:]
