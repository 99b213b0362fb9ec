"""Which signs in a job's console text show why it failed. Pure.

Of the causes the one that was printed first counts, and of those that one rank printed together the
most telling. A cause must fit who is known to have failed first. A symptom (a time-out, a broken
pipe) is given only where no cause is known. What training went on after for long, and what was
caught and tried again, ended nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from mgpu_probes.outside.logs.scanned_logs import Form

from mgpu_doctor.analysis.machines.host_devices import on_bus
from mgpu_doctor.analysis.postmortem.device_memory_message import reread
from mgpu_doctor.analysis.postmortem.rank_failures import (
    FailureKind,
    RankFailure,
)
from mgpu_doctor.analysis.postmortem.secondary_failures import reports_abort
from mgpu_doctor.case.log_matches import LogMatch, went_on
from mgpu_doctor.case.model import Case, Error, Outcome, Rank
from mgpu_doctor.signatures.error_endings import ENDINGS
from mgpu_doctor.signatures.error_topics import TOPICS
from mgpu_doctor.signatures.known_signatures import SIGNATURES
from mgpu_doctor.signatures.signature import Role, Signature

KNOWN = {signature.id: signature for signature in (*SIGNATURES, *TOPICS, *ENDINGS)}

GENERIC_CODES = frozenset({"failed-exception", "failed-killed", "failed-signal"})
"""Codes that say how a rank ended, not why: any other code that fits says it better."""
KILLING = frozenset(
    {"failed-hangup", "failed-interrupted", "failed-killed", "failed-preempted"}
    | {"failed-time-limit", "oom-host"}
)
"""Causes that end processes by a signal, so that they print nothing."""
OUTSIDE = frozenset(
    {"oom-host", "gpu-lost", "gpu-xid", "gpu-ecc", "nvlink-down", "pcie-degraded"}
    | {"failed-preempted", "failed-time-limit"}
)
"""Messages of the kernel, the driver or the scheduler, which may explain any failure."""
LEAST_SAID = 8
"""Characters of a text that is looked for in an exception: shorter ones are everywhere."""
LEAST_BROKEN = 40
"""Characters of a line from which it may go on in the next one."""
SAME_START = 12
"""Characters, of a host and a process, with which lines begin that are not one message."""
SAME_EVENT = 60
"""Lines within which a rank's signs are of one event: a traceback and what native code adds."""
BETWEEN = frozenset({"hang-collective-mismatch", "hang-rank-behind", "failed-horovod-stall"})
"""Messages of one rank about others: the rank that prints one is not the culprit."""
_TIME_OUTS = frozenset(
    signature.id
    for signature in SIGNATURES
    if signature.code == "failed-nccl-timeout" or signature.id == "gloo-timeout"
)
"""Signatures of ranks that timed out in a collective waiting for another rank."""
FEW = 0.25
"""Share of the ranks up to which those that did not time out are worth a look."""
SYMPTOM_SHARE = 0.6
"""Factor on a signature's weight: the failure is certain, its cause is not."""
UNCONFIRMED_SHARE = 0.9
STILL_MOVING_SHARE = 0.8
FORM_SHARE = {Form.LINE: 1.0, Form.JOINED: 0.95, Form.HEAD: 0.7, Form.WORDS: 1.0}
"""Factor on a signature's weight, by how its message was recognised."""
UNORDERED_SHARE = 0.7
"""Factor if several logs without timestamps show different causes: the order is unknown."""
_CAUGHT = re.compile(
    r"\b(?:retrying|will retry|retried|retry|trying again|attempt \d|skipp(?:ed|ing)|"
    r"falling back|fall back|fallback|ignor(?:ed|ing)|caught|recover(?:ed|ing)|reducing)\b",
    re.IGNORECASE,
)
_LENIENT = re.compile(
    r"do(?:es)? not match exactly|ignore_mismatched_sizes|strict=False|newly initialized"
    r"|were not (?:used|initialized) (?:when|from)|partially loaded|load(?:ed|ing)? partially",
    re.IGNORECASE,
)
"""What libraries print around the differences of a checkpoint that they load nevertheless."""
_GOES_ON = re.compile(r"[\sa-z'\"),.;:]")
_SAYS_SO_ITSELF = frozenset(
    signature.id for signature in SIGNATURES if _CAUGHT.search(signature.example)
)
"""Signatures that hold such a word anyway: `Watchdog caught collective operation timeout`."""


