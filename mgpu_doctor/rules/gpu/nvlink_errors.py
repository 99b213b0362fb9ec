"""NVLinks that are down where they should be up, or have errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median_low

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.driver_xids import Xid
from mgpu_doctor.analysis.postmortem.log_verdict import GENERIC_CODES
from mgpu_doctor.case.device_samples import NvLink
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_findings import SURE, culprits, named, risen, where
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.gpu.xid_evidence import (
    find_xids_of,
    make_xid_evidence,
    severity_of,
)
from mgpu_doctor.rules.rule import Limit, Limits, Rule

CODE = "nvlink-down"
CHECKSUMS = ("crc_flit", "crc_data")
"""Errors that the link corrects itself; they count only above a rate."""
SOURCE = "NVML NVLink state"


@dataclass(frozen=True, slots=True)
class _Spell:
    """Consecutive equal readings."""

    links: tuple[NvLink, ...]
    since: float
    until: float
    samples: int

    @property
    def up(self) -> int:
        return sum(link.up is True for link in self.links)


Spells = tuple[_Spell, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """The faults of a device's links."""

    up: int
    down: tuple[int, ...]
    usual: int
    """How many links are up on the other devices, or were up here earlier."""
    errors: tuple[_Errors, ...]
    xids: tuple[Xid, ...]


@dataclass(frozen=True, slots=True)
class _Errors:
    link: int
    kind: str
    count: int
    seconds: float


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    known = find_xids_of(measures, CODE)
    spells = {id(gpu): _spells(gpu) for gpu in measures.watched.gpus}
    for gpu in measures.watched.gpus:
        others = [spells[id(other)] for other in measures.watched.alike(gpu)]
        down, usual = _down(spells[id(gpu)], others)
        errors = tuple(error for error in _errors(spells[id(gpu)]) if _counts(error, limits))
        own = tuple(xid for xid in known if xid.gpu is gpu)
        if down or errors or own:
            up = spells[id(gpu)][-1].up if spells[id(gpu)] else 0
            yield _finding(measures, gpu, _State(up, down, usual, errors, own))


def _spells(gpu: Gpu) -> tuple[_Spell, ...]:
    """The readings, equal ones merged: links are read rarely, but every sample repeats them."""
    readings = [
        series for series in gpu.series if any(link.up is not None for link in series[1].nvlinks)
    ]
    spells = []
    for links, run in groupby(readings, key=lambda reading: reading[1].nvlinks):
        times = [at for at, _ in run]
        spells.append(_Spell(links, times[0], times[-1], len(times)))
    return tuple(spells)


def _down(own: Spells, others: Sequence[Spells]) -> tuple[tuple[int, ...], int]:
    """Links that are down, and how many are usually up: earlier on this device, or on the others of
    its model if they agree. Unknown if bridges join only some pairs."""
    newest = own[-1] if own else None
    if newest is None or (newest.samples < 2 and (len(own) < 2 or own[-2].up != newest.up)):
        return (), 0
    theirs = [spells[-1] for spells in others if spells]
    joined = newest.up > 0 or any(link.remote == "switch" for last in theirs for link in last.links)
    usual = median_low([last.up for last in theirs]) if theirs and joined else 0
    usual = max(usual, _most(own))
    if newest.up >= usual:
        return (), usual
    return tuple(sorted(link.link for link in newest.links if link.up is False)), usual


def _most(own: Spells) -> int:
    """The most links that were up in two consecutive samples."""
    lasting = [spell.up for spell in own if spell.samples > 1]
    return max(
        [*lasting, *(min(earlier.up, other.up) for earlier, other in pairwise(own))], default=0
    )


def _errors(own: Spells) -> Iterable[_Errors]:
    counters: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for spell in own if len(own) > 1 else ():
        for link in spell.links:
            for kind, count in link.errors:
                counters[link.link, kind].append((spell.since, count))
    for (number, kind), series in sorted(counters.items()):
        if count := risen(series)[0]:
            yield _Errors(number, kind, count, own[-1].until - own[0].since)


