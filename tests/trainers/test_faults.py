import gc
import subprocess
import sys
import time
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mgpu_trainers import catalogue, faults
from mgpu_trainers.capabilities import UsageError
from mgpu_trainers.failure_faults import Exit, Kill, Leak
from mgpu_trainers.fault_spec import ALL, SpecError
from mgpu_trainers.faults import KINDS
from mgpu_trainers.planting import Fault, Planted
from mgpu_trainers.slow_faults import Heap, Slow, SlowLoader

NUMBERS = st.integers(1, 10**6).map(lambda thousandths: thousandths / 1000)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "rank": st.integers(ALL, 7),
    "phase": st.sampled_from(["input", "forward", "backward", "optimizer", "other"]),
    "burn": st.booleans(),
    "start": st.integers(1, 10**6),
    "every": st.integers(1, 10**6),
    "step": st.integers(1, 10**6),
    "mb": NUMBERS,
    "factor": st.integers(1000, 10**6).map(lambda thousandths: thousandths / 1000),
    "signal": st.sampled_from(["KILL", "SEGV", "TERM", "BUS"]),
    "code": st.integers(0, 255),
    "how": st.sampled_from(["sleep", "gc", "save"]),
    "call": st.sampled_from(["all_reduce", "broadcast"]),
}

HOGGED = """
import os
from threading import Event, Thread
from mgpu_trainers import faults, planting

over = Event()
Thread(target=over.wait).start()
planting.Planted(faults.parse(["hog:step=1"], ranks=2), rank=1).begin(1)
cores = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
print(len(set.union(*cores)))
over.set()
"""


@st.composite
def any_fault(draw: st.DrawFn) -> Fault:
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    names = [field.name for field in fields(kind)]
    values = {name: draw(VALUES[name]) for name in names if name in VALUES}
    if "factor" not in names and "ms" in names:
        values["ms"] = draw(NUMBERS)
    elif "ms" in names and (draw(st.booleans()) or values.get("phase") == "other"):
        values |= {"ms": draw(NUMBERS), "factor": None}
    return kind(**values)  # type: ignore[arg-type]  # the strategies fit the fields by name


@given(st.lists(any_fault(), min_size=1, max_size=3))
def test_a_fault_reads_back_from_its_own_text(planted: list[Fault]) -> None:
    assert faults.parse(["; ".join(map(str, planted))], ranks=8) == tuple(planted)


@given(st.text(alphabet="slowkile:=,; rankmsfct019.-²٣", max_size=40))
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    try:
        sentence = f"--fault {faults.parse([text], ranks=4)[0]}"
    except SpecError as refused:
        sentence = str(refused)
    assert sentence.startswith("--fault ")
    assert "\n" not in sentence


