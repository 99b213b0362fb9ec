"""What ran: command, versions, devices, settings of the launch."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.process_metadata import UNKNOWN, ProcessMetadata
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.formatting import format_count
from mgpu_doctor.report import text
from mgpu_doctor.report.proof_text import describe_applied
from mgpu_doctor.report.redaction.redact import Redactor
from mgpu_doctor.report.verdict import outcome

MOST_HOSTS, MOST_DEVICES = 32, 8
LONGEST = 80
"""Characters of one fact that a rank reported about itself."""
NOT_KNOWN = "not known"


def facts(diagnosis: Diagnosis, hide: Redactor) -> dict[str, str]:
    """Returns name -> value, as untrusted text. An unknown fact is shown as unknown; a fact that
    not every job has is left out."""
    case, job = diagnosis.case, diagnosis.case.job
    metadata = _metadata(case)
    job_facts = {
        "command": shlex.join(job.command),
        "in": job.cwd,
        "framework": _framework(job.framework, metadata),
        "strategy": ", ".join(part for part in (job.strategy, _line(metadata.backend)) if part),
        "launcher": job.launcher,
        "ranks": _ranks(case),
        "hosts": ", ".join(job.hosts[:MOST_HOSTS])
        + (f" and {len(job.hosts) - MOST_HOSTS} more" if job.hosts[MOST_HOSTS:] else ""),
        "devices": _devices(case),
    }
    settings = dict(_settings(metadata))
    if case.applied is not None:
        settings["treatments"] = describe_applied(case.applied)
    end_facts = {
        "started": _moment(job.started),
        "ended": _moment(job.ended),
        "outcome": outcome(diagnosis).removeprefix("is ").removeprefix("was "),
        "id": job.id,
        "recording": case.subject.ref,
    }
    return {
        name: hide(value or NOT_KNOWN)
        for name, value in {**job_facts, **settings, **end_facts}.items()
    }


def _metadata(case: Case) -> ProcessMetadata:
    """Returns the metadata of the first rank where it is known: all ranks are started the same
    way."""
    return next((rank.metadata for rank in case.ranks if rank.metadata != UNKNOWN), UNKNOWN)


def _framework(name: str | None, metadata: ProcessMetadata) -> str:
    version, python = _line(metadata.framework_version), _line(metadata.python)
    parts = [" ".join(part for part in (name, version) if part)]
    parts += [f"Python {python}"] if python else []
    return ", ".join(part for part in parts if part)


def _ranks(case: Case) -> str | None:
    world, rank_count = case.job.world_size, len(case.ranks)
    if are_independent(case.ranks):
        return f"{rank_count}, independent (no process group)"
    if world is None:
        return str(rank_count) if rank_count else None
    return (
        str(world)
        if rank_count >= world or not rank_count
        else f"{world}, {rank_count} of them seen"
    )


def _devices(case: Case) -> str | None:
    """`4 x cpu`, `8 x NVIDIA H200`."""
    kinds = Counter(kind for rank in case.ranks if (kind := _device(rank)))
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common(MOST_DEVICES))


def _device(rank: Rank) -> str | None:
    return _line(rank.metadata.device_name) or (rank.device or "").partition(":")[0]


def _settings(metadata: ProcessMetadata) -> Iterator[tuple[str, str]]:
    """Returns name and value of each known setting."""
    if precision := _line(metadata.precision):
        yield "precision", precision
    threads, cores = metadata.threads, metadata.affinity
    if threads is not None:
        core_count = f", on {format_count(cores, 'core')}" if cores is not None else ""
        yield "threads", f"{threads} a rank{core_count}"
    if metadata.loaders:
        loader = metadata.loader
        yield (
            "loader",
            _listed(
                ("batches of {}", loader.batch_size),
                ("{} workers", loader.workers),
                ("{}", _line(loader.sampler)),
            ),
        )
    if metadata.optimizers:
        optimizer = metadata.optimizers[0]
        yield (
            "optimizer",
            _listed(
                ("{}", _line(optimizer.kind)),
                ("learning rate {}", optimizer.lr),
                ("{} parameters", optimizer.parameters),
            ),
        )


def _listed(*facts: tuple[str, str | float | None]) -> str:
    return ", ".join(phrase.format(value) for phrase, value in facts if value is not None)


def _line(value: str | None) -> str | None:
    return None if value is None else text.cut(text.line(value), LONGEST)


def _moment(moment: float | None) -> str | None:
    """Returns UTC, to the second; None if unknown or not a valid date."""
    try:
        return (
            None
            if moment is None
            else f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        )
    except (ValueError, OverflowError, OSError):
        return None
