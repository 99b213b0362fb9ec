"""What trials of treatments showed about a job, as its recording holds it.

`mgpu-doctor treat RECORDING` keeps its result in the recording, and `run --treat FILE` what it
applied, with the proof in that file. Facts only: names are not compared with the catalogue.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mgpu_doctor.case.process_metadata import Treated
from mgpu_doctor.case.untrusted_json import Json, number, read_object, whole
from mgpu_doctor.recording import layout

MOST = 64
"""Proofs of a recording, and treatments of one of them, that are read."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class ShareSaved:
    """Share of the step time that is saved, and its interval of 95 %; below 0 it is lost."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TreatmentProof:
    """What trials of one treatment, or of several together, showed."""

    values: tuple[tuple[str, bool | int], ...]
    verdict: str | None
    """As in docs/treat.schema.json; None: it is not known."""
    saved: ShareSaved | None
    without_effect: tuple[str, ...] = ()
    """Treatments that the job was started with and that changed nothing in any rank, such as those
    of another script."""

    @property
    def names(self) -> frozenset[str]:
        """The treatments."""
        return frozenset(name for name, _ in self.values)


def read_tried(recording: Path) -> tuple[TreatmentProof, ...]:
    """The treatments that were tried on the recording's job; empty: none was."""
    try:
        content = read_object(recording / layout.TRIALS, root=recording)
    except (OSError, ValueError):
        return ()
    listed = content.get("treatments")
    proofs = map(_read_proof, listed[:MOST]) if isinstance(listed, list) else ()
    return tuple(proof for proof in proofs if proof is not None)


def read_applied(
    info: Mapping[str, Json], reported: Iterable[Treated] = ()
) -> TreatmentProof | None:
    """The treatments that the job was started with; None: without any. `reported`: what treatments
    changed in each rank of a job that has ended."""
    proof = _read_proof(info.get("treated"))
    if proof is None:
        return None
    changed: Counter[str | None] = Counter()
    for each in reported:
        changed[each.name] += each.changed
    idle = tuple(name for name, _ in proof.values if name in changed and not changed[name])
    return replace(proof, without_effect=idle)


def _read_proof(content: Json) -> TreatmentProof | None:
    if not isinstance(content, dict) or not isinstance(content.get("values"), dict):
        return None
    values = tuple(
        (name, value)
        for name, value in list(content["values"].items())[:MOST]
        if _NAME.fullmatch(name) and (value is True or whole(value) is not None)
    )
    verdict = content.get("verdict")
    known = isinstance(verdict, str) and _NAME.fullmatch(verdict)
    proof = TreatmentProof(values, verdict if known else None, read_shares(content.get("saved")))
    return proof if values else None


def read_shares(content: Json) -> ShareSaved | None:
    """The shares in an object of untrusted JSON; None: there are none, or they are wrong."""
    if not isinstance(content, dict):
        return None
    share, low, high = (number(content.get(key)) for key in ("step_fraction", "low", "high"))
    if share is None or low is None or high is None or not low <= share <= high <= 1:
        return None
    return ShareSaved(share, low, high)
