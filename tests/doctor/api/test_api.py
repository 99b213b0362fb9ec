"""The Python API: the data of the JSON contract, typed, and one exception."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from mgpu_doctor import api
from mgpu_doctor.api import verb_requests
from mgpu_doctor.api.notebook_views import MOST_ROWS, Card, render_html, render_text
from mgpu_doctor.cli import app
from tests.support.recordings import HEALTHY, SLOW_INPUT, WAITING, recording

DOCS = Path(__file__).parents[3] / "docs"
SCHEMAS = {api.Diagnosis: "diagnosis", api.Comparison: "compare", api.Plan: "plan"}
run = CliRunner()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recording(folder / "before", [HEALTHY] * 2)
    recording(folder / "slow", [WAITING, SLOW_INPUT])
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))


def resolve(schema: Any, part: Any) -> Any:
    """The part of the schema that describes objects or lists; None if it describes values."""
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    for choice in part.get("anyOf", part.get("oneOf", ())):
        found = resolve(schema, choice)
        if found is not None:
            return found
    return part if "properties" in part or "items" in part else None


def find_structs(kind: Any) -> list[type[msgspec.Struct]]:
    """The structs that a type is made of, in tuples and unions."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [found for part in typing.get_args(kind) for found in find_structs(part)]


def compare_with_schema(schema: Any, part: Any, kind: type[msgspec.Struct]) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    properties = part["properties"]
    assert fields.keys() == properties.keys(), kind.__name__
    required = {name for name, field in fields.items() if field.required}
    assert required == set(part["required"]), kind.__name__
    for name, field in fields.items():
        below = resolve(schema, properties[name])
        structs = find_structs(field.type)
        if below is not None and "items" in below:
            below = resolve(schema, below["items"])
        if typing.get_origin(field.type) is Mapping or below is None:
            assert structs == []
            continue
        (struct,) = structs
        compare_with_schema(schema, below, struct)


@pytest.mark.parametrize("kind", SCHEMAS, ids=SCHEMAS.values())
def test_the_types_have_the_keys_of_the_schema(kind: type[msgspec.Struct]) -> None:
    schema = json.loads((DOCS / f"{SCHEMAS[kind]}.schema.json").read_text(encoding="utf-8"))
    compare_with_schema(schema, schema, kind)


def test_a_diagnosis_is_that_of_the_verb(runs: Path) -> None:
    diagnosis = api.diagnose(runs / "slow")
    done = run.invoke(app, ["diagnose", str(runs / "slow"), "--json"])
    assert json.loads(diagnosis.to_json()) == json.loads(done.stdout)
    assert api.Diagnosis.from_json(done.stdout) == diagnosis
    assert (done.exit_code, diagnosis.exit_code) == (1, 1)
    finding = diagnosis.find("straggler-input")
    assert finding is not None
    assert (finding.ranks, finding.severity, finding.victims) == ((1,), "warning", (0,))
    assert finding.gain is not None
    assert finding.gain.step_time_ratio == finding.fixes[0].predicted.step_time_ratio  # type: ignore[union-attr]
    with pytest.raises(AttributeError):
        finding.code = "other"  # type: ignore[misc]
    assert diagnosis.find("loss-nan") is None


def test_a_comparison_is_that_of_the_verb(runs: Path) -> None:
    comparison = api.compare(runs / "before", runs / "slow")
    done = run.invoke(app, ["compare", str(runs / "before"), str(runs / "slow"), "--json"])
    assert json.loads(comparison.to_json()) == json.loads(done.stdout)
    (pair,) = comparison.pairs
    assert (pair.change, pair.slower_by_more_than(0.05)) == ("slower", True)
    assert not pair.slower_by_more_than(1.0)
    assert str(comparison).startswith("B is slower than A")


def test_a_healthy_job_has_no_card_of_trouble(runs: Path) -> None:
    diagnosis = api.diagnose(runs / "before")
    assert diagnosis.exit_code == 0
    assert str(diagnosis).startswith("No warning or worse\n")


@pytest.mark.parametrize(
    ("call", "code", "verb"),
    [
        (lambda: api.diagnose("nowhere"), 3, ["diagnose", "nowhere"]),
        (lambda: api.compare("nowhere", "other"), 3, ["compare", "nowhere", "other"]),
        (lambda: api.plan("nothing"), 2, ["plan", "nothing"]),
        (lambda: api.plan("gpt-nano", gpu="huge"), 2, ["plan", "gpt-nano", "--gpu", "huge"]),
        (
            lambda: api.plan("gpt-nano", precision="fp8"),
            2,
            ["plan", "gpt-nano", "--precision", "fp8"],
        ),
        (
            lambda: api.plan("torch-single", ranks=2),
            2,
            ["plan", "torch-single", "--ranks", "2"],
        ),
    ],
    ids=["diagnose", "compare", "plan", "gpu", "precision", "ranks"],
)
def test_an_error_has_the_sentence_and_the_code_of_the_verb(
    call: Any, code: int, verb: list[str]
) -> None:
    with pytest.raises(api.DoctorError) as caught:
        call()
    done = run.invoke(app, verb)
    assert (caught.value.exit_code, done.exit_code) == (code, code)
    assert done.stderr == f"mgpu-doctor: {caught.value}\n"


def test_numbers_that_the_command_line_would_refuse_are_refused() -> None:
    for options in ({"batch": 0}, {"accumulate": 257}, {"ranks": 0}, {"limit": float("nan")}):
        with pytest.raises(api.DoctorError, match="must be from 1 to") as caught:
            verb_requests.plan_memory(
                verb_requests.PlanOptions(name="gpt-nano", **options), lambda _: None
            )
        assert caught.value.exit_code == 2


def test_several_jobs_are_no_single_diagnosis(runs: Path) -> None:
    with pytest.raises(api.DoctorError, match="2 jobs were found") as caught:
        api.diagnose(runs / "slow", runs / "before")
    assert caught.value.exit_code == 2
    assert len(api.diagnose_all(runs / "slow", runs / "before")) == 2


def test_short_views_hold_no_markup_of_foreign_texts() -> None:
    row = ("warning", "<script>alert(1)</script>", "\x1b[31mred")
    card = Card("<b>head", "about & more", ("a", "b", "c"), (row,) * (MOST_ROWS + 3), ("<i>note",))
    page, text = render_html(card), render_text(card)
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;head" in page
    assert "\x1b" not in page + text
    assert page.count("<tr>") == MOST_ROWS + 1
    assert "3 more rows are left out." in text


def test_importing_the_api_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom mgpu_doctor import api\n"
        "heavy = ('numpy', 'torch', 'textual', 'rich', 'mgpu_doctor.case', 'mgpu_doctor.rules')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_everything_public_is_documented() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    functions = [name for name in api.__all__ if isinstance(getattr(api, name), types.FunctionType)]
    assert functions
    assert [name for name in functions if f"`{name}(" not in page] == []