@dataclass(frozen=True, slots=True)
class LaggingRanks:
    """The ranks that did not time out and had finished fewer steps than all ranks that did. `last`:
    the newest step that any of them finished; `others`: the oldest last step of the ranks that
    timed out."""

    ranks: tuple[Rank, ...]
    last: int
    others: int


@dataclass(frozen=True, slots=True)
class LogCause:
    """A cause found in the console. `signs` all have one code; the most informative comes first."""

    signature: Signature
    signs: tuple[LogMatch, ...]
    confidence: float
    role: Role
    ranks: frozenset[int] = frozenset()
    """The ranks that showed it; empty: unknown."""
    everyone: bool = False
    failures: tuple[RankFailure, ...] = ()
    """The culprits that are known to have failed because of it."""
    explained: tuple[RankFailure, ...] = ()
    """Failures that it fully explains."""
    beside: tuple[LogMatch, ...] = ()
    """Other signs of the same event."""
    silent: frozenset[int] = frozenset()
    """If nearly all ranks timed out waiting: the few that did not."""
    lagging_ranks: LaggingRanks | None = None
    """The ranks that were behind when the others waited."""

    @property
    def code(self) -> str:
        """Code of the resulting finding."""
        return self.signature.code

    @property
    def is_fatal(self) -> bool:
        """Whether it ended the job, and is no mere defect beside."""
        return self.signature.severity == "critical"


def judge_log(
    case: Case, failures: tuple[RankFailure, ...], *, blames_symptoms: bool, is_flat: bool
) -> tuple[LogCause, ...]:
    """The causes of the job's end that the console shows, and the defects that it reports.

    `failures`: the first ones. `blames_symptoms`: whether a symptom counts if there is no cause.
    `is_flat`: whether ranks exchange data only in groups of all ranks."""
    if not case.signs:
        return ()
    known = (reread(sign) for sign in case.signs if sign.signature in KNOWN)
    signs = [sign for sign in known if not _past(sign, case)]
    grave = [sign for sign in signs if KNOWN[sign.signature].severity == "critical"]
    failed = bool(grave) or any(
        end.error or end.exit_code or end.signal for end in case.console.ends
    )
    beside = [
        sign
        for sign in signs
        if KNOWN[sign.signature].severity != "critical"
        and (failed or not KNOWN[sign.signature].needs_failure)
    ]
    why = _find_fatal_cause(grave, case, failures, blames_symptoms=blames_symptoms, is_flat=is_flat)
    return (*((why,) if why is not None else ()), *_defects(beside, case))


def size_of(case: Case) -> int:
    """The known number of ranks; 1 if unknown."""
    return max(case.job.world_size or 0, len(case.ranks), 1)


def _past(sign: LogMatch, case: Case) -> bool:
    """Whether it ended nothing: training continued, or the text says that it was caught."""
    if KNOWN[sign.signature].severity != "critical":
        # A defect stays one, but a loss that is a number again for longer recovered.
        return KNOWN[sign.signature].code == "loss-nan" and sign.after > sign.count
    if went_on(sign.after, size_of(case), sign.later):
        return True
    if sign.after > size_of(case) and not _ended(sign, case):
        return True
    if KNOWN[sign.signature].code == "failed-checkpoint" and _is_lenient(case):
        return True
    said = _CAUGHT.search(f"{sign.text} {_rest_of(sign)}")
    if said is None or sign.form is Form.WORDS or sign.signature in _SAYS_SO_ITSELF:
        return False
    went_on_after = bool(sign.after) or not _known_to_have_ended(case)
    return went_on_after or (said[0] != "caught" and _other_error_ended_it(sign, case))


def _other_error_ended_it(sign: LogMatch, case: Case) -> bool:
    errors = [end.error for end in case.console.ends if end.error and end.error.message]
    return bool(errors) and not any(says(error, sign) for error in errors)


def _is_lenient(case: Case) -> bool:
    """Whether a log says that a checkpoint was loaded in spite of differences, and reports no
    exception about one."""
    if _known_to_have_ended(case) or any("Error" in sign.text for sign in case.signs):
        return False
    return any(_LENIENT.search(line) for line in case.console.tail)