def _counts(spell: _Errors, limits: Limits) -> bool:
    if spell.kind in CHECKSUMS:
        return spell.seconds > 0 and spell.count / spell.seconds >= limits["checksums"]
    return spell.count >= limits["errors"]


def _finding(measures: Measures, gpu: Gpu, state: _State) -> Finding:
    down, errors, own = state.down, state.errors, state.xids
    parts = []
    if down:
        parts.append(f"{len(down)} NVLinks are down (usually {state.usual} are up)")
    if errors:
        links = sorted({error.link for error in errors})
        noun = "links" if len(links) > 1 else "link"
        parts.append(f"errors rise on {noun} {', '.join(map(str, links))}")
    if own and not parts:
        parts.append("the driver reported a failed NVLink (XID 74)")
    critical = any(severity_of(xid) is Severity.CRITICAL for xid in own)
    falls = tuple(dict.fromkeys(fall for xid in own for fall in xid.failures))
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        confidence=SURE,
        title=f"{named(gpu)}: {' and '.join(parts)}",
        cause=" ".join(xid.meaning for xid in own)
        or "A link's cable, bridge or baseboard, or a GPU at its end, is faulty. NCCL uses other "
        "links or resends data, so collectives of all ranks become slower.",
        culprits=culprits(measures, (gpu,)),
        evidence=(
            *_evidence(gpu, state),
            *(make_xid_evidence(count) for count in own),
            *(piece for fall in falls for piece in failure_text.evidence_of(fall, measures.case)),
        ),
        fixes=(
            Fix(
                "reset-links",
                f"Check the NVLinks of GPU {gpu.index}, and reset the GPUs of the host",
                f"`nvidia-smi nvlink -s -i {gpu.index}` and `nvidia-smi nvlink -e -i {gpu.index}` "
                "show states and errors; as root, with no job there: `nvidia-smi --gpu-reset` or "
                "reboot; on HGX hosts restart the fabric manager. If the fault returns, have the "
                "bridge, the baseboard or the GPU checked.",
            ),
        ),
        replaces=tuple(sorted(GENERIC_CODES)) if critical and falls else (),
    )


def _evidence(gpu: Gpu, state: _State) -> Iterable[Evidence]:
    if state.down:
        yield Evidence("NVLinks that are up", state.up, "links", state.usual, SOURCE, where(gpu))
        listed = ", ".join(map(str, state.down))
        yield Evidence("NVLinks that are down", listed, "links", None, SOURCE, where(gpu))
    for error in state.errors[:4]:
        yield Evidence(
            f"{error.kind} errors while it was watched",
            error.count,
            "errors",
            0,
            "NVML NVLink error counters",
            f"{where(gpu)}, link {error.link}",
        )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="A link between GPUs is down or has errors.",
        measured="State and error counters of every NVLink by NVML, and XID 74, assigned to the "
        "rank on the device.",
        thresholds="A device is reported if fewer of its links are up, in the two newest readings, "
        "than earlier while it was watched, or than on the lower median of the other GPUs of its "
        "model. A device with no link up is compared with others only if these are on NVSwitches: "
        "bridges may join only some pairs.",
        fixes="`nvidia-smi nvlink -s` and `-e`; reset all GPUs of the host, restart the fabric "
        "manager, have the bridge or baseboard checked.",
        examine=_examine,
        alternatives=(log_detector(CODE),),
        limits=(
            Limit(
                "errors",
                2,
                "errors",
                "replays, recoveries and ECC errors of a link while it is watched: NVIDIA DCGM's "
                "health watch warns from 1 on; 2, so that a single one is ignored.",
            ),
            Limit(
                "checksums",
                100,
                "1/s",
                "CRC errors per second that matter (NVIDIA DCGM, health watch of NVLink: only at "
                "rates of 100 and more).",
            ),
        ),
        unverified=PRETEND,
    ),
)
