"""The parts of a rank's peak memory, and its prediction, on the rank's page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from textual.app import App

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.rank_output import Output
from mgpu_doctor.tui.screens.rank_memory import forecast_lines, peak_lines
from mgpu_doctor.tui.screens.rank_screen import RankScreen
from mgpu_doctor.tui.view import RankKey, View
from tests.support import diagnoses
from tests.support.frames import GIB, STRAGGLER, eight_gpus
from tests.support.memory_makeup import BIRTH, PARTS, on_a_gpu
from tests.support.metadata import with_metadata
from tests.support.screens import GOLDEN_SIZE, check_sizes, screen_text, until
from tests.support.synthetic import Synthetic, synthetic_case


@pytest.mark.parametrize(
    ("birth", "why"),
    [
        ({"memory_parts": None}, "no optimizer has reported"),
        ({"memory_parts": [diagnoses.HOSTILE]}, "no optimizer has reported"),
        ({"memory_parts": {**PARTS, "on": "cpu"}}, "not kept where it computes"),
        ({"device_memory": {}}, "its highest memory is not known"),
        ({"memory_parts": {**PARTS, "weights": 99 * GIB}}, "exceed its peak"),
    ],
)
def test_why_nobody_can_tell(birth: dict[str, Any], why: str) -> None:
    (line,) = peak_lines(on_a_gpu(**birth), 120)
    assert why in line.plain
    assert line.plain.endswith(".")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_bar_is_as_long_as_its_parts_and_the_legend_fits(width: int) -> None:
    head, bar, *legend = peak_lines(on_a_gpu(), width)
    assert head.plain == "peak   20 GiB of its GPU at most, made of"
    letters = bar.plain.strip()
    assert len(letters) == min(100, width - 7)
    assert letters.count("A") / len(letters) == pytest.approx(10 / 24, abs=0.04)
    assert all(line.cell_len <= max(width, 45) for line in legend)
    assert "W weights 2 GiB" in legend[0].plain
    assert "· unused cache 4 GiB" in legend[-1].plain


def test_what_is_predicted_of_all_ranks_and_the_batch_that_fits() -> None:
    case = synthetic_case(Synthetic(ranks=1, steps=400))
    (rank,) = case.ranks
    rank.steps["tokens"] = 100 + rank.steps["step"].astype(int) * 7 % 900
    peak_history = [[n, 8, 200 + 80 * n, GIB + (200 + 80 * n) * (1 << 20)] for n in range(9)]
    rank = with_metadata(rank, memory_peaks={"host": peak_history})
    sample = structs.replace(host(), processes={rank.pid or 0: (1.0, GIB)})
    case = replace(case, ranks=(rank,), host_samples=(sample,))
    told = replace(diagnoses.healthy(Outcome.RUNNING), case=case)
    (line,) = forecast_lines(told, rank)
    assert "by the largest batch so far (840 tokens); up to 3,072 fit" in line.plain
    assert list(forecast_lines(told, None)) == []
    all_ = Finding("oom-risk", Severity.WARNING, 0.9, diagnoses.HOSTILE, "")
    first, _ = forecast_lines(replace(told, findings=(all_,)), rank)
    assert "\x1b" not in first.plain
    over = replace(told, case=replace(case, job=replace(case.job, outcome=Outcome.COMPLETED)))
    assert list(forecast_lines(over, rank)) == []


def host() -> HostSample:
    """A host of 16 GiB of which 4 are left for the rank."""
    return HostSample(1.0, None, 2, None, 13 * GIB, 16 * GIB)


def with_parts() -> Frame:
    """Ranks of which everything is known."""
    assert STRAGGLER.diagnosis is not None
    case = STRAGGLER.diagnosis.case
    ranks = tuple(
        with_metadata(replace(rank, device=f"cuda:{rank.rank}"), **BIRTH) for rank in case.ranks
    )
    diagnosis = replace(STRAGGLER.diagnosis, case=replace(case, ranks=ranks))
    return structs.replace(STRAGGLER, diagnosis=diagnosis, devices=eight_gpus())


async def test_screen() -> None:
    class Host(App[None]):
        def on_mount(self) -> None:
            view = View(rank=RankKey(2, "node-a"))
            self.push_screen(
                RankScreen(with_parts(), view, read_output=lambda *_: Output(reason="nothing more"))
            )

    app = Host()
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await until(pilot, lambda: "nothing more" in screen_text(app), "the page")
        await check_sizes(pilot, "rank-memory")