def test_defaults_and_spelling() -> None:
    text = "slow:phase=input,factor=1.5,from=5,every=2;kill;leak:rank=all,mb=4"
    assert faults.parse([text], ranks=2) == (
        Slow(rank=1, phase="input", factor=1.5, start=5, every=2),
        Kill(rank=1, step=10, signal="KILL"),
        Leak(rank=ALL, mb=4.0),
    )
    assert faults.parse(["slow-loader:ms=5"], ranks=1) == (SlowLoader(rank=ALL, ms=5.0),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("slo:ms=1", "position 1: there is no fault 'slo', only slow, slow-loader"),
        ("kill:step=4;hung", "position 13: there is no fault 'hung'"),
        ("kill; hung", "position 7: there is no fault 'hung'"),
        ("slow:rank=1,fase=input,ms=1", "position 13: slow has no key 'fase', only rank, ms"),
        ("slow:phase=imput,ms=1", "position 12: phase must be one of input, forward"),
        ("kill:step", "position 10: '=' and a value must follow step"),
        ("kill:step=0", "position 11: step must be 1 or more, not '0'"),
        ("kill:signal=9", "position 13: signal must be the name of a signal"),
        ("exit:code=256", "position 11: code must be an exit code, 0 to 255"),
        ("slow:ms=1,ms=2", "position 11: ms is there twice"),
        ("slow:ms=-1", "position 9: ms must be a number such as 20 or 1.5"),
        ("slow:factor=0.5", "position 13: factor must be 1 or more"),
        ("slow:ms=1,factor=2", "position 1: slow takes either ms= or factor="),
        ("slow:phase=other,factor=2", "position 1: phase=other takes ms="),
        ("stall:kind=nap", "position 12: kind must be one of sleep, gc, save, not 'nap'"),
        ("leak:rank=4", "there is no rank 4 among 4"),
    ],
)
def test_a_bad_text_is_refused_with_its_position(text: str, reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        faults.parse([text], ranks=4)
    assert reason in str(refused.value)


def test_a_rank_has_only_its_own_faults() -> None:
    everybody, second = SlowLoader(rank=ALL, ms=1.0), Exit(rank=1, step=1, code=7)
    assert Planted([everybody, second], rank=0).faults == (everybody,)
    assert Planted([everybody, second], rank=1).faults == (everybody, second)


def test_something_that_happens_once_happens_at_its_step() -> None:
    planted = Planted([Exit(step=3, code=7)], rank=1)
    planted.begin(1)
    planted.begin(2)
    with pytest.raises(SystemExit) as ended:
        planted.begin(3)
    assert ended.value.code == 7


def test_uneven_batches_are_the_ranks_own() -> None:
    uneven = faults.parse(["uneven:rank=1,factor=2.5"], ranks=2)
    assert Planted(uneven, rank=0).batch(8) == 8
    assert Planted(uneven, rank=1).batch(8) == 20


def test_who_has_the_first_ranks_data() -> None:
    one, everybody = (faults.parse([text], 4) for text in ("same-data:rank=2", "same-data"))
    parts = [Planted(one, rank).share(rank, 4) for rank in range(4)]
    assert parts == [(0, 4), (1, 4), (0, 4), (3, 4)]
    assert {Planted(everybody, rank).share(rank, 4) for rank in range(4)} == {(0, 4)}


def test_a_rank_leaves_a_step_out() -> None:
    skips = faults.parse(["skip-collective:rank=1,step=3"], 2)
    assert list(Planted(skips, 0).steps(range(1, 6))) == [1, 2, 3, 4, 5]
    assert list(Planted(skips, 1).steps(range(1, 6))) == [1, 2, 4, 5]


def refuse(trainer: str, fault: str) -> None:
    catalogue.command(catalogue.find(trainer), None, {"fault": fault})


def test_a_fault_is_refused_where_nothing_of_it_would_be_seen() -> None:
    with pytest.raises(UsageError, match=r"diverge is for torch-ddp, ray-torch, not torch-fsdp"):
        refuse("torch-fsdp", "diverge")
    with pytest.raises(UsageError, match="rank 0 of torch-ps is the server"):
        refuse("torch-ps", "same-data:rank=0")


def test_a_fault_is_due_from_a_step_on_and_every_so_often() -> None:
    fault = Slow(ms=1.0, start=3, every=2)
    assert [step for step in range(1, 9) if fault.is_due(step)] == [3, 5, 7]


@pytest.mark.parametrize("burn", [False, True])
def test_the_time_added_is_never_less_than_asked_for(burn: bool) -> None:
    began = time.perf_counter()
    assert Slow(factor=3.0, burn=burn).spend(natural=0.005) == pytest.approx(0.010)
    assert time.perf_counter() - began >= 0.010


def test_a_stall_comes_every_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    (fault,) = faults.parse(["stall:ms=50,every=3,from=2"], ranks=2)
    planted = Planted([fault], rank=1)
    stalled = []
    for step in range(1, 10):
        before = len(slept)
        planted.begin(step)
        stalled += [step] * (len(slept) - before)
    assert (stalled, slept) == ([2, 5, 8], [0.05] * 3)


def test_a_heap_grows_until_the_collector_takes_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def collect() -> None:
        nonlocal now
        now += len(Heap.kept) * 1e-7

    monkeypatch.setattr(gc, "collect", collect)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    try:
        Heap.grow(0.03)
        assert 300_000 <= len(Heap.kept) <= 400_000
    finally:
        Heap.kept.clear()


def test_nothing_is_attached_where_no_fault_is_planted() -> None:
    dataset = [1, 2]
    assert Planted([], rank=0).fetch(dataset, sum) == (dataset, sum)


@pytest.mark.parametrize(
    ("fault", "trainer"),
    [("missing", "torch-ddp"), ("missing", "tf-multiworker"), ("heavy-stage", "torch-pp")],
)
def test_what_is_of_one_rank_is_refused_for_all(fault: str, trainer: str) -> None:
    with pytest.raises(UsageError, match="of one rank"):
        refuse(trainer, f"{fault}:rank=all")


@pytest.mark.slow
def test_a_hog_keeps_all_threads_of_its_rank_to_one_core() -> None:
    ended = subprocess.run([sys.executable, "-c", HOGGED], capture_output=True, check=True)
    assert ended.stdout == b"1\n"


def test_hogs_are_bounded() -> None:
    assert faults.parse(["hog:processes=64"], ranks=2)
    with pytest.raises(SpecError, match="64 processes at most"):
        faults.parse(["hog:processes=65"], ranks=2)
