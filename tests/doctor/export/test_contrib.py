"""The alerts, the dashboard and the Compose file in contrib/ agree with what the exporter emits."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.export import metrics_page
from mgpu_doctor.live.frame import Frame
from tests.support import frames
from tests.support.gpus import busy_waiting
from tests.support.scraping import Page

ROOT = Path(__file__).parents[3]
CONTRIB = ROOT / "contrib"
DASHBOARD = CONTRIB / "grafana/dashboards/mgpu-doctor.json"
yaml: Any = importlib.import_module("yaml")  # has no types

SELECTOR = re.compile(r"\b(mgpu_[a-z0-9_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")
NAMED = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
OF_TARGETS = {"instance", "job"}
"""Labels that Prometheus adds to every series of a target."""
UNITS = {"seconds": "s", "ratio": "percentunit", "bytes": "bytes", "celsius": "celsius"}
"""The end of a metric's name -> Grafana's name of its unit."""
COMPOSE = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "properties": {
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "oneOf": [{"required": ["image"]}, {"required": ["build"]}],
                "additionalProperties": False,
                "properties": {
                    "image": {"type": "string"},
                    "build": {
                        "type": "object",
                        "required": ["context"],
                        "additionalProperties": False,
                        "properties": {
                            "context": {"type": "string"},
                            "dockerfile": {"type": "string"},
                        },
                    },
                    "command": {"type": "array", "items": {"type": "string"}},
                    "environment": {
                        "type": "object",
                        "additionalProperties": {"type": ["string", "number", "null"]},
                    },
                    "network_mode": {"type": "string"},
                    "pid": {"type": "string"},
                    "user": {"type": "string"},
                    "volumes": {
                        "type": "array",
                        "items": {"type": "string", "pattern": "^[^ ]+:/[^:]+(:ro)?$"},
                    },
                },
            },
        }
    },
}
"""What the Compose Specification allows, of the keys that the file uses."""


def load(name: str) -> Any:
    return yaml.safe_load((CONTRIB / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def emitted() -> list[Page]:
    """Pages with ranks, GPUs and findings, as they are scraped."""
    gpus = DeviceSample(frames.AT, tuple(frames.gpu(index) for index in range(2)))
    shown = (
        *frames.ALL.values(),
        frames.frame(diagnose(busy_waiting())),
        Frame(frames.AT, "live", devices=gpus),
    )
    pages = (metrics_page.lines(metrics_page.families(frame, "node-a")) for frame in shown)
    return [Page((page + metrics_page.END).decode()) for page in pages]


def select(expression: str, pages: list[Page]) -> dict[str, list[dict[str, str]]]:
    """Each selector of a query -> the labels of the series that it selects from the pages."""
    selected: dict[str, list[dict[str, str]]] = {}
    for name, matchers in SELECTOR.findall(expression):
        tests = [
            (label, re.compile(value if how == "=~" else re.escape(value)))
            for label, how, value in MATCHER.findall(matchers)
        ]
        selected[f"{name}{{{matchers}}}"] = [
            labels
            for page in pages
            for labels in page.labels(name)
            if all(pattern.fullmatch(labels.get(label, "")) for label, pattern in tests)
        ]
    return selected


def check(expression: str, words: str, pages: list[Page]) -> None:
    """Each selector selects series, and these have the labels that the query groups by and that
    `words` name."""
    labels = set(NAMED.findall(words))
    for group in GROUPING.findall(expression):
        labels |= {label.strip() for label in group.split(",")}
    for selector, series in select(expression, pages).items():
        assert series, f"the exporter emits nothing for {selector}"
        assert any(labels - OF_TARGETS <= known.keys() for known in series), (selector, labels)


def panels() -> list[dict[str, Any]]:
    page = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return list(page["panels"])


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_shows_what_the_exporter_emits(panel: dict[str, Any], emitted: list[Page]) -> None:
    unit = panel["fieldConfig"]["defaults"].get("unit")
    for target in panel["targets"]:
        check(target["expr"], target["legendFormat"], emitted)
        (name, _), *_ = SELECTOR.findall(target["expr"])
        assert UNITS.get(name.rpartition("_")[2]) == unit


def test_alerts_are_about_what_the_exporter_emits(emitted: list[Page]) -> None:
    (group,) = load("prometheus-alerts.yml")["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    assert len(rules) == len(group["rules"]) >= 5
    for name, rule in rules.items():
        if name != "TrainingExporterDown":  # about Prometheus's own `up`
            check(rule["expr"], " ".join(rule["annotations"].values()), emitted)
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_a_query_of_a_metric_or_label_that_is_not_emitted_is_noticed(emitted: list[Page]) -> None:
    for expression, words in (
        ("mgpu_steps", ""),
        ('mgpu_finding_active{severity="fatal"}', ""),
        ("avg by (node) (mgpu_step_seconds)", ""),
        ("mgpu_gpu_lost == 1", "GPU {{ $labels.rank }}"),
    ):
        with pytest.raises(AssertionError):
            check(expression, words, emitted)


def test_the_compose_file_is_valid_and_its_files_exist() -> None:
    compose = load("compose.yml")
    jsonschema.validate(compose, COMPOSE)
    mounted = {}
    for service in compose["services"].values():
        if "build" in service:
            assert (
                CONTRIB / service["build"]["context"] / service["build"]["dockerfile"]
            ).is_file()
        for volume in service["volumes"]:
            source, target, *_ = re.sub(r"\$\{[^}]*\}", "HOME", volume).split(":")
            mounted[target] = source
            assert source == "HOME" or (CONTRIB / source).exists()
    verb, *options = compose["services"]["mgpu-doctor"]["command"]
    assert (verb, options) == ("export", ["--serve"])
    scraped = load("prometheus.yml")
    (job,) = scraped["scrape_configs"]
    token = Path(job["authorization"]["credentials_file"])
    assert mounted[str(token.parent)] == "HOME"
    assert token.name == "export-token"
    assert set(scraped["rule_files"]) <= mounted.keys()
    (provider,) = load("grafana/provisioning/dashboards/mgpu-doctor.yml")["providers"]
    assert provider["options"]["path"] in mounted
    (source,) = load("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert {panel["datasource"]["uid"] for panel in panels()} == {source["uid"]}


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24, "Grafana's columns"
