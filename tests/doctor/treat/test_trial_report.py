"""The result of a session as JSON, which keeps docs/treat.schema.json, and as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from mgpu_doctor.advice.treatment_catalogue import TREATMENTS
from mgpu_doctor.treat.treatment_plan import Candidate, Unfit
from mgpu_doctor.treat.trial_report import TrialReport, choose_treatments, render_json
from mgpu_doctor.treat.trial_session import Session
from mgpu_doctor.treat.trial_table import render_report
from tests.support.simulated_trials import CRASH, SimulatedJob

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs" / "treat.schema.json").read_text(encoding="utf-8")
)


def made(*, stopped: bool = False, noise: float = 0.001) -> TrialReport:
    job = SimulatedJob(
        np.random.default_rng(3),
        {"loader-workers": 0.7, "ddp-bucket-view": 0.85, "optimizer-fused": 1.3},
        {"ddp-no-search": CRASH},
        between_runs=noise,
        within_runs=0.01,
        stalls=0.0,
        loss_change={"ddp-static-graph": 0.5},
    )
    session = Session(job.run, budget=1e4, steps=60, clock=job.clock, report=lambda *_: None)
    session.measure_baseline()
    tried = ("loader-workers", "ddp-bucket-view", "optimizer-fused", "ddp-no-search", "gc-freeze")
    for name in (*tried, "ddp-static-graph"):
        session.try_values({name: 2 if name == "loader-workers" else True})
    if combined := session.combine(session.outcomes()):
        session.try_values(combined)
    outcomes = session.outcomes()
    return TrialReport(
        command=("torchrun", "train.py"),
        private=True,
        baseline=session.baseline,
        runs=len(session.plain),
        steps=60,
        memory_bytes=1 << 30,
        codes=("input-bound",),
        candidates=[Candidate("loader-workers", 2, 0.65, ("input-bound",))],
        outcomes=outcomes,
        unfit=[
            Unfit("threads", "each rank has 2 already"),
            Unfit("tf32", "no GPU is used"),
            Unfit("interop-threads", "each rank has 2 already"),
        ],
        kept=choose_treatments(outcomes),
        by_memory=False,
        complete=not stopped,
    )


def test_the_json_keeps_its_schema() -> None:
    content = json.loads(render_json(made()))
    jsonschema.validate(content, SCHEMA)
    verdicts = [(*each["values"], each["verdict"], each["runs"]) for each in content["treatments"]]
    assert verdicts == [
        ("loader-workers", "helps", 2),
        ("ddp-bucket-view", "helps", 2),
        ("optimizer-fused", "worse", 2),
        ("ddp-no-search", "fails", 0),
        ("gc-freeze", "no-difference-shown", 1),
        ("ddp-static-graph", "changes-the-loss", 2),
        ("loader-workers", "ddp-bucket-view", "helps", 2),
    ]
    workers = content["treatments"][0]
    assert abs(workers["saved"]["step_fraction"] - 0.3) < 0.02
    assert workers["saved"]["low"] < 0.3 < workers["saved"]["high"]
    assert workers["predicted_step_time_ratio"] == 0.65
    assert workers["sites"] == ["train.py:3"]
    assert content["kept"] == {"loader-workers": 2, "ddp-bucket-view": True}
    jsonschema.validate(json.loads(render_json(made(stopped=True))), SCHEMA)


def test_the_text_fits_and_names_lines_and_places() -> None:
    text = render_report(made(), width=100, unicode=True)
    for line in (
        "ddp-no-search: rank 0 failed.",
        "Switched on and off within the same runs: optimizer-fused, gc-freeze.",
        "Do not fit: threads, interop-threads (each rank has 2 already); tf32 (no GPU is used).",
        "  DataLoader(..., num_workers=2, persistent_workers=True)  at train.py:3",
    ):
        assert line in text.splitlines()
    assert max(map(len, text.splitlines())) <= 125
    kept = text.splitlines()[-2:]
    assert render_report(made(), width=40, unicode=True).splitlines()[-2:] == kept  # to be copied
    assert render_report(made(), width=100, unicode=False).isascii()


def test_what_saves_memory_is_shown_with_its_spread_and_its_price() -> None:
    job = SimulatedJob(
        np.random.default_rng(4),
        {"activation-checkpointing": 1.5},
        memory_ratios={"activation-checkpointing": 0.5},
        between_runs=0.001,
        within_runs=0.01,
        stalls=0.0,
    )
    session = Session(
        job.run, budget=1e4, steps=60, clock=job.clock, report=lambda *_: None, by_memory=True
    )
    session.measure_baseline()
    session.try_values({"activation-checkpointing": True})
    outcomes = session.outcomes()
    report = replace(
        made(), outcomes=outcomes, by_memory=True, kept=choose_treatments(outcomes), unfit=[]
    )
    content = json.loads(render_json(report))
    jsonschema.validate(content, SCHEMA)
    (outcome,) = content["treatments"]
    assert (content["goal"], outcome["verdict"]) == ("memory", "helps")
    assert outcome["memory"]["saved"]["low"] > 0.4
    text = render_report(report, width=140, unicode=True)
    (row,) = (line for line in text.splitlines() if line.startswith("activation-checkpointing"))
    shown = r"helps +1 GiB ± [\d.]+ MiB → 5\d\d MiB ± [\d.]+ [KM]iB +-50 % .*\+50 % "
    assert re.search(shown, row), row
    assert render_report(report, width=140, unicode=False).isascii()


@pytest.mark.parametrize(
    ("noise", "said"),
    [(0.15, r"Differences of less than about \d\d %"), (0.5, "Even large differences")],
)
def test_noise_that_hides_differences_is_named(noise: float, said: str) -> None:
    assert "could not be shown" not in render_report(made(), width=100, unicode=True)
    noisy = " ".join(render_report(made(noise=noise), width=100, unicode=True).split())
    assert re.search(f"{said} could not be shown: equal runs of the job differ too much", noisy)


def test_the_documentation_lists_every_treatment_with_what_it_may_change() -> None:
    page = (Path(__file__).parents[3] / "docs" / "treat.md").read_text(encoding="utf-8")
    table = page[page.index("| treatment |") :].partition("\n\n")[0]
    listed = [row.split(" | ") for row in table.splitlines() if row.startswith("| `")]
    assert [(name, effect.removesuffix(" |")) for name, _, effect in listed] == [
        (f"| `{each.name}{'' if each.is_switch else '=N'}`", each.effect.value)
        for each in TREATMENTS.values()
    ]
