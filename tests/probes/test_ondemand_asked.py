"""Ranks that are asked for a trace through their sockets: pretend ranks with real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.outside.stacks.rank_replies import NoReply, RankRequest, Reply, ask_rank
from mgpu_probes.outside.traces import probe_tracing
from mgpu_probes.outside.traces.probe_tracing import LocalRanks, trace_ranks
from mgpu_probes.outside.traces.trace_requests import TakenTrace, TraceRequest

from tests.support.traced_ranks import TracedRank


@contextmanager
def ranks(folder: Path, *ends: Mapping[str, object]) -> Iterator[list[TracedRank]]:
    folder.chmod(0o700)
    made = [
        TracedRank(folder / f"node.{place}.0.box", {"rank": place, **end})
        for place, end in enumerate(ends)
    ]
    try:
        yield made
    finally:
        for one in made:
            one.close()


def take(made: list[TracedRank], wanted: TraceRequest, folder: Path) -> list[TakenTrace]:
    sockets = {os.getpid() + place: one.path for place, one in enumerate(made)}
    return trace_ranks(LocalRanks(sockets), wanted, folder, lambda _: None)


def test_a_rank_without_a_socket_takes_no_requests(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    reply = ask_rank(str(tmp_path / "node.0.sock"), (os.getpid(), None), RankRequest("trace_state"))
    assert (reply.failure, reply.why) == (NoReply.FAILED, "its probe takes no requests")


def test_all_ranks_are_reported_the_same_steps(tmp_path: Path) -> None:
    done = {"state": "done", "steps": 3}
    (folder := tmp_path / "traces").mkdir()
    with ranks(tmp_path, done, done) as made:
        taken = take(made, TraceRequest(steps=3), folder)
        began = [one for rank in made for one in rank.asked if one.startswith("trace_begin")]
    assert began == ["trace_begin?at=42&steps=3&milliseconds=30000"] * 2
    assert [(one.rank, one.path, one.why) for one in taken] == [
        (0, folder / "rank0.json", None),
        (1, folder / "rank1.json", None),
    ]
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600, 0o600]
    assert not list(tmp_path.glob("*.trace.json"))


def test_why_there_is_none(tmp_path: Path) -> None:
    refusal = {"state": "failed", "why": "the disk of its recording has 3 MiB left"}
    with ranks(tmp_path, refusal, {"state": "done", "why": "the process forked another"}) as made:
        (folder := tmp_path / "traces").mkdir()
        taken = take(made, TraceRequest(seconds=2.0), folder)
    whys = {one.why: one.path for one in taken}
    assert whys == {refusal["why"]: None, "the process forked another": folder / "rank1.json"}


@pytest.mark.slow
def test_that_the_time_is_over_is_only_reported_who_wanted_steps(tmp_path: Path) -> None:
    (folder := tmp_path / "traces").mkdir()
    with ranks(tmp_path, {"state": "done", "why": probe_tracing.TIME_OVER}) as made:
        (timed,) = take(made, TraceRequest(seconds=2.0), folder)
        (stepped,) = take(made, TraceRequest(steps=50), folder)
    assert (timed.why, stepped.why) == (None, probe_tracing.TIME_OVER)


def test_who_does_not_listen_is_no_reason_to_leave_the_others(tmp_path: Path) -> None:
    (folder := tmp_path / "traces").mkdir()
    with ranks(tmp_path, {"state": "done"}) as made:
        gone = str(tmp_path / "gone.sock")
        sockets = {1: made[0].path, 2: gone}
        taken = trace_ranks(LocalRanks(sockets), TraceRequest(), folder, lambda _: None)
    assert [one.path is not None for one in taken] == [True, False]


def test_who_asked_goes_and_the_ranks_are_reported(tmp_path: Path) -> None:
    def interrupted(sentence: str) -> None:
        if sentence.startswith("tracing"):
            raise KeyboardInterrupt

    with ranks(tmp_path, {"state": "tracing"}) as made:
        rank = LocalRanks({os.getpid(): made[0].path})
        with pytest.raises(KeyboardInterrupt):
            trace_ranks(rank, TraceRequest(), tmp_path, interrupted)
        assert made[0].asked[-1] == "trace_cancel"


def test_a_rank_whose_trace_is_another_request_s_is_not_cancelled(tmp_path: Path) -> None:
    refusal = {"state": "failed", "why": "it is being traced already"}

    def interrupted(sentence: str) -> None:
        if sentence.startswith("tracing"):
            raise KeyboardInterrupt

    with ranks(tmp_path, {"state": "tracing"}, refusal) as made:
        sockets = LocalRanks({os.getpid() + place: one.path for place, one in enumerate(made)})
        with pytest.raises(KeyboardInterrupt):
            trace_ranks(sockets, TraceRequest(), tmp_path, interrupted)
        assert ["trace_cancel" in one.asked for one in made] == [True, False]


def test_a_job_that_stands_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_tracing, "STILL", 0.3)
    with ranks(tmp_path, {"state": "waiting"}) as made:
        (taken,) = take(made, TraceRequest(), tmp_path)
        assert made[0].asked[-1] == "trace_cancel"
    assert "mgpu-doctor diagnose" in str(taken.why)


@pytest.mark.parametrize(
    "message", [b"", b"[" * 5000, b"[]", b'{"told": -1, "rank": "0", "why": 3}']
)
def test_a_stranger_s_answer_is_no_trouble(message: bytes) -> None:
    state = probe_tracing.parse_state(Reply(message))
    if isinstance(state, str):
        assert state == "its answer is not that of a probe"
        return
    assert (state.rank, state.told, state.why) == (None, 0, None)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1))
def test_the_beginning_lies_ahead_of_every_rank(steps: list[tuple[int, int]]) -> None:
    before = [one for one, _ in steps]
    after = [one + more for one, more in steps]
    at = probe_tracing.choose_first_step(before, after)
    assert at >= max(after) + 2 + max(more for _, more in steps)
