"""The alerts and the dashboard in contrib/ name metrics that the exporter documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONTRIB = ROOT / "contrib"
METRIC = re.compile(r"\bmgpu_[a-z0-9_]+")


@pytest.mark.parametrize("name", ["prometheus-alerts.yml", "grafana/dashboards/mgpu-doctor.json"])
def test_every_metric_is_one_of_the_exporter(name: str) -> None:
    documented = set(METRIC.findall((ROOT / "docs/export.md").read_text(encoding="utf-8")))
    named = set(METRIC.findall((CONTRIB / name).read_text(encoding="utf-8")))
    assert len(named) >= 4
    assert named <= documented


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    page = json.loads((CONTRIB / "grafana/dashboards/mgpu-doctor.json").read_text(encoding="utf-8"))
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in page["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24, "Grafana's columns"
