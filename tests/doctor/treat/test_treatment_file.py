"""The file between `treat -o` and `run --treat`."""

from __future__ import annotations

from pathlib import Path

import pytest
from mgpu_probes.inprocess import TREATMENTS_VARIABLE

from mgpu_doctor.case.treatment_proofs import ShareSaved, TreatmentProof, read_applied
from mgpu_doctor.treat.treatment_file import (
    TreatmentFile,
    TreatmentFileError,
    format_treatments,
    read_treatments,
    treated_environment,
)

VALUES = {"loader-workers": 2, "gc-freeze": True, "threads": 4}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "treatment.toml"
    file.write_text(format_treatments(VALUES, {"gc-freeze": "helps:\n35 %"}))
    assert read_treatments(file) == TreatmentFile(VALUES)
    file.write_text(format_treatments(VALUES, {}, ShareSaved(0.3, 0.2, 0.4)))
    read = read_treatments(file)
    assert read == TreatmentFile(VALUES, ShareSaved(0.3, 0.2, 0.4))
    assert read_applied({"treated": read.describe()}) == TreatmentProof(
        tuple(VALUES.items()), None, read.saved
    )
    file.write_text(file.read_text().replace("low = 0.2", "low = 0.5"))
    assert read_treatments(file).saved is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[treatments]\nloader-workers = 2",
        'schema = "mgpu-doctor/treatment/2"\n[treatments]\n',
        'schema = "mgpu-doctor/treatment/1"\ntreatments = 3',
        'schema = "mgpu-doctor/treatment/1"\n[treatments]\nloader-workers = 2000',
        'schema = "mgpu-doctor/treatment/1"\n[treatments]\nLD_PRELOAD = "evil.so"',
        "\xff\x00",
        'schema = "mgpu-doctor/treatment/1"\n[treatments]\nloader-workers = 2' + "\n" * 100_000,
    ],
    ids=["empty", "no schema", "newer", "no table", "too many", "unknown", "binary", "long"],
)
def test_other_files_are_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(TreatmentFileError) as refused:
        read_treatments(file)
    assert str(refused.value).startswith(str(file))
    assert str(refused.value).endswith(".")
    with pytest.raises(TreatmentFileError):
        read_treatments(tmp_path / "missing.toml")


def test_a_file_of_another_version_is_called_so(tmp_path: Path) -> None:
    file = tmp_path / "newer.toml"
    file.write_text('schema = "mgpu-doctor/treatment/2"\n[treatments]\n')
    with pytest.raises(TreatmentFileError, match=r"another version .*/2'.* reads .*/1'"):
        read_treatments(file)


def test_the_environment_holds_these_treatments_and_no_older_ones() -> None:
    before = {TREATMENTS_VARIABLE: '{"gc-freeze": true}', "OMP_NUM_THREADS": "1", "HOME": "/h"}
    assert treated_environment(before, VALUES) == {
        TREATMENTS_VARIABLE: '{"loader-workers": 2, "gc-freeze": true}',
        "OMP_NUM_THREADS": "4",
        "HOME": "/h",
    }
    assert treated_environment(before, {"threads": 4}) == {"OMP_NUM_THREADS": "4", "HOME": "/h"}
