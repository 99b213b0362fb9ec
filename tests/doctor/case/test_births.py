"""Birth certificates as strangers may write them: whatever stands in one, rules get typed facts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mgpu_doctor.case.birth import COUNTS, FLAGS, NAMES, certificate
from mgpu_doctor.case.load import load_recording
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.report import markdown
from tests.support.recordings import HEALTHY, SLOW_INPUT, recording

TABLE = Path(__file__).parents[3] / "docs" / "black-box.md"
WILD = [[], {}, [["x"]], [{}], {"a": [1]}, True, -1, 1e308, float("nan"), "\x1b[2J", "y" * 5000]


def documented() -> list[str]:
    """The keys of the table of the birth certificate."""
    table = TABLE.read_text().partition("| `framework`")
    rows = (table[1] + table[2]).split("\n\n")[0].splitlines()
    return [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize("value", WILD, ids=lambda value: repr(value)[:20])
def test_no_value_of_a_birth_breaks_a_diagnosis(value: Any, tmp_path: Path) -> None:
    keys = documented()
    assert {"framework", "strategy", "argv", "worker_socket", "groups", "probe"} <= set(keys)
    told = dict.fromkeys(keys, value)
    job = recording(tmp_path / "job", [SLOW_INPUT, HEALTHY], birth=told)
    found = diagnose(load_recording(job))
    assert len(found.case.ranks) == 2
    assert all(line.isprintable() for line in markdown.render(found).split("\n"))


def test_plain_values_have_their_types_or_are_left_out() -> None:
    honest = {**dict.fromkeys(NAMES, "a"), **dict.fromkeys(COUNTS, 3), **dict.fromkeys(FLAGS, True)}
    honest |= {"argv": ["train.py", "--x"], "loaders": [{"workers": 2}]}
    assert certificate(honest) == honest
    wrong = {
        **{key: ["a"] for key in NAMES},
        **dict.fromkeys(COUNTS, -3),
        **dict.fromkeys(FLAGS, 1),
    }
    assert certificate({**wrong, "argv": "train.py", "x": 1}) == {"x": 1}
