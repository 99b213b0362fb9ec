"""How boxes that cannot be read are reported."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from mgpu_doctor.case.recording_case import load_recording
from tests.support.recordings import HEALTHY, recording


def test_the_name_of_a_box_that_cannot_be_read_is_harmless(tmp_path: Path) -> None:
    folder = recording(tmp_path / "job", [HEALTHY], steps=10)
    (folder / "a\x1b[2J\u202eb\x9b.1.0.box").write_bytes(b"no box")
    reasons = [gap.reason for gap in load_recording(folder).unexamined if gap.probe == "black box"]
    assert len(reasons) == 1
    assert "it is not a black box" in reasons[0]
    assert not [one for one in reasons[0] if unicodedata.category(one) in ("Cc", "Cf")]