def _rest_of(sign: LogMatch) -> str:
    """The next line, if the message may go on there: it begins in the middle of a sentence."""
    start = sign.text[:LEAST_BROKEN]
    for line, following in pairwise(sign.context if len(start) == LEAST_BROKEN else ()):
        at = line.find(start)
        said = line[at:].rstrip() if at >= 0 else "\n"
        is_same = sign.text.startswith(said) or said.startswith(sign.text)
        is_another = following.startswith(line[: at + SAME_START])
        if is_same and not is_another and _GOES_ON.match(following):
            return following
    return ""


def _ended(sign: LogMatch, case: Case) -> bool:
    """Whether something besides the sign shows that the job failed: some lines of progress may come
    after the end of it, out of buffers."""
    return _known_to_have_ended(case) and (
        case.subject.kind != "log"
        or any(
            end.exit_code or end.signal or (end.error is not None and says(end.error, sign))
            for end in case.console.ends
        )
    )


def _known_to_have_ended(case: Case) -> bool:
    return bool(case.console.ends) or case.job.outcome is not Outcome.UNKNOWN


def _find_fatal_cause(
    grave: Sequence[LogMatch],
    case: Case,
    failures: tuple[RankFailure, ...],
    *,
    blames_symptoms: bool,
    is_flat: bool,
) -> LogCause | None:
    """What ended the job; None if the console does not say."""
    if case.job.outcome is Outcome.COMPLETED or (
        case.job.outcome is Outcome.RUNNING and not failures
    ):
        return None
    if case.job.outcome is Outcome.KILLED:
        # Who was seen to be asked to end has that as its outcome; a log alone has no other word.
        seen = case.job.asked is not None and case.subject.kind != "log"
        codes = KILLING - {"failed-killed"} if seen else KILLING
        grave = [sign for sign in grave if KNOWN[sign.signature].code in codes]
    grave = [sign for sign in grave if not _is_consequence(sign, grave, case)]
    causes = [sign for sign in grave if KNOWN[sign.signature].role is Role.CAUSE]
    fitting = [sign for sign in causes if fits(sign, failures, case)]
    specific = [sign for sign in fitting if KNOWN[sign.signature].code not in GENERIC_CODES]
    if chosen := specific or fitting:
        return _cause(chosen, failures, case)
    symptoms = [sign for sign in grave if KNOWN[sign.signature].role is Role.SYMPTOM]
    if failures:
        symptoms = _reported_by(symptoms, failures, case)
    if not symptoms or not blames_symptoms:
        return None
    return _symptom(symptoms, failures, case, is_flat=is_flat)


def _is_consequence(sign: LogMatch, grave: Iterable[LogMatch], case: Case) -> bool:
    """Whether ranks that timed out in a collective printed it because of that: torch aborts them,
    and if all of them gave up, what arrives late does not fit what is expected."""
    code = KNOWN[sign.signature].code
    if code not in ("failed-signal", "hang-collective-mismatch"):
        return False
    is_signal = code == "failed-signal"
    until = sign.number + (SAME_EVENT if is_signal else 0)  # several ranks abort one after another
    waited = {
        other.rank
        for other in grave
        if other.signature in _TIME_OUTS and other.source == sign.source and other.number < until
    }
    if is_signal:
        return bool(waited) and reports_abort(sign, KNOWN[sign.signature])
    return size_of(case) > 1 and len(waited - {None}) == size_of(case)


def _reported_by(
    symptoms: Iterable[LogMatch], failures: tuple[RankFailure, ...], case: Case
) -> list[LogMatch]:
    """The symptoms, if the first failures show nothing else: exceptions of unknown ranks that hold
    them, or in a log exit codes of processes that may have printed them."""
    in_log = case.subject.kind == "log"
    if not all(
        _only_exited(failure) if in_log and failure.error is None else _is_unlabelled(failure)
        for failure in failures
    ):
        return []
    return [
        sign
        for sign in symptoms
        if any(
            sign.rank in (None, failure.rank)
            if _only_exited(failure)
            else in_error(sign, failure) or beside(sign, failure, sign.rank)
            for failure in failures
        )
    ]


def _is_unlabelled(failure: RankFailure) -> bool:
    return failure.rank is None and failure.kind is FailureKind.EXCEPTION


def _only_exited(failure: RankFailure) -> bool:
    """Whether it is known only that the process ended itself."""
    return failure.kind is FailureKind.EXIT and failure.error is None


