"""Causes and symptoms in console text: one rule for each code that a signature names.

A rule of another family whose code has signatures, too, has a `log_detector` as an alternative:
its finding gets the console's lines as evidence, and if it finds nothing, the console is searched
instead. Adding a signature of a known code needs no rule; one of a new code needs a line in
`log_codes`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.log_verdict import (
    GENERIC_CODES,
    SYMPTOM_SHARE,
    UNCONFIRMED_SHARE,
    LogCause,
)
from mgpu_doctor.findings import Finding
from mgpu_doctor.rules.failures import log_findings
from mgpu_doctor.rules.failures.log_codes import GROUP, family_of, general, summary_of
from mgpu_doctor.rules.gpu.xid_evidence import XIDS_OF_ENDS
from mgpu_doctor.rules.rule import Add, Addition, Detector, Examine, Limits, Rule
from mgpu_doctor.signatures.error_endings import WAITING
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from mgpu_doctor.signatures.signature import Role, Signature

MOST_TEXTS = 12
MOST_FIXES = 3
_SENTENCES = re.compile(r"(?<=\.) (?=[A-Z`])")
_HOW = (
    "Lines of the console (a log, standard input, a recording's capture) are searched for the "
    "texts of known failures. The cause that was printed first counts if it matches the rank that "
    "failed first; a symptom counts only if no cause is known. Errors that were caught and "
    "retried, or after which training continued, do not count. If a log holds none of these texts, "
    "the words of its last errors count, at a confidence of at most 0.5. Texts: "
)
_ALSO = "The console is searched, too: "
_THRESHOLDS = (
    f"The confidence depends on how specific the line is; × {UNCONFIRMED_SHARE:g} if it is not "
    f"part of the failed rank's own exception, × {SYMPTOM_SHARE:g} for a symptom, unless the black "
    "boxes show which rank others waited for."
)


def log_detector(code: str) -> Detector:
    """Searches the console for a finding that other detectors did not find, and adds what the
    console says to what they found."""
    return Detector(
        _detect(code), _ALSO + _texts(_SIGNATURES_OF[code]), fallback=True, add=_add(code)
    )


def make_log_rules(codes: Collection[str]) -> tuple[Rule, ...]:
    """One rule for each code that only signatures know. `codes`: those that have a rule."""
    return tuple(_log_rule(code) for code in sorted(_SIGNATURES_OF.keys() - codes))


def _log_rule(code: str) -> Rule:
    signatures, family = _SIGNATURES_OF[code], family_of(code)
    return Rule(
        code=code,
        family=family,
        summary=summary_of(code, signatures),
        measured=_HOW + _texts(signatures),
        thresholds=_THRESHOLDS,
        fixes=_fixes(signatures),
        examine=_detect(code),
        alternatives=(XIDS_OF_ENDS,) if family == "failed" else (),
        replaces=tuple(sorted(GENERIC_CODES - {code})),
    )


def _fixes(signatures: Sequence[Signature]) -> str:
    """What the most specific signatures advise. Fixes that name a value of the message are left out
    if there are others; no sentence is repeated."""
    complete = [signature.fix for signature in signatures if not GROUP.search(signature.fix)]
    fixes = complete or [general(signature.fix) for signature in signatures]
    chosen = list(dict.fromkeys(fixes))[:MOST_FIXES]
    return " ".join(dict.fromkeys(part for fix in chosen for part in _SENTENCES.split(fix)))


def _detect(code: str) -> Examine:
    def detect(measures: Measures, _: Limits) -> Iterable[Finding]:
        cause = measures.postmortem.log_cause(code)
        if cause is not None:
            yield log_findings.make_finding(cause, measures.case)

    return detect


def _add(code: str) -> Add:
    def add(finding: Finding, measures: Measures) -> Addition | None:
        cause = measures.postmortem.log_cause(code)
        if cause is None or not _same_ranks(finding, cause):
            return None
        return log_findings.make_addition(finding, cause)

    return add


def _same_ranks(finding: Finding, cause: LogCause) -> bool:
    accused = {culprit.rank for culprit in finding.culprits}
    return not accused or not cause.ranks or bool(accused & cause.ranks)


def _texts(signatures: Sequence[Signature]) -> str:
    texts = dict.fromkeys(
        f"`{signature.needle.strip()}`{' (symptom)' if signature.role is Role.SYMPTOM else ''}"
        for signature in signatures
    )
    more = len(texts) - MOST_TEXTS
    return f"{', '.join(list(texts)[:MOST_TEXTS])}{f' and {more} more' if more > 0 else ''}."


def _group_by_code(signatures: Iterable[Signature]) -> dict[str, tuple[Signature, ...]]:
    """Code -> its signatures, the most specific first."""
    codes: dict[str, list[Signature]] = {}
    for signature in signatures:
        codes.setdefault(signature.code, []).append(signature)
    return {
        code: tuple(sorted(same, key=lambda signature: -signature.weight))
        for code, same in codes.items()
    }


_SIGNATURES_OF = _group_by_code((*SIGNATURES, WAITING))
