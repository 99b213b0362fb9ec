"""`[tool.mgpu-doctor]`: limits that users set, disabled findings, and errors in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mgpu_doctor.cli import app
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.rules.catalogue import OWN
from mgpu_doctor.rules.rule import Limit, Rule
from mgpu_doctor.rules.settings import DEFAULTS, Settings, SettingsError, settings_from
from mgpu_doctor.settings_files import read_settings
from tests.support.synthetic import Fault, Synthetic, synthetic_case

RULE = Rule(
    "some-code",
    "slow",
    "s",
    "m",
    "t",
    "f",
    lambda _measures, _limits: (),
    limits=(Limit("share", 0.1, "fraction", "why"), Limit("least", 20, "steps", "why")),
)


def test_what_is_not_set_keeps_its_default() -> None:
    chosen = settings_from({"some-code": {"share": 1}, "ignore": ["some-code"]}, [RULE])
    assert chosen.limits(RULE) == {"share": 1.0, "least": 20}
    assert chosen.ignore == {"some-code"}
    assert DEFAULTS.limits(RULE) == {"share": 0.1, "least": 20}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"ignore": "some-code"}, "must be a list"),
        ({"ignore": [1]}, "must be a list"),
        ({"ignore": ["some-cod"]}, "did you mean some-code"),
        ({"zzz": {}}, "'zzz' is no finding"),
        ({"some-code": 3}, "must be a table"),
        ({"some-code": {"shar": 1}}, "did you mean share"),
        ({"some-code": {"zzz": 1}}, "there are: share, least"),
        ({"some-code": {"share": "x"}}, "must be a number"),
        ({"some-code": {"share": True}}, "must be a number"),
        ({"some-code": {"share": -1}}, "must be a number"),
        ({"some-code": {"share": float("nan")}}, "must be a number"),
    ],
)
def test_what_is_wrong_is_reported(table: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_from(table, [RULE])


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_file_with_a_table_counts(tmp_path: Path) -> None:
    write(tmp_path, '[tool.mgpu-doctor]\nignore = ["coverage-low"]\n')
    inner = write(tmp_path / "a/b", "[tool.other]\nx = 1\n")
    assert read_settings(inner).ignore == {"coverage-low"}
    assert read_settings(tmp_path / "a").ignore == {"coverage-low"}


@pytest.mark.parametrize(
    "text",
    [
        '[ tool . "mgpu-doctor" ]\nignore = ["coverage-low"]\n',
        '[tool] # ours\nmgpu-doctor.ignore = ["coverage-low"]\n',
        'x = 1\ntool.mgpu-doctor.ignore = ["coverage-low"]\n',
        "tool = {mgpu-doctor = {ignore = ['coverage-low']}}\n",
        "\t['tool'.mgpu-doctor]\nignore = ['coverage-low']\n",
    ],
)
def test_the_table_is_found_however_it_is_written(tmp_path: Path, text: str) -> None:
    assert read_settings(write(tmp_path, text)).ignore == {"coverage-low"}


@pytest.mark.parametrize("text", ["[tool.mgpu-doctor\n", "[tool.mgpu-doctor]\nzzz = {}\n"])
def test_a_wrong_file_ends_a_verb_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(write(tmp_path, text))
    result = CliRunner().invoke(app, ["diagnose", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("mgpu-doctor: [tool.mgpu-doctor] in ")
    assert "Traceback" not in result.stderr


def test_an_ignored_finding_is_not_looked_for() -> None:
    case = synthetic_case(Synthetic(faults=[Fault(1, "forward", 20)]))
    assert [finding.code for finding in diagnose(case).findings] == ["straggler-compute"]
    ignored = Settings(ignore=frozenset({"straggler-compute"}))
    assert diagnose(case, ignored).findings == ()


def test_every_default_can_be_set() -> None:
    table = {rule.code: dict(rule.defaults) for rule in OWN}
    assert settings_from(table, OWN).values == table
