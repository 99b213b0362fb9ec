"""A comparison as one JSON object (docs/compare.schema.json)."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.comparing.compared_run import Run
from mgpu_doctor.analysis.comparing.comparison import Comparison, Fitted
from mgpu_doctor.analysis.comparing.run_pairs import Pair
from mgpu_doctor.analysis.comparing.scaling import Point
from mgpu_doctor.analysis.comparing.step_time_noise import ERROR_RATE, Interval, Level
from mgpu_doctor.report import comparison_text
from mgpu_doctor.report.diagnosis_json import plain

SCHEMA = "mgpu-doctor/compare/1"


def render(compared: Comparison) -> str:
    """The object as indented ASCII JSON that ends in a newline."""
    return json.dumps(document(compared), indent=2, allow_nan=False) + "\n"


def document(compared: Comparison) -> dict[str, Any]:
    """Returns the object itself. Seconds, bytes, fractions 0..1; unknown is None."""
    scaling, best = compared.scaling, compared.best
    report: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "verdict": comparison_text.headline(compared).sentence,
            "unit": compared.unit,
            "error_rate": ERROR_RATE,
            "runs": [_run(compared, place, run) for place, run in enumerate(compared.runs)],
            "left_out": [{"name": run.name, "reason": run.reason} for run in compared.left_out],
            "differs": compared.differs,
            "pairs": [_pair(pair) for pair in compared.pairs],
            "scaling": {
                "reference": comparison_text.letter(scaling.reference),
                "growth": scaling.growth,
                "reason": scaling.reason,
            },
            "best": None
            if best is None
            else {
                "run": comparison_text.letter(best.place),
                "fastest": comparison_text.letter(best.fastest),
            },
            "laws": [_law(law) for law in compared.laws],
            "spread": compared.spread,
            "loss": compared.loss,
            "notes": list(comparison_text.further_sentences(compared)),
        }
    )
    return report


def _run(compared: Comparison, place: int, run: Run) -> dict[str, Any]:
    scaled = compared.scaling.runs[place]
    return {
        "run": comparison_text.letter(place),
        "name": run.name,
        "settings": run.settings,
        "ranks": run.ranks,
        "steps": run.steps,
        "step_seconds": {"mean": _level(run.mean), "median": _level(run.median)},
        "step_work": {"samples": run.work.samples, "tokens": run.work.tokens},
        "rate": run.rate(compared.unit),
        "phases": {phase: run.phases.get(phase) for phase in PHASES},
        "waiting": run.in_collectives,
        "waiting_reason": run.in_collectives_reason,
        "memory": None
        if run.memory is None
        else {
            "kind": run.memory.kind,
            "most": run.memory.most,
            "ranks": {str(rank): size for rank, size in run.memory.ranks.items()},
        },
        "memory_reason": run.memory_reason,
        "speed_up": _interval(scaled.speed_up),
        "efficiency": scaled.efficiency,
        "seconds_to_loss": None
        if compared.loss is None or run.losses is None
        else run.losses.seconds_to(compared.loss),
        "shared_cores": [asdict(shared_cores) for shared_cores in run.shared],
    }


def _level(level: Level) -> dict[str, Any]:
    return {"seconds": level.seconds, "bound": level.bound}


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "first": comparison_text.letter(pair.first),
        "second": comparison_text.letter(pair.second),
        "change": pair.change,
        "time_ratio": _interval(pair.whole),
        "usual_time_ratio": _interval(pair.usual),
        "reason": pair.reason,
    }


def _interval(interval: Interval | None) -> dict[str, float] | None:
    return (
        None
        if interval is None
        else {"ratio": interval.ratio, "low": interval.low, "high": interval.high}
    )


def _law(fitted: Fitted) -> dict[str, Any]:
    law = fitted.law
    return {
        "runs": [comparison_text.letter(place) for place in fitted.places],
        "reason": fitted.reason,
        "growth": None if law is None else law.growth,
        "own": None if law is None else law.own,
        "crowding": None if law is None else law.crowding,
        "waiting": None if law is None else law.waiting,
        "moving": None if law is None else law.moving,
        "margin": None if law is None else law.margin,
        "predicted": [] if law is None else [_point(point) for point in law.predicted],
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "ranks": point.ranks,
        "step_seconds": point.total,
        "work": point.work,
        "wait": point.wait,
        "communication": point.communication,
    }