def _cause(fitting: Sequence[LogMatch], failures: tuple[RankFailure, ...], case: Case) -> LogCause:
    ordered = _comparable(fitting)
    first = fitting[0] if ordered else _most_telling(_first_of_each(fitting))
    together = [sign for sign in fitting if one_event(sign, first)]
    best = _most_telling(together)
    signature = KNOWN[best.signature]
    same = [sign for sign in fitting if KNOWN[sign.signature].code == signature.code]
    found = {rank for sign in same if (rank := rank_of(sign, case)) is not None}
    if not ordered and len({KNOWN[sign.signature].code for sign in fitting}) > 1:
        found = set()  # any of them may be the one
    ended = tuple(
        failure
        for failure in failures
        if failure.rank is None or not found or failure.rank in found
    )
    explained = ended
    if signature.code in BETWEEN or signature.mutual:
        ended, explained = (), failures
    found |= {failure.rank for failure in ended if failure.rank is not None}
    share = 1.0 if any(in_error(best, failure) for failure in failures) else UNCONFIRMED_SHARE
    if not ordered and len({KNOWN[sign.signature].code for sign in fitting}) > 1:
        share *= UNORDERED_SHARE
    if best.after and not any(in_error(best, failure) for failure in failures):
        share *= STILL_MOVING_SHARE
    size = size_of(case)
    return LogCause(
        signature,
        signs=_with_first(best, same),
        confidence=round(weight_of(best) * share, 3),
        role=Role.CAUSE,
        ranks=frozenset(found),
        everyone=size > 1 and len(found) > size / 2,
        failures=ended,
        explained=explained,
        beside=tuple(sign for sign in together if KNOWN[sign.signature].code != signature.code),
    )


def _symptom(
    symptoms: Sequence[LogMatch], failures: tuple[RankFailure, ...], case: Case, *, is_flat: bool
) -> LogCause:
    first = min(symptoms, key=lambda sign: KNOWN[sign.signature].wrapper)  # the first of equals
    signature = KNOWN[first.signature]
    same = [sign for sign in symptoms if sign.signature == signature.id]
    waited = frozenset(sign.rank for sign in same if sign.rank is not None)
    silent = _silent(symptoms, case) if signature.id in _TIME_OUTS else frozenset()
    # With stages or smaller groups who waits elsewhere may rightly be a step behind.
    late = _find_lagging_ranks(silent, waited, case) if is_flat else None
    return LogCause(
        signature,
        signs=tuple(same),
        confidence=round(weight_of(first) * (SYMPTOM_SHARE if late is None else 1.0), 3),
        role=Role.SYMPTOM,
        ranks=waited,
        beside=tuple(sign for sign in symptoms if sign.signature != signature.id),
        explained=failures,
        silent=silent,
        lagging_ranks=late,
    )


def _find_lagging_ranks(silent: Set[int], timed_out: Set[int], case: Case) -> LaggingRanks | None:
    """The lagging ranks; None if the steps do not show any, as in a console log alone."""
    last = {rank.rank: rank.last_step for rank in case.ranks if rank.rank is not None}
    theirs = [step for rank in silent if (step := last.get(rank)) is not None]
    others = [step for rank in timed_out if (step := last.get(rank)) is not None]
    complete = len(theirs) == len(silent) > 0 and len(others) == len(timed_out) > 0
    if not complete or max(theirs) >= min(others):
        return None
    late = tuple(rank for rank in case.ranks if rank.rank in silent)
    return LaggingRanks(late, max(theirs), min(others))


def _silent(symptoms: Sequence[LogMatch], case: Case) -> frozenset[int]:
    """The few ranks that do not complain as all others do."""
    showed = {sign.rank for sign in symptoms}
    silent = {rank.rank for rank in case.ranks if rank.rank is not None} - showed
    return frozenset(silent) if len(silent) <= FEW * size_of(case) else frozenset()


def _with_first(first: LogMatch, signs: Iterable[LogMatch]) -> tuple[LogMatch, ...]:
    return (first, *(sign for sign in signs if sign is not first))


