"""Causes and symptoms in console text: one rule for each code that a signature names.

A code that another family has, too, stays that family's rule: its finding gets the console's lines
as evidence, and where it finds nothing the console speaks for it (`with_signs`). Adding a signature
of a known code needs no rule; one of a new code needs a line in `signs_codes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.log_match_fit import GENERIC_CODES, KNOWN
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.failures import log_findings
from mgpu_doctor.rules.failures.log_codes import family_of, general, summary_of
from mgpu_doctor.rules.failures.log_verdict import (
    SYMPTOM_SHARE,
    UNCONFIRMED_SHARE,
    LogCause,
    judge_log,
)
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from mgpu_doctor.signatures.signature import Role, Signature

Way = Callable[[Measures, Limits], Iterable[Finding]]
MOST_TEXTS = 12
MOST_FIXES = 3
_HOW = (
    "Lines of the console (a log, standard input, a recording's capture) are searched for the "
    "texts of known failures. The cause that was printed first counts if it fits the rank that "
    "failed first; a symptom only where no cause is known. What was caught and tried again, or "
    "after which training went on, counts for nothing. "
)
_ALSO = "The console is searched, too: "
_THRESHOLDS = (
    "Confidence by text: how surely the line means just this; "
    f"× {UNCONFIRMED_SHARE:g} where it is not part of the failed rank's own exception, "
    f"× {SYMPTOM_SHARE:g} for a symptom, unless the black boxes tell for whom the others waited."
)


def with_signs(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """These rules and one for each code that signatures alone know."""
    codes = _by_code(SIGNATURES)
    taken = {rule.code for rule in rules}
    own = [_own(code, codes[code]) for code in sorted(codes.keys() - taken)]
    return (*(_widened(rule, codes.get(rule.code, ())) for rule in rules), *own)


def _by_code(signatures: Iterable[Signature]) -> dict[str, tuple[Signature, ...]]:
    codes: dict[str, list[Signature]] = {}
    for signature in signatures:
        codes.setdefault(signature.code, []).append(signature)
    return {
        code: tuple(sorted(found, key=lambda signature: -signature.weight))
        for code, found in codes.items()
    }


def _own(code: str, signatures: Sequence[Signature]) -> Rule:
    fixes = dict.fromkeys(general(signature.fix) for signature in signatures)

    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        cause = _cause_of(measures, code)
        if cause is not None:
            yield log_findings.make_finding(cause, measures.case)

    return Rule(
        code=code,
        family=family_of(code),
        summary=summary_of(code, signatures),
        measured=_HOW + _texts(signatures),
        thresholds=_THRESHOLDS,
        fixes=" ".join(list(fixes)[:MOST_FIXES]),
        examine=examine,
        replaces=tuple(sorted(GENERIC_CODES - {code})),
    )


def _widened(rule: Rule, signatures: Sequence[Signature]) -> Rule:
    """The rule, whose findings the console adds to and for which it speaks if need be."""
    ways = tuple(_beside_signs(rule.code, way) for way in rule.also)
    examine = _beside_signs(rule.code, rule.examine)
    if not signatures:
        return replace(rule, examine=examine, also=ways)

    def alone(measures: Measures, limits: Limits) -> Iterable[Finding]:
        cause = _cause_of(measures, rule.code)
        if cause is None:
            return
        there = all(getattr(measures, need, None) is not None for need in rule.needs)
        others = (rule.examine, *rule.also) if there else rule.also
        if not any(True for way in others for _ in way(measures, limits)):
            yield log_findings.make_finding(cause, measures.case)

    return replace(
        rule,
        measured=f"{rule.measured} {_ALSO}{_texts(signatures)}",
        examine=examine,
        also=(*ways, alone),
    )


def _beside_signs(code: str, way: Way) -> Way:
    def examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
        found = way(measures, limits)
        return _with_charges(code, found, measures) if measures.case.signs else found

    return examine


def _with_charges(code: str, found: Iterable[Finding], measures: Measures) -> Iterable[Finding]:
    """What a rule found, with what the console says of it, or of why it is not the whole story."""
    findings = list(found)
    if not findings:
        return ()
    causes = judge_log(measures)
    own = next((cause for cause in causes if cause.code == code), None)
    if own is not None:
        first = findings[0]
        return [
            log_findings.add_log_evidence(first, own) if _same_ranks(first, own) else first,
            *findings[1:],
        ]
    grave = next((c for c in causes if c.signature.severity == "critical"), None)
    if grave is None:
        return findings
    if code in GENERIC_CODES:
        ended = {failure.rank for failure in grave.explained}
        accused = [{culprit.rank for culprit in one.culprits} for one in findings]
        # Without a culprit it says that nobody shows why, which is not true then.
        pairs = zip(findings, accused, strict=True)
        return [one for one, ranks in pairs if ranks and not ranks <= ended]
    return [
        replace(one, replaces=(*one.replaces, grave.code))
        if one.severity is Severity.CRITICAL
        else one
        for one in findings
    ]


def _same_ranks(found: Finding, cause: LogCause) -> bool:
    accused = {culprit.rank for culprit in found.culprits}
    return not accused or not cause.ranks or bool(accused & cause.ranks)


def _cause_of(measures: Measures, code: str) -> LogCause | None:
    signs = measures.case.signs
    if not any(KNOWN[sign.signature].code == code for sign in signs if sign.signature in KNOWN):
        return None
    return next((cause for cause in judge_log(measures) if cause.code == code), None)


def _texts(signatures: Sequence[Signature]) -> str:
    texts = dict.fromkeys(
        f"`{one.needle.strip()}`{' (symptom)' if one.role is Role.SYMPTOM else ''}"
        for one in signatures
    )
    more = len(texts) - MOST_TEXTS
    return f"{', '.join(list(texts)[:MOST_TEXTS])}{f' and {more} more' if more > 0 else ''}."
