"""Causes and symptoms in console text: one rule for each code that a signature names.

A code that another family has, too, stays that family's rule: its finding gets the console's lines
as evidence, and where it finds nothing the console is searched instead. Adding a signature
of a known code needs no rule; one of a new code needs a line in `signs_codes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.log_match_fit import GENERIC_CODES
from mgpu_doctor.analysis.postmortem.log_verdict import (
    SYMPTOM_SHARE,
    UNCONFIRMED_SHARE,
    LogCause,
)
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.failures import log_findings
from mgpu_doctor.rules.failures.log_codes import family_of, general, summary_of
from mgpu_doctor.rules.rule import Detector, Examine, Limits, Rule
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from mgpu_doctor.signatures.signature import Role, Signature

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


def with_log_rules(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """These rules and one for each code that only signatures know. Where a rule's code is one that
    signatures know, too, the console is its fallback."""
    codes = _by_code(SIGNATURES)
    taken = {rule.code for rule in rules}
    own = [_log_rule(code, codes[code]) for code in sorted(codes.keys() - taken)]
    shared = [
        replace(rule, alternatives=(*rule.alternatives, _fallback(rule.code, codes[rule.code])))
        if rule.code in codes
        else rule
        for rule in rules
    ]
    return (*shared, *own)


def _by_code(signatures: Iterable[Signature]) -> dict[str, tuple[Signature, ...]]:
    codes: dict[str, list[Signature]] = {}
    for signature in signatures:
        codes.setdefault(signature.code, []).append(signature)
    return {
        code: tuple(sorted(found, key=lambda signature: -signature.weight))
        for code, found in codes.items()
    }


def _log_rule(code: str, signatures: Sequence[Signature]) -> Rule:
    fixes = dict.fromkeys(general(signature.fix) for signature in signatures)
    return Rule(
        code=code,
        family=family_of(code),
        summary=summary_of(code, signatures),
        measured=_HOW + _texts(signatures),
        thresholds=_THRESHOLDS,
        fixes=" ".join(list(fixes)[:MOST_FIXES]),
        examine=_examine(code),
        replaces=tuple(sorted(GENERIC_CODES - {code})),
    )


def _fallback(code: str, signatures: Sequence[Signature]) -> Detector:
    return Detector(_examine(code), _ALSO + _texts(signatures), fallback=True)


def _examine(code: str) -> Examine:
    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        cause = _cause_of(measures, code)
        if cause is not None:
            yield log_findings.make_finding(cause, measures.case)

    return examine


def combine_with_log(code: str, findings: list[Finding], measures: Measures) -> list[Finding]:
    """What a rule found, with what the console says about it, or about why it is not the whole
    story."""
    if not findings:
        return findings
    causes = measures.postmortem.log
    own = next((cause for cause in causes if cause.code == code), None)
    if own is not None:
        first = findings[0]
        return [
            log_findings.add_log_evidence(first, own) if _same_ranks(first, own) else first,
            *findings[1:],
        ]
    grave = next((cause for cause in causes if cause.signature.severity == "critical"), None)
    if grave is None:
        return findings
    if code in GENERIC_CODES:
        ended = {failure.rank for failure in grave.explained}
        accused = [{culprit.rank for culprit in finding.culprits} for finding in findings]
        # Without a culprit it says that nobody shows why, which is not true then.
        pairs = zip(findings, accused, strict=True)
        return [finding for finding, ranks in pairs if ranks and not ranks <= ended]
    return [
        replace(finding, replaces=(*finding.replaces, grave.code))
        if finding.severity is Severity.CRITICAL
        else finding
        for finding in findings
    ]


def _same_ranks(found: Finding, cause: LogCause) -> bool:
    accused = {culprit.rank for culprit in found.culprits}
    return not accused or not cause.ranks or bool(accused & cause.ranks)


def _cause_of(measures: Measures, code: str) -> LogCause | None:
    return next((cause for cause in measures.postmortem.log if cause.code == code), None)


def _texts(signatures: Sequence[Signature]) -> str:
    texts = dict.fromkeys(
        f"`{signature.needle.strip()}`{' (symptom)' if signature.role is Role.SYMPTOM else ''}"
        for signature in signatures
    )
    more = len(texts) - MOST_TEXTS
    return f"{', '.join(list(texts)[:MOST_TEXTS])}{f' and {more} more' if more > 0 else ''}."