def _defects(signs: Iterable[LogMatch], case: Case) -> Iterable[LogCause]:
    """Other defects: one cause per code."""
    codes: dict[str, list[LogMatch]] = {}
    for sign in signs:
        codes.setdefault(KNOWN[sign.signature].code, []).append(sign)
    for found in codes.values():
        best = _most_telling(found)
        signature = KNOWN[best.signature]
        yield LogCause(
            signature,
            signs=_with_first(best, found),
            confidence=round(weight_of(best), 3),
            role=signature.role,
            ranks=frozenset(rank for sign in found if (rank := _with_gpu(sign, case)) is not None),
        )


def _with_gpu(sign: LogMatch, case: Case) -> int | None:
    """The rank on the GPU that it names, else the rank that printed it."""
    return rank_of(sign, case) if "pci" in sign.values else sign.rank


def _most_telling(signs: Iterable[LogMatch]) -> LogMatch:
    """The first of equals."""

    def order(sign: LogMatch) -> tuple[bool, bool, float]:
        signature = KNOWN[sign.signature]
        return not signature.wrapper, sign.form is not Form.HEAD, signature.weight

    return max(signs, key=order)


def weight_of(sign: LogMatch) -> float:
    """The confidence, 0..1, that it means what its signature says."""
    return KNOWN[sign.signature].weight * FORM_SHARE[sign.form]


def _comparable(signs: Sequence[LogMatch]) -> bool:
    """Whether it is known which was printed first: signs come in order then."""
    return len({sign.source for sign in signs}) == 1 or all(sign.at is not None for sign in signs)


def _first_of_each(signs: Iterable[LogMatch]) -> Iterable[LogMatch]:
    """The first sign of each source."""
    return {sign.source: sign for sign in reversed(list(signs))}.values()


def rank_of(sign: LogMatch, case: Case) -> int | None:
    """The rank that a console line is about: the rank, pid or GPU that it names, else the rank that
    printed it. None for a mismatch between ranks, unless the line names the missing one."""
    code = KNOWN[sign.signature].code
    if code == "hang-collective-mismatch" or KNOWN[sign.signature].mutual:
        return None
    if (named := sign.values.get("rank", "")).isdecimal():
        return int(named)
    if (named := sign.values.get("pid", "")).isdecimal():
        for rank in case.ranks:
            if rank.pid == int(named):
                return rank.rank
    if len(there := on_bus(case, sign.values.get("pci", ""))) == 1:
        return there[0]
    if case.job.launcher == "srun" and (named := sign.values.get("task", "")).isdecimal():
        return int(named)  # every task is a rank: no torchrun in between
    return None if code in BETWEEN else sign.rank


def fits(sign: LogMatch, failures: tuple[RankFailure, ...], case: Case) -> bool:
    """Whether it may be why the first ranks failed."""
    if not failures or any(in_error(sign, failure) for failure in failures):
        return True
    code, rank = KNOWN[sign.signature].code, rank_of(sign, case)
    if any(beside(sign, failure, rank) for failure in failures):
        return True
    kinds = {failure.kind for failure in failures}
    if code in OUTSIDE and rank is None:
        return True
    if kinds <= {FailureKind.KILLED, FailureKind.VANISHED}:
        return code in KILLING and rank in (None, *(failure.rank for failure in failures))
    if rank is None:
        return FailureKind.EXCEPTION not in kinds
    return rank in {failure.rank for failure in failures} or all(
        failure.rank is None for failure in failures
    )


def beside(sign: LogMatch, failure: RankFailure, rank: int | None) -> bool:
    """Whether only the failed rank printed it, next to its exception."""
    if failure.order is None or rank not in (None, failure.rank):
        return False
    return abs(sign.number - failure.order) <= SAME_EVENT


def in_error(sign: LogMatch, failure: RankFailure) -> bool:
    """The failed rank's own exception holds the very text."""
    return failure.error is not None and says(failure.error, sign)


def says(error: Error, sign: LogMatch) -> bool:
    text, message = sign.text.strip()[:200], error.message.strip().partition("\n")[0][:200]
    if len(message) > LEAST_SAID and message in sign.text:
        return True
    return len(text) > LEAST_SAID and text in f"{error.traceback}\n{error.message}"


def one_event(sign: LogMatch, first: LogMatch) -> bool:
    near = abs(sign.number - first.number) <= SAME_EVENT
    ranks = {sign.rank, first.rank} - {None}
    return sign.source == first.source and len(ranks) <= 1 and near
