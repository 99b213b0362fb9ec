"""A charge of the console in words: the finding that it makes, or what it adds to another."""

from __future__ import annotations

import re
from dataclasses import replace

from mgpu_doctor.case.model import Case, State
from mgpu_doctor.case.signs import Sign
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds
from mgpu_doctor.rules.falls import obituary
from mgpu_doctor.rules.falls.falls import Fall
from mgpu_doctor.rules.signs.fit import GENERAL, KNOWN
from mgpu_doctor.rules.signs.judged import Charge, size_of
from mgpu_doctor.signatures.signature import Role, Signature

PARTED = "hang-collective-mismatch"
ABSENT = "tf-worker-absent"
MOST_EVIDENCE = 4
TITLE_WIDTH = 160
LEAST_TITLE, LEAST_SUMMARY = 30, 8
"""Characters before a colon that say enough: `XID 79:` does not."""
UNKNOWN = "(not told)"
_WORKER = re.compile(r"\bworker (\d+) \(", re.ASCII)
_GROUP = re.compile(r"\{([a-z_]\w*)\}")
_MILLISECONDS = re.compile(r"\b(\d{1,12}) ms\b", re.ASCII)
_SENTENCE = re.compile(r"(?<=[a-z0-9)`'\]])[.:;] ")


def finding(charge: Charge, case: Case) -> Finding:
    """The charge as a finding of its own."""
    signature, best = charge.signature, charge.signs[0]
    meaning = filled(signature.meaning, signature, best)
    symptom = charge.role is Role.SYMPTOM
    late = charge.laggards
    first = charge.explained[0] if charge.explained else None
    return Finding(
        code=charge.code,
        severity=Severity(signature.severity),
        confidence=charge.confidence,
        title=f"{_title(charge, case, meaning)}{_at(first)}",
        cause=_symptom(charge, meaning) if symptom else meaning,
        culprits=_culprits(charge, case) if not symptom else late.culprits if late else (),
        victims=_victims(charge, case),
        evidence=(
            *((late.evidence,) if late else ()),
            *evidence(charge),
            *(_calls(case) if charge.code == PARTED else ()),
            *(obituary.evidence_of(first, case) if first else ()),
        ),
        since_step=first.last_step if first else late.last if late else None,
        fixes=(fix(charge),),
        replaces=() if symptom or charge.code in GENERAL else tuple(sorted(GENERAL)),
    )


def _calls(case: Case) -> tuple[Evidence, ...]:
    """The collectives in which ranks were last, by their black boxes; the rarest first."""
    where: dict[str, list[int]] = {}
    for rank in case.ranks:
        if rank.rank is not None and rank.now is not None and rank.now.site:
            where.setdefault(rank.now.site, []).append(rank.rank)
    told = []
    for site, those in sorted(where.items(), key=lambda one: (len(one[1]), one[1])):
        call, _, place = site.partition(" ")
        who = f"{format_ranks(those)} {'was' if len(those) == 1 else 'were'} in"
        told.append(Evidence(who, call, "text", None, "black box", place or None))
    return tuple(told[:MOST_EVIDENCE])


def _symptom(charge: Charge, meaning: str) -> str:
    if charge.laggards is not None:
        return charge.laggards.cause
    said = f"What is known is only that {_lower(meaning)}"
    if not charge.silent:
        return said
    silent = format_ranks(charge.silent)
    return f"{said} Of {silent} nothing of the kind was printed: look at what it did then."


def added_to(found: Finding, charge: Charge) -> Finding:
    """Another rule's finding of the same code, with what the console says of it."""
    meaning = filled(charge.signature.meaning, charge.signature, charge.signs[0])
    known = {one.value for one in found.evidence}
    more = tuple(one for one in evidence(charge) if one.value not in known)
    return replace(
        found,
        cause=found.cause if meaning in found.cause else f"{found.cause} {meaning}",
        evidence=(*found.evidence, *more),
        fixes=(*found.fixes, fix(charge)),
    )


def evidence(charge: Charge) -> tuple[Evidence, ...]:
    """The lines themselves."""
    told = [_line(sign) for sign in (*charge.signs, *charge.beside)[:MOST_EVIDENCE]]
    return tuple(told)


def fix(charge: Charge) -> Fix:
    how = filled(charge.signature.fix, charge.signature, charge.signs[0])
    if charge.laggards is not None:
        return charge.laggards.fix
    first, rest = _divided(how, LEAST_SUMMARY)
    return Fix(charge.signature.id, first_sentence(how, LEAST_SUMMARY), rest or first)


