"""Inside an allocation with other hosts, a verb without options proposes the one that sees them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mgpu_doctor.check import preflight_session
from mgpu_doctor.check.preflight_reports import Preflight
from mgpu_doctor.cli import app
from mgpu_doctor.cli import top as top_verb
from mgpu_doctor.cli.host_options import propose_option
from mgpu_doctor.examine import case_sources
from mgpu_doctor.examine.subjects import UnknownSubject
from mgpu_doctor.tui.app import TopApp
from tests.support.frames import NOTHING
from tests.support.screens import Still, screen_text, until

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "4"}
SENTENCE = "this shell is inside Slurm job 4711 of 4 nodes: add --slurm 4711 to see them all"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("environment", "option"),
    [
        ({}, None),
        (SLURM, SENTENCE),
        (SLURM | {"SLURM_JOB_NUM_NODES": "1"}, None),
        (SLURM | {"SLURM_JOB_ID": "; rm"}, None),
        ({"SLURM_JOB_ID": "4711", "SLURM_NODELIST": "a[01-03]"}, "job 4711 of 3 nodes: add"),
        ({"SLURM_JOB_ID": "4711", "SLURM_NODELIST": "a[1,3-4]b[0-1],c"}, "of 7 nodes"),
        ({"SLURM_JOB_ID": "4711", "SLURM_NODELIST": "node-b"}, None),
        ({"SLURM_JOB_ID": "4711", "SLURM_NODELIST": "a[5]"}, None),
        ({"RAY_JOB_ID": "01000000"}, "if its cluster has other nodes, add --ray"),
        (POD, None),
        (POD | {"PET_NNODES": "1"}, None),
        (POD | {"PET_NNODES": "2:4"}, "inside one of several pods"),
        (POD | {"JOB_COMPLETION_INDEX": "1"}, "inside one of several pods"),
        (POD | {"JOB_COMPLETION_INDEX": "0"}, "if it has other pods, add --k8s SELECTOR"),
        ({"PET_NNODES": "2"}, None),
    ],
)
def test_the_option_of_the_engine_is_proposed(
    environment: dict[str, str], option: str | None
) -> None:
    proposal = propose_option(environment)
    assert proposal is None if option is None else option in str(proposal)


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose"],
        ["report"],
        ["trace"],
        ["top", "--once"],
        ["export", "--serve", "--token-file", "/nowhere"],
        ["preflight"],
    ],
)
def test_each_verb_says_so_in_one_line_and_only_without_options(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def no_job(*_: object) -> None:
        raise UnknownSubject("no job")

    monkeypatch.setattr(case_sources, "load_cases", no_job)
    monkeypatch.setattr(top_verb, "_make_source", lambda *_, **__: Still(NOTHING))
    monkeypatch.setattr(preflight_session, "run_preflight", lambda *_: Preflight(()))
    inside = CliRunner().invoke(app, words, env=SLURM)
    assert [line for line in inside.stderr.splitlines() if SENTENCE in line][1:] == []
    assert SENTENCE in inside.stderr
    assert SENTENCE not in CliRunner().invoke(app, words).stderr
    named = CliRunner().invoke(app, [words[0], "no-such-job", *words[1:]], env=SLURM)
    assert SENTENCE not in named.stderr


async def test_the_screen_shows_it_at_first() -> None:
    app = TopApp(Still(NOTHING), interval=3600, notice=SENTENCE)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: "--slurm 4711 to see them all" in screen_text(app), "the notice")
