"""The curves of the whole run and its events in the report's page."""

from __future__ import annotations

import base64
import re
from dataclasses import replace

import numpy as np
from msgspec import structs

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case
from mgpu_doctor.case.model import Event as Told
from mgpu_doctor.report.html.charts import GRAPH_COLUMNS, MOST_HOSTS, MOST_MARKS, render_run
from mgpu_doctor.report.html.event_strip import MOST_MOMENTS, event_strip
from mgpu_doctor.report.html.sections import MOST_EVENTS, event_section
from mgpu_doctor.report.html.step_lanes import LANE_PHASES, MOST_LANES, MOST_STEPS, render_lanes
from mgpu_doctor.report.job_events import Kind, TimelineEvent
from mgpu_doctor.report.redaction.redact import no_redaction
from mgpu_doctor.report.verdict import Tone
from tests.support import diagnoses
from tests.support.gpus import gpus, on_gpus
from tests.support.synthetic import Synthetic, synthetic_case

JOB = Synthetic(ranks=2, steps=60)
START = 1500.0


def sampled(*seconds: float, cpu: float | None = 50.0, host: str = "a") -> Case:
    """A job without steps: only its host was sampled."""
    rows = tuple(HostSample(START + at, cpu, 2, None, 1, 4, host=host) for at in seconds)
    case = synthetic_case(JOB)
    none = tuple(replace(rank, steps=rank.steps[:0]) for rank in case.ranks)
    return replace(case, ranks=none, host_samples=rows)


def curves(markup: str) -> dict[str, int]:
    """Title -> unbroken pieces of its curve."""
    found = re.findall(r"<figcaption[^>]*>([^<]*)</figcaption>.*?</figure>", markup, re.DOTALL)
    pieces = [one.count("<polyline") for one in markup.split("<figure")[1:]]
    return dict(zip(found, pieces, strict=True))


def test_steps_host_and_gpus_are_drawn() -> None:
    case = on_gpus(JOB, gpus(2))
    host = case.ranks[0].host
    rows = sampled(0, 5, 10, host=host).host_samples
    drawn = curves(render_run(replace(case, host_samples=rows)))
    of_host = [f"host {host}: cores in use", f"host {host}: memory in use"]
    assert list(drawn)[:3] == ["time of a step, rank 0", *of_host]
    of_gpus = [f"GPU {n}: {what}" for n in (0, 1) for what in ("busy", "memory in use")]
    assert list(drawn)[3:] == of_gpus


def test_of_many_hosts_those_of_the_culprits_are_drawn() -> None:
    case = on_gpus(JOB, gpus(2))
    ranks = tuple(replace(rank, host=f"node{rank.rank}") for rank in case.ranks)
    names = [f"node{number}" for number in range(-9, len(ranks))]
    rows = [row for name in names for row in sampled(0, 5, 10, host=name).host_samples]
    last = len(ranks) - 1
    many = replace(case, ranks=ranks, host_samples=tuple(rows))
    drawn = curves(render_run(many, frozenset({last})))
    assert f"host node{last}: cores in use" in drawn
    assert len([title for title in drawn if "cores in use" in title]) == MOST_HOSTS


def test_what_was_not_sampled_is_a_gap() -> None:
    assert curves(render_run(sampled(*range(100))))["host a: cores in use"] == 1
    late = (*range(40), *range(70, 100))
    assert curves(render_run(sampled(*late)))["host a: cores in use"] == 2


def test_a_curve_keeps_within_its_graph_and_is_bounded() -> None:
    case = synthetic_case(Synthetic(ranks=2, steps=4000))
    case.ranks[0].steps["wall_ns"][5] *= 1000
    markup = render_run(case)
    heights = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", markup)]
    assert min(heights) >= 0
    assert max(heights) <= 90
    assert markup.count("<rect") <= GRAPH_COLUMNS


def test_nothing_is_drawn_of_nothing() -> None:
    assert render_run(sampled()) == ""
    assert render_run(sampled(1)) == ""
    assert render_run(sampled(1, 1)) == "", "two samples of one moment are no run"
    assert "cores in use" not in render_run(sampled(0, 5, cpu=None))


def test_names_are_only_names() -> None:
    markup = render_run(sampled(0, 5, host='<script>alert("x")</script>'))
    assert "<script" not in markup
    assert "&lt;script" in markup


