"""The file of treatments that `treat -o FILE` writes and `run --treat FILE` applies. TOML.

schema = "mgpu-doctor/treatment/1"

[treatments]
loader-workers = 2
gc-freeze = true

[proof]
saved = 0.31
low = 0.28
high = 0.34
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.inprocess import BLOCKS_VARIABLE, TREATMENTS_VARIABLE

from mgpu_doctor.advice.treatment import Value
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS, check_values, split_by_way
from mgpu_doctor.case.treatment_proofs import ShareSaved, read_shares

_FAMILY = "mgpu-doctor/treatment"
SCHEMA = f"{_FAMILY}/1"
MAX_BYTES = 1 << 16


class TreatmentFileError(ValueError):
    """The file cannot be used; the message is one clear sentence."""


@dataclass(frozen=True, slots=True)
class TreatmentFile:
    """A file's content."""

    values: dict[str, Value]
    saved: ShareSaved | None = None
    """What they saved together in trials; None: the file does not say."""

    def describe(self) -> dict[str, object]:
        """As the recording of a run with these treatments holds it."""
        saved = self.saved
        shares = saved and {"step_fraction": saved.share, "low": saved.low, "high": saved.high}
        return {"values": self.values, "saved": shares}


def format_treatments(
    values: Mapping[str, Value], remarks: Mapping[str, str], saved: ShareSaved | None = None
) -> str:
    """The file's text. `remarks`: for each treatment, a line that is put above it. `saved`: what
    they save together."""
    lines = [
        "# Written by `mgpu-doctor treat`. To apply it: mgpu-doctor run --treat FILE -- COMMAND",
        f'schema = "{SCHEMA}"',
        "",
        "[treatments]",
    ]
    for name, value in values.items():
        remark = remarks.get(name) or TREATMENTS[name].summary
        lines += [f"# {' '.join(remark.split())}", f"{name} = {json.dumps(value)}"]
    if saved is not None:
        lines += [
            "",
            "[proof]",
            "# Share of the step time that they saved together in trials, and its 95 % interval",
            f"saved = {saved.share:.4f}",
            f"low = {saved.low:.4f}",
            f"high = {saved.high:.4f}",
        ]
    return "\n".join(lines) + "\n"


def read_treatments(file: Path) -> TreatmentFile:
    """The treatments in a file. Raises `TreatmentFileError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 10} KiB")
        content = tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise TreatmentFileError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise TreatmentFileError(f"{file} is not a file of treatments ({error}).") from None
    table, schema = content.get("treatments"), content.get("schema")
    if isinstance(schema, str) and schema != SCHEMA and schema.startswith(f"{_FAMILY}/"):
        raise TreatmentFileError(
            f"{file} is a file of treatments of another version ({schema[:40]!r}); this "
            f"mgpu-doctor reads {SCHEMA!r}: run `mgpu-doctor treat` again."
        )
    if schema != SCHEMA or not isinstance(table, dict):
        raise TreatmentFileError(
            f'{file} is not a file of treatments: it needs schema = "{SCHEMA}" and a table '
            "[treatments]."
        )
    try:
        values = check_values(table.items())
    except ValueError as error:
        raise TreatmentFileError(f"{file}: {error}") from None
    return TreatmentFile(values, _read_saved(content.get("proof")))


def _read_saved(table: object) -> ShareSaved | None:
    if not isinstance(table, dict):
        return None
    return read_shares({"step_fraction": table.get("saved"), **table})


def treated_environment(
    environment: Mapping[str, str],
    values: Mapping[str, Value],
    blocks: tuple[int, int, bool] | None = None,
) -> dict[str, str]:
    """An environment in which a job gets these treatments: always, or in some of the blocks of
    steps (first step, length, inverted), see `mgpu_probes.inprocess.treatments.trial_blocks`."""
    patches, variables = split_by_way(values)
    changed = {**environment, **variables}
    changed.pop(TREATMENTS_VARIABLE, None)
    if patches:
        changed[TREATMENTS_VARIABLE] = json.dumps(patches)
    changed.pop(BLOCKS_VARIABLE, None)
    if blocks is not None:
        changed[BLOCKS_VARIABLE] = json.dumps(blocks)
    return changed
