"""What is known of the hosts of a job, and how old it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, State
from mgpu_doctor.cluster.engine import Trouble
from mgpu_doctor.cluster.host_channel import HostState, Link
from mgpu_doctor.live.host_statuses import HOST_GONE, SILENT, UNANSWERED, list_hosts
from tests.support.synthetic import Synthetic, synthetic_case

NOW = 5000.0
LIVE = HostState("login-a", "node-a", Link.LIVE, 0.4, None, 0, 0.0)


def case_of(samples: Iterable[HostSample] = (), state: State = State.RUNNING) -> Case:
    """A job of two ranks, one on each of two hosts."""
    made = synthetic_case(Synthetic(2, steps=20))
    ranks = tuple(
        replace(rank, host=f"node-{'ab'[place]}", state=state)
        for place, rank in enumerate(made.ranks)
    )
    ordered = tuple(sorted(samples, key=lambda sample: sample.at))
    return replace(made, ranks=ranks, observed=NOW, host_samples=ordered)


def sampled(host: str, ago: float, **facts: int) -> HostSample:
    return HostSample(NOW - ago, 50.0, host=host, traffic=facts)  # type: ignore[arg-type]


def test_the_newest_sample_of_each_host_and_its_rates() -> None:
    samples = [
        sampled("node-a", 9, sent=0),
        sampled("node-a", 5, sent=1000, read=500),
        sampled("node-a", 1, sent=9000, read=100),
        sampled("node-b", 2),
        sampled("elsewhere", 0),
    ]
    first, second = list_hosts(case_of(samples))
    assert (first.name, first.heard, first.silent) == ("node-a", 1.0, False)
    assert first.sample is samples[2]
    assert first.rates == {"sent": 2000.0}, "what was read went down: the host was restarted"
    assert (second.sample, second.rates) == (samples[3], {})


@pytest.mark.parametrize(
    ("ago", "before", "state", "silent"),
    [
        (HOST_GONE - 1, HOST_GONE, State.RUNNING, False),
        (HOST_GONE + 1, HOST_GONE + 2, State.RUNNING, True),
        (HOST_GONE + 1, HOST_GONE + 21, State.RUNNING, False),
        (100, 101, State.EXITED, False),
        (100, 101, State.WAITING, True),
    ],
)
def test_a_host_of_a_recording_is_silent_while_its_ranks_live(
    ago: float, before: float, state: State, *, silent: bool
) -> None:
    samples = [sampled("node-b", before), sampled("node-b", ago)]
    first, second = list_hosts(case_of(samples, state))
    assert second.silent is silent
    assert second.heard == (None if state is State.EXITED else ago)
    assert (first.silent, first.heard, first.sample) == (False, None, None)


def test_connected_hosts_are_as_old_as_their_last_message() -> None:
    gone = HostState(
        "login-b", "node-b", Link.BROKEN, 45.0, Trouble("connection reset", "wait"), 7, 3600.0
    )
    first, second = list_hosts(case_of([sampled("node-b", 46)]), (LIVE, gone))
    assert (first.name, first.heard, first.silent, first.trouble) == ("node-a", 0.4, False, None)
    assert (second.name, second.heard, second.silent) == ("node-b", 45.0, True)
    assert (second.trouble, second.lost, second.ahead) == ("connection reset", 7, 3600.0)
    assert second.sample is not None, "what was known of it stays"
    quiet = list_hosts(case_of(), (replace(LIVE, age=SILENT), replace(gone, link=Link.LIVE)))
    assert [(host.silent, host.trouble) for host in quiet] == [(True, None), (True, None)]


def test_hosts_that_never_joined_come_last_and_others_jobs_hosts_do_not() -> None:
    refused = HostState("node-c", None, Link.BROKEN, None, Trouble("refused", "look"), 0, 0.0)
    opening = HostState("node-d", None, Link.OPENING, None, None, 0, 0.0)
    idle = replace(LIVE, name="node-e", node="node-e")
    hosts = list_hosts(case_of(), (refused, opening, idle, LIVE))
    assert [(host.name, host.trouble) for host in hosts] == [
        ("node-a", None),
        ("node-b", None),
        ("node-c", "refused"),
        ("node-d", UNANSWERED),
    ]


def test_ranks_in_containers_are_as_old_as_what_their_host_sent() -> None:
    outside = replace(LIVE, name="gpu-1", node="gpu-1", age=SILENT + 1)
    for other, silent in (
        (replace(outside, name="gpu-2", node="gpu-2", age=0.2), False),
        (outside, True),
    ):
        hosts = list_hosts(case_of(), (outside, other))
        assert [(host.name, host.silent) for host in hosts] == [
            ("node-a", silent),
            ("node-b", silent),
        ]