def test_what_happened_is_reported_in_order_and_findings_are_not_reported_again() -> None:
    markup = event_section(diagnoses.failed())
    assert "was started" in markup
    assert markup.index("was started") < markup.index("ended")
    assert diagnoses.failed().findings[0].title not in markup
    assert "<script" not in markup


def test_of_very_many_events_the_newest_are_reported() -> None:
    job = synthetic_case(JOB)
    notes = tuple(
        Told("note", START + number, number, 0.0, 0.0, f"note {number}")
        for number in range(MOST_EVENTS + 9)
    )
    noted = replace(job, ranks=(replace(job.ranks[0], events=notes), *job.ranks[1:]))
    told = event_section(replace(diagnoses.healthy(), case=noted))
    assert "left out" in told
    assert f"note {MOST_EVENTS + 8}<" in told
    assert "note 0<" not in told


def test_gpus_of_several_hosts_are_drawn_host_by_host() -> None:
    case = on_gpus(JOB, gpus(1))
    rows = tuple(
        structs.replace(sample, host=host) for host in "ab" for sample in sampled(0, 5).host_samples
    )
    samples = tuple(
        structs.replace(sample, host=host) for host in "ab" for sample in case.device_samples
    )
    drawn = curves(render_run(replace(case, host_samples=rows, device_samples=samples)))
    busy = [title for title in drawn if title.endswith("busy")]
    assert busy == ["host a, GPU 0: busy", "host b, GPU 0: busy"]
    assert {"host a: cores in use", "host b: cores in use"} <= drawn.keys()


def test_gpus_of_nobody_knows_which_of_several_hosts_are_not_drawn_as_one() -> None:
    case = on_gpus(JOB, gpus(1))
    rows = tuple(
        structs.replace(sample, host=host) for host in "ab" for sample in sampled(0, 5).host_samples
    )
    drawn = curves(render_run(replace(case, host_samples=rows)))
    assert not any("GPU" in title for title in drawn)


def test_what_went_wrong_is_marked_in_every_curve() -> None:
    bad, said = Tone.CRITICAL, "<b>fell</b>"
    events = (
        TimelineEvent(Kind.ERRORS, START + 2, "rank 1", said, bad),
        TimelineEvent(Kind.ERRORS, START + 99, "rank 1", "after the last sample", bad),
        TimelineEvent(Kind.ERRORS, None, "rank 1", "nobody knows when", bad),
        TimelineEvent(Kind.RANKS, START + 3, "rank 1", "joined"),
    )
    markup = render_run(sampled(0, 5, 10), events=events)
    assert markup.count('class="event critical"') == markup.count("<figure") == 2
    assert "rank 1: &lt;b&gt;fell&lt;/b&gt;" in markup
    assert 'x="120.0"' in markup
    many = [replace(events[0], at=START + 10 * n / 99) for n in range(99)]
    assert render_run(sampled(0, 5, 10), events=many).count('class="event') == 2 * MOST_MARKS


def test_lanes_are_bounded_and_hold_the_longest_step_and_the_culprit() -> None:
    case = synthetic_case(Synthetic(ranks=40, steps=4000))
    for rank in case.ranks:
        rank.steps["wall_ns"][2000] *= 50
    markup = render_lanes(case.ranks, frozenset({33}), START)
    lanes = re.findall(r'data-name="rank (\d+)" data-steps="([^"]+)"', markup)
    assert len(lanes) == MOST_LANES
    assert "33" in dict(lanes)
    assert "24 more ranks not drawn" in markup
    assert len(markup) < 1_500_000
    raw = base64.b64decode(dict(lanes)["33"])
    count = len(raw) // (12 + 4 * len(LANE_PHASES))
    assert count == MOST_STEPS
    numbers = np.frombuffer(raw[-4 * count :], "<i4")
    assert {0, 2000, 3999} <= set(numbers.tolist())


def test_the_strip_shows_the_gravest_moments_between_start_and_end() -> None:
    strip = event_strip(diagnoses.straggler(), no_redaction())
    moments = re.findall(r'<li class="(\w+)">', strip)
    assert 2 <= len(moments) <= MOST_MOMENTS
    assert "warning" in moments
    assert strip.index("the job was started") < strip.index("straggler-input")
    assert "<script" not in event_strip(diagnoses.failed(), no_redaction())
