"""A diagnosis that can be shown to strangers: no names of hosts and users, no addresses, no home
and no working directory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from mgpu_doctor.findings import Diagnosis

_NAME = r"[^/\s'\",:;=)\]]+"
_HOMES = re.compile(
    rf"/(?:homes?|[Uu]sers)/(?:(?:users?|staff|students?|people)/)?({_NAME})"
    r"|/root(?=[/\s'\":]|$)"
)
_ADDRESSES = re.compile(
    r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?=\]?:\d)"
    r"|(?<=\[)(?!::1\])[0-9a-f]*:[0-9a-f:]*:[0-9a-f:.]*(?:%\w+)?(?=\]:\d)"
)
"""With a port: four numbers alone may be a version."""
_MEETING = re.compile(
    r"--(?:rdzv[-_]endpoint|master[-_]addr)[= ]([A-Za-z][\w.-]*)|tcp://([A-Za-z][\w.-]*)"
)
"""Where ranks meet: the name of a host, which need not be one of those that were recorded."""
T = TypeVar("T")
_NO_NAMES = {"", "localhost"}


def redacted(diagnosis: Diagnosis) -> Diagnosis:
    """The same in its judgement and in the job's description with hosts as `host-1`, `host-2`, …,
    addresses with a port as `address`, homes as `~`, the job's working directory as `.` and the
    owners of homes as `user` (in other paths, and before an `@`). What user code printed into a
    message is not looked through for anything else. Facts of single ranks and samples stay: what
    is told of them goes through `redactor`."""
    hide = redactor(diagnosis)
    case = diagnosis.case
    return replace(
        diagnosis,
        ranks=hide(diagnosis.ranks),
        findings=hide(diagnosis.findings),
        unexamined=hide(diagnosis.unexamined),
        tree=hide(diagnosis.tree),
        coverage_reason=hide(diagnosis.coverage_reason),
        case=replace(case, job=hide(case.job), subject=hide(case.subject)),
    )


def redactor(diagnosis: Diagnosis) -> Redactor:
    """Hides in anything made of text, tuples and dataclasses what `redacted` hides in a diagnosis
    that is not redacted yet."""
    return Redactor(_hider(diagnosis))


@dataclass(frozen=True, slots=True)
class Redactor:
    _hide: Callable[[str], str]

    def __call__(self, value: T) -> T:
        hidden: T = _mapped(value, self._hide)
        return hidden


def as_it_is() -> Redactor:
    """Hides nothing."""
    return Redactor(str)


def _hider(diagnosis: Diagnosis) -> Callable[[str], str]:
    job = diagnosis.case.job
    names = {*job.hosts, *(rank.host for rank in diagnosis.ranks)}
    names |= {sample.host or "" for sample in diagnosis.case.host_samples}
    names |= {sample.host or "" for sample in diagnosis.case.device_samples}
    names |= {culprit.host or "" for one in diagnosis.findings for culprit in one.culprits}
    names |= {name for found in _MEETING.findall(" ".join(job.command)) for name in found}
    known: dict[str, str] = {}
    for i, name in enumerate(sorted(names - _NO_NAMES), 1):
        known[name] = f"host-{i}"
        known.setdefault(name.partition(".")[0], f"host-{i}")
    known.pop("", None)
    longest_first = sorted(known, key=lambda name: -len(name))
    host = (
        re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
        if known
        else None
    )
    directory = (job.cwd or "").rstrip("/")
    told = " ".join((directory, *job.command, diagnosis.case.subject.ref))
    users = "|".join(map(re.escape, sorted({*_HOMES.findall(told)} - {""})))
    user = (
        re.compile(rf"(?<=/)(?:{users})(?![\w.-])|(?<![\w.-])(?:{users})(?=@)") if users else None
    )

    def hide(words: str) -> str:
        if directory:
            words = re.sub(rf"{re.escape(directory)}(?![\w.-])", ".", words)
        words = _ADDRESSES.sub("address", _HOMES.sub("~", words))
        words = user.sub("user", words) if user else words
        return host.sub(lambda found: known[found.group()], words) if host else words

    return hide


def _mapped(value: Any, hide: Callable[[str], str]) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, tuple):
        return tuple(_mapped(item, hide) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{one.name: _mapped(getattr(value, one.name), hide) for one in fields(value)}
        )
    return value
