"""The file of treatments that `treat -o FILE` writes and `run --treat FILE` applies. TOML.

schema = "mgpu-doctor/treatment/1"

[treatments]
loader-workers = 2
gc-freeze = true
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from mgpu_probes.inprocess import BLOCKS_VARIABLE, TREATMENTS_VARIABLE

from mgpu_doctor.advice.treatment import Value
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS, check_values, split_by_way

SCHEMA = "mgpu-doctor/treatment/1"
MAX_BYTES = 1 << 16


class TreatmentFileError(ValueError):
    """The file cannot be used; the message is one clear sentence."""


def format_treatments(values: Mapping[str, Value], remarks: Mapping[str, str]) -> str:
    """The file's text. `remarks`: for each treatment, a line that is put above it."""
    lines = [
        "# Written by `mgpu-doctor treat`. To apply it: mgpu-doctor run --treat FILE -- COMMAND",
        f'schema = "{SCHEMA}"',
        "",
        "[treatments]",
    ]
    for name, value in values.items():
        remark = remarks.get(name) or TREATMENTS[name].summary
        lines += [f"# {' '.join(remark.split())}", f"{name} = {json.dumps(value)}"]
    return "\n".join(lines) + "\n"


def read_treatments(file: Path) -> dict[str, Value]:
    """The values in a file. Raises `TreatmentFileError`."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with file.open("rb") as stream:
            content = tomllib.loads(stream.read(MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise TreatmentFileError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise TreatmentFileError(f"{file} is not a file of treatments ({error}).") from None
    table = content.get("treatments")
    if content.get("schema") != SCHEMA or not isinstance(table, dict):
        raise TreatmentFileError(
            f'{file} is not a file of treatments: it needs schema = "{SCHEMA}" and a table '
            "[treatments]."
        )
    try:
        return check_values(table.items())
    except ValueError as error:
        raise TreatmentFileError(f"{file}: {error}") from None


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
