"""Makes a diagnosis safe to publish: no names of hosts and users, no addresses, no home and no
working directory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Protocol, TypeVar

from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.report import text
from mgpu_doctor.report.redaction.addresses import hide_addresses, parse_address
from mgpu_doctor.report.redaction.hosts import find_hosts
from mgpu_doctor.report.redaction.known_names import (
    find_domains,
    is_plain,
    make_names,
    make_relatives,
    number_hosts,
)
from mgpu_doctor.report.redaction.users import COMMON, find_users, fold, hide_homes, hide_logins

T = TypeVar("T")

_SHOWN = (
    *("job", "subject", "ranks", "earlier", "console", "signs", "endings", "unexamined"),
    "asked_hosts",
)
"""Parts of a case whose text reports show, besides samples."""
_OUR_FIELDS = {"code", "state", "unit", "kind", "doing"}
"""Fields of dataclasses that contain only the doctor's own text."""
_NO_WORDS = re.compile(r"(?:(?:int|float|bool|None|Records|Outcome|State|Severity)(?: \| )?)+")
MOST_ODD = 64
"""The most hosts with invalid host names that are searched for."""


class _Placed(Protocol):
    @property
    def host(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Redactor:
    """Redacts values made of text, tuples, lists, mappings and dataclasses."""

    _hide: Callable[[str], str]

    def __call__(self, value: T) -> T:
        hidden: T = _map_texts(value, self._hide)
        return hidden


def no_redaction() -> Redactor:
    """Returns a redactor that hides nothing."""
    return Redactor(str)


def redact_diagnosis(diagnosis: Diagnosis, hide: Redactor | None = None) -> Diagnosis:
    """Returns the same diagnosis with hosts as `host-1`, `host-2`, …, addresses as `address`, homes
    as `~`, the job's working directory as `.` and users as `user`. Stacks, dumps, traces and
    snapshots stay unchanged: reports show none of their text. `hide`: the result of `redactor`, if
    already made."""
    hide = hide or make_redactor(diagnosis)
    case = diagnosis.case
    redacted_fields: dict[str, Any] = {name: hide(getattr(case, name)) for name in _SHOWN}
    redacted_fields["host_samples"] = tuple(
        structs.replace(host_sample, host=hide(host_sample.host), addresses=(), links={})
        for host_sample in case.host_samples
    )
    redacted_fields["device_samples"] = tuple(
        _redact_sample(device_sample, hide) for device_sample in case.device_samples
    )
    return replace(
        diagnosis,
        ranks=hide(diagnosis.ranks),
        findings=hide(diagnosis.findings),
        unexamined=hide(diagnosis.unexamined),
        tree=hide(diagnosis.tree),
        coverage_reason=hide(diagnosis.coverage_reason),
        efficiency_reason=hide(diagnosis.efficiency_reason),
        case=replace(case, **redacted_fields),
    )


def _redact_sample(sample: DeviceSample, hide: Redactor) -> DeviceSample:
    devices = sample.devices
    if any(device.trouble for device in devices):
        devices = tuple(structs.replace(device, trouble=hide(device.trouble)) for device in devices)
    return structs.replace(
        sample, host=hide(sample.host), trouble=hide(sample.trouble), devices=devices
    )


def make_redactor(diagnosis: Diagnosis, home: str | None = None) -> Redactor:
    """Returns a redactor for an unredacted diagnosis. `home`: a home folder that may not look like
    one."""
    texts = {text.clean(message) for message in _collect_texts(diagnosis)}
    recorded = _collect_hosts(diagnosis)
    named = {fold(name) for message in texts for name in find_hosts(hide_addresses(message, {}))}
    hosts = {name for name in named if is_plain(name)} | recorded
    domains = find_domains(hosts)
    relatives = make_relatives(hosts, domains)
    hosts |= {name for message in texts for name in relatives.find(message)}
    labels = number_hosts(recorded, hosts)
    addresses = {
        address: label for name, label in labels.items() if (address := parse_address(name))
    }
    plain = {name: label for name, label in labels.items() if is_plain(name)}
    unusual = {name: label for name, label in labels.items() if name not in plain}
    parts = [
        (re.compile(re.escape(name), re.IGNORECASE), unusual[name]) for name in _select_odd(unusual)
    ]
    names = make_names(plain, _collect_users(diagnosis, texts, home), domains - plain.keys())
    folders = [*_match_folder(diagnosis.case.job.cwd, "."), *_match_folder(home, "~")]

    @cache
    def hide(message: str) -> str:
        message = text.clean(message)
        if label := unusual.get(fold(message)):
            return label
        for folder, sign in folders:
            message = folder.sub(sign, message)
        message = hide_homes(message)
        for part, label in parts:
            message = part.sub(label, message)
        return hide_logins(hide_addresses(names.hide(message), addresses))

    return Redactor(hide)


def _select_odd(unusual: Iterable[str]) -> list[str]:
    names = (name for name in unusual if parse_address(name) is None)
    return sorted(names, key=len, reverse=True)[:MOST_ODD]


def _match_folder(path: str | None, sign: str) -> Iterator[tuple[re.Pattern[str], str]]:
    """Returns the pattern of a folder, and its replacement."""
    folder = text.clean(path or "").rstrip("/")
    if folder:
        yield re.compile(rf"{re.escape(folder)}(?![\w.-])"), sign


def _collect_hosts(diagnosis: Diagnosis) -> set[str]:
    """Returns the recorded host names, folded."""
    case = diagnosis.case
    groups: Iterable[Iterable[_Placed]] = (
        *(case.ranks, case.earlier, case.host_samples, case.device_samples, case.endings),
        *(case.flights, case.traces, diagnosis.ranks),
        *(finding.culprits for finding in diagnosis.findings),
    )
    hosts = {*case.job.hosts, *(fact.host or "" for group in groups for fact in group)}
    hosts |= {lost.name for lost in case.lost_hosts}
    hosts |= {name or "" for host in case.asked_hosts for name in (host.name, host.node)}
    names = {fold(text.line(host)) for host in hosts} - {"", "localhost"}
    addresses = {name: parse_address(name) for name in names}
    return {
        name for name, address in addresses.items() if address is None or not address.is_loopback
    }


def _collect_users(diagnosis: Diagnosis, texts: Iterable[str], home: str | None) -> dict[str, bool]:
    """Returns folded user name -> whether it is surely a name."""
    snapshots = diagnosis.case.job_snapshots
    users = {(process.user or "", True) for snapshot in snapshots for process in snapshot.processes}
    users |= {((home or "").rstrip("/").rpartition("/")[2], True)}
    users |= {user for message in texts for user in find_users(message)}
    folded = sorted((fold(name), sure) for name, sure in users)
    private = {name: sure for name, sure in folded if name not in COMMON and not name.isdigit()}
    return {name: sure for name, sure in private.items() if is_plain(name)}


def _collect_texts(diagnosis: Diagnosis) -> Iterator[str]:
    case = diagnosis.case
    yield from _walk_texts([getattr(case, name) for name in _SHOWN])
    yield from _walk_texts(
        [diagnosis.ranks, diagnosis.findings, diagnosis.unexamined, diagnosis.tree]
    )
    yield from _walk_texts([diagnosis.coverage_reason, diagnosis.efficiency_reason])
    commands = {
        process.command for snapshot in case.job_snapshots for process in snapshot.processes
    }
    yield from (" ".join(command) for command in {*commands, case.job.command})


def _walk_texts(value: Any) -> Iterator[str]:
    """Yields all texts that `_map_texts` would redact."""
    if isinstance(value, Enum):
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _walk_texts(item)
    elif isinstance(value, Mapping):
        yield from _walk_texts([*value.values()])
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _walk_texts([getattr(value, name) for name in _list_text_fields(type(value))])


def _map_texts(value: Any, hide: Callable[[str], str]) -> Any:
    """Returns the redacted value; the same object if there is nothing to hide, because most of a
    long run is numbers."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, (tuple, list)):
        items = [_map_texts(item, hide) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    if isinstance(value, Mapping):
        return {key: _map_texts(item, hide) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        old = {name: getattr(value, name) for name in _list_text_fields(type(value))}
        new = {name: _map_texts(item, hide) for name, item in old.items()}
        changed = {name: item for name, item in new.items() if item is not old[name]}
        return replace(value, **changed) if changed else value
    return value


@cache
def _list_text_fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that may hold text of the job."""
    return tuple(
        field.name
        for field in fields(kind)
        if field.name not in _OUR_FIELDS and not _NO_WORDS.fullmatch(str(field.type))
    )
