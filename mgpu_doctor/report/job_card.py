"""What ran, for whoever was not there: command, versions, devices, settings of the launch."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from mgpu_doctor.case.files import Json
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.formatting import format_count
from mgpu_doctor.report import text
from mgpu_doctor.report.redaction.redact import Redactor
from mgpu_doctor.report.verdict import outcome

MOST_HOSTS, MOST_DEVICES = 32, 8
LONGEST = 80
"""Characters of one thing that a rank told of itself."""
NOT_KNOWN = "not known"


def facts(diagnosis: Diagnosis, hide: Redactor) -> dict[str, str]:
    """Name -> value, anybody's words; what is not known says so, what a job need not have is left
    out."""
    case, job = diagnosis.case, diagnosis.case.job
    birth = _birth(case)
    known = {
        "command": shlex.join(job.command),
        "in": job.cwd,
        "framework": _framework(job.framework, birth),
        "strategy": ", ".join(part for part in (job.strategy, _text(birth, "backend")) if part),
        "launcher": job.launcher,
        "ranks": _ranks(case),
        "hosts": ", ".join(job.hosts[:MOST_HOSTS])
        + (f" and {len(job.hosts) - MOST_HOSTS} more" if job.hosts[MOST_HOSTS:] else ""),
        "devices": _devices(case),
    }
    settings = dict(_settings(birth))
    over = {
        "started": _moment(job.started),
        "ended": _moment(job.ended),
        "outcome": outcome(diagnosis).removeprefix("is ").removeprefix("was "),
        "id": job.id,
        "recording": case.subject.ref,
    }
    return {name: hide(value or NOT_KNOWN) for name, value in {**known, **settings, **over}.items()}


def _birth(case: Case) -> Mapping[str, Json]:
    """Of the first rank that told something: they are started alike."""
    return next((rank.birth for rank in case.ranks if rank.birth), {})


def _framework(name: str | None, birth: Mapping[str, Json]) -> str:
    version, python = _text(birth, "framework_version"), _text(birth, "python")
    parts = [" ".join(part for part in (name, version) if part)]
    parts += [f"Python {python}"] if python else []
    return ", ".join(part for part in parts if part)


def _ranks(case: Case) -> str | None:
    world, seen = case.job.world_size, len(case.ranks)
    if world is None:
        return str(seen) if seen else None
    return str(world) if seen >= world or not seen else f"{world}, {seen} of them seen"


def _devices(case: Case) -> str | None:
    """`4 x cpu`, `8 x NVIDIA H200`."""
    kinds = Counter(kind for rank in case.ranks if (kind := _device(rank)))
    return ", ".join(f"{many} × {kind}" for kind, many in kinds.most_common(MOST_DEVICES))


def _device(rank: Rank) -> str | None:
    return _text(rank.birth, "device_name") or (rank.device or "").partition(":")[0]


def _settings(birth: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Only of what was told."""
    if precision := _text(birth, "precision"):
        yield "precision", precision
    threads, cores = _number(birth, "threads"), _number(birth, "affinity")
    if threads is not None:
        on = f", on {format_count(cores, 'core')}" if cores is not None else ""
        yield "threads", f"{threads} a rank{on}"
    if loader := _first(birth, "loaders"):
        named = {"batch_size": "batches of {}", "workers": "{} workers", "sampler": "{}"}
        yield "loader", ", ".join(_named(loader, named))
    if optimizer := _first(birth, "optimizers"):
        named = {"class": "{}", "lr": "learning rate {}", "parameters": "{} parameters"}
        yield "optimizer", ", ".join(_named(optimizer, named))


def _named(told: Mapping[str, Json], words: Mapping[str, str]) -> Iterator[str]:
    for name, phrase in words.items():
        value = told.get(name)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            yield phrase.format(text.cut(text.line(str(value)), LONGEST))


def _first(birth: Mapping[str, Json], name: str) -> Mapping[str, Json] | None:
    listed = birth.get(name)
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, dict) else None


def _text(birth: Mapping[str, Json], name: str) -> str | None:
    value = birth.get(name)
    return text.cut(text.line(value), LONGEST) if isinstance(value, str) else None


def _number(birth: Mapping[str, Json], name: str) -> int | None:
    value = birth.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(at: float | None) -> str | None:
    """UTC, to the second; None where it is not known or no moment of our calendar."""
    try:
        return (
            None
            if at is None
            else f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        )
    except (ValueError, OverflowError, OSError):
        return None