def filled(text: str, signature: Signature, sign: Sign) -> str:
    """The signature's text with what its groups caught."""
    groups = re.compile(signature.pattern).groupindex

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return sign.values.get(name, UNKNOWN) if name in groups else found[0]

    return _MILLISECONDS.sub(_long, _GROUP.sub(value, text))


def _long(found: re.Match[str]) -> str:
    milliseconds = int(found[1])
    return found[0] if milliseconds < 1000 else format_seconds(milliseconds / 1000)


def first_sentence(text: str, least: int = LEAST_TITLE) -> str:
    """What stands before the first full stop, or colon where that is not too little. It is cut at
    a width that fits a line or two."""
    first = _divided(text, least)[0].rstrip(".")
    return first if len(first) <= TITLE_WIDTH else f"{first[: TITLE_WIDTH - 1].rstrip()}…"


def _divided(text: str, least: int) -> tuple[str, str]:
    """The first sentence and the rest; the rest is empty where there is one only."""
    for end in _SENTENCE.finditer(text):
        if end[0] != ": " or end.start() >= least:
            return text[: end.start()], text[end.end() :]
    return text, ""


def _title(charge: Charge, case: Case, meaning: str) -> str:
    said = first_sentence(meaning)
    if charge.laggards is not None:
        waited = format_ranks(charge.ranks)
        return f"{charge.laggards.names.capitalize()} stood still: {waited} waited in vain for it"
    if charge.everyone:
        return _of("Every rank", said, many=False) if size_of(case) > 1 else said
    if not charge.ranks:
        return said
    return _of(format_ranks(charge.ranks).capitalize(), said, many=len(charge.ranks) > 1)


def _of(who: str, said: str, *, many: bool) -> str:
    """What was said of `this rank` or of anything, said of `who`."""
    own = said.removeprefix("This rank ")
    if own == said:
        return f"{who}: {_lower(said)}"
    return (
        f"{who} were {own.removeprefix('was ')}" if many and own[:4] == "was " else f"{who} {own}"
    )


def _at(fall: Fall | None) -> str:
    """The line of the user's own code at which it was raised."""
    at = obituary.place(fall.error) if fall is not None and fall.error is not None else None
    return f", at {at}" if at else ""


def _culprits(charge: Charge, case: Case) -> tuple[Culprit, ...]:
    ended = obituary.culprits_of(charge.falls)
    known = {culprit.rank for culprit in ended}
    more = tuple(Culprit(rank) for rank in sorted(charge.ranks - known))
    return (*ended, *more) or _absent(charge, case)


def _absent(charge: Charge, case: Case) -> tuple[Culprit, ...]:
    """Workers that the text says never came, where these are the ranks that left no sign: with a
    chief among them their numbers would not be those of ranks."""
    named = {int(number) for number in _WORKER.findall(charge.signs[0].text)}
    missing = [rank for rank in case.ranks if rank.state is State.MISSING]
    if charge.signature.id != ABSENT or {rank.rank for rank in missing} != named:
        return ()
    return tuple(Culprit(rank.rank, rank.host) for rank in missing)


def _victims(charge: Charge, case: Case) -> tuple[int, ...]:
    if charge.role is Role.SYMPTOM:
        showed = {sign.rank for sign in (*charge.signs, *charge.beside)}
        return tuple(sorted(rank for rank in showed if rank is not None))
    if charge.everyone or not charge.ranks or charge.signature.severity != "critical":
        return ()
    return tuple(
        rank.rank for rank in case.ranks if rank.rank is not None and rank.rank not in charge.ranks
    )


def _line(sign: Sign) -> Evidence:
    who = "printed" if sign.rank is None else f"rank {sign.rank} printed"
    times = f", {sign.count} times" if sign.count > 1 else ""
    where = f"{sign.source}:{sign.number}"
    role = " (symptom)" if KNOWN[sign.signature].role is Role.SYMPTOM else ""
    return Evidence(f"{who}{times}{role}", sign.text, "text", source="console", where=where)


def _lower(text: str) -> str:
    """To go on within a sentence; names such as `NCCL` and `DataLoader` stay."""
    word = text.split(" ", 1)[0]
    return text if not word[1:].islower() and word != "A" else text[:1].lower() + text[1:]
