"""What preflight concludes from measurements: who is named, who is busy, what is noise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mgpu_doctor.check.check_result import Level
from mgpu_doctor.check.preflight_outliers import (
    BUSY_CORES,
    HALF,
    LONG_ROUND_TRIP,
    SLOW_LINK,
    SLOWER,
    find_slow_hosts,
)
from mgpu_doctor.check.preflight_reports import (
    AllReduce,
    CollectiveTest,
    Compute,
    Contention,
    Disk,
    Gpu,
    Gpus,
    Greeting,
    HostTests,
    Link,
    LinkTest,
    Memory,
    Preflight,
    parse,
)
from mgpu_doctor.check.preflight_session import pair_up
from mgpu_doctor.check.preflight_verdicts import judge, render_json
from mgpu_doctor.cluster.engine import Trouble

QUIET = Contention(seconds=1.0, own=2.0, others=0.0)


def host(
    name: str,
    *,
    speed: float = 2e9,
    memory: float = 30e9,
    read: float = 1e-3,
    cores: float = 2.0,
    used: float = 2.0,
    others: float = 0.0,
    quota: float | None = None,
    gpus: Gpus | None = None,
) -> HostTests:
    around = Contention(seconds=1.0, own=used, others=others, quota=quota)
    return HostTests(
        name,
        Greeting(host=name, boot=name, python="3.11", cores=cores, address="10.0.0.1"),
        compute=(Compute((speed,), (used,), cores, 2, "_hashlib", around),),
        memory=(Memory((memory,), 2, around),),
        disk=(Disk("/tmp", "ext4", 1 << 17, (read,), None, around),),
        gpus=gpus,
    )


def named(tests: Preflight) -> set[tuple[str, str, tuple[str, ...]]]:
    """Test, level and hosts of every result that names a host."""
    return {
        (checked.check.id, checked.result.level.value, checked.result.hosts)
        for checked in judge(tests)
        if checked.result.hosts
    }


def test_equal_hosts_are_silent() -> None:
    tests = Preflight((host("a"), host("b", speed=1.9e9, memory=29e9, read=1.1e-3), host("c")))
    assert named(tests) == set()
    assert not any(checked.is_improvable for checked in judge(tests))


@pytest.mark.parametrize(
    ("test", "measure", "usual"), [("compute", "speed", 2e9), ("memory", "memory", 30e9)]
)
def test_a_slow_host_is_named_from_the_limit_on(test: str, measure: str, usual: float) -> None:
    for share, expected in ((SLOWER[test] + 0.01, True), (SLOWER[test] - 0.01, False)):
        slow: dict[str, Any] = {measure: usual * (1 - share)}
        found = named(Preflight((host("a"), host("b", **slow))))
        assert found == ({(test, "warn", ("b",))} if expected else set())


def test_a_slow_host_that_is_busy_is_not_accused() -> None:
    for others, level in ((BUSY_CORES, "note"), (BUSY_CORES - 0.01, "warn")):
        tests = Preflight((host("a"), host("b", speed=1e9, others=others), host("c")))
        assert named(tests) == {("compute", level, ("b",))}


def test_a_host_with_less_than_a_core_is_not_slow_in_memory_as_well() -> None:
    for quota, expected in ((0.99, []), (1.0, ["b"])):
        hosts = (host("a"), host("b", memory=1e9, quota=quota), host("c"))
        assert [slow.name for slow in find_slow_hosts("memory", hosts)] == expected


def test_the_best_round_counts() -> None:
    noisy = host("b", speed=1e9)
    assert [slow.name for slow in find_slow_hosts("compute", (host("a"), noisy))] == ["b"]
    better = noisy.with_round("compute", host("b").compute[0])
    assert find_slow_hosts("compute", (host("a"), better)) == ()


def test_speeds_of_different_code_are_not_compared() -> None:
    other = host("b").with_round("compute", Compute((1e9,), (2.0,), 2, 2, "_sha2", QUIET))
    alone = HostTests("b", other.greeting, compute=other.compute[1:])
    assert find_slow_hosts("compute", (host("a"), alone)) == ()


def test_slow_reads_count_only_if_they_are_long() -> None:
    assert named(Preflight((host("a"), host("b", read=2.1e-3)))) == {("disk", "warn", ("b",))}
    short = Preflight((host("a", read=0.1e-3), host("b", read=0.5e-3)))
    assert named(short) == set()


def test_a_quota_and_a_hidden_one_are_named() -> None:
    tests = Preflight((host("a"), host("b", cores=0.3, used=0.3, quota=0.3)))
    assert named(tests) == {("cores", "warn", ("b",))}
    assert named(Preflight((host("a"), host("b", cores=1.5, used=1.5, quota=1.5)))) == set()
    assert named(Preflight((host("a", cores=0.5, quota=0.5),))) == {("cores", "warn", ("a",))}
    assert named(Preflight((host("a"), host("b", used=0.6)))) == {("cores", "warn", ("b",))}
    assert named(Preflight((host("a"), host("b", used=0.6, others=1.4)))) == set()


def link(source: str, target: str, there: float = 1e9, back: float = 1e9, **more: Any) -> LinkTest:
    times = (more.pop("trip", 1e-4),)
    return LinkTest(source, target, Link(times, (there,), (back,), contention=QUIET, **more))


def test_all_links_of_a_host_are_slow_in_one_direction() -> None:
    hosts = tuple(map(host, "abcd"))
    links = (
        link("a", "b"),
        link("a", "c", back=1e6),
        link("a", "d"),
        link("b", "c", back=1e6),
        link("b", "d"),
        link("c", "d", there=1e6),
    )
    found = named(Preflight(hosts, links))
    assert found == {("links", "warn", ("c",))}


def test_one_slow_link_is_a_pair() -> None:
    hosts = tuple(map(host, "abcd"))
    names = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
    for speed, expected in ((HALF * 1e9 - 1, True), (HALF * 1e9, False)):
        links = [link(*pair, there=speed if pair == ("b", "c") else 1e9) for pair in names]
        found = named(Preflight(hosts, tuple(links)))
        assert found == ({("links", "warn", ("b", "c"))} if expected else set())


def test_a_single_link_is_compared_with_what_is_usual() -> None:
    hosts = (host("a"), host("b"))
    for speed, trip, expected in (
        (SLOW_LINK - 1, 1e-4, True),
        (SLOW_LINK, 1e-4, False),
        (1e9, LONG_ROUND_TRIP, True),
        (1e9, LONG_ROUND_TRIP * 0.99, False),
    ):
        found = named(Preflight(hosts, (link("a", "b", there=speed, trip=trip),)))
        assert bool(found) == expected


def test_busy_hosts_explain_a_slow_link_but_not_a_very_slow_one() -> None:
    hosts = (host("a"), host("b"))
    loaded = Contention(seconds=1.0, own=1.0, others=1.0)
    for speed, level in ((0.5 * SLOW_LINK, "note"), (0.05 * SLOW_LINK, "warn")):
        test = LinkTest("a", "b", Link((1e-4,), (speed,), (1e9,)), loaded)
        assert named(Preflight(hosts, (test,))) == {("links", level, ("a", "b"))}


def gpu(index: int, flops: float = 6e14, used: float = 0.0, trouble: str | None = None) -> Gpu:
    return Gpu(index, "H100", used, (flops,), (2e12,), (5e10,), (5e10,), trouble)


def test_gpus_are_compared_with_their_model() -> None:
    equal = Gpus("2.8", "12.8", (gpu(0), gpu(1)))
    assert named(Preflight((host("a", gpus=equal),))) == set()
    slow = Gpus("2.8", "12.8", (gpu(0), gpu(1, 4e14)))
    found = named(Preflight((host("a", gpus=equal), host("b", gpus=slow))))
    assert found == {("gpus", "warn", ("b",))}
    used = Gpus("2.8", "12.8", (gpu(0), gpu(1, 4e14, used=9e9)))
    found = named(Preflight((host("a", gpus=equal), host("b", gpus=used))))
    assert found == {("gpus", "note", ("b",))}
    lost = Gpus("2.8", "12.8", (gpu(0),))
    found = named(Preflight((host("a", gpus=equal), host("b", gpus=lost))))
    assert found == {("gpus", "fail", ("b",))}


def test_what_cannot_be_tested_is_said() -> None:
    gone = HostTests("c", trouble=Trouble("ssh fails", "look"))
    ranks = (("a", AllReduce(trouble="no route")), ("b", AllReduce(small=(1e-3,), large=(1e-2,))))
    broken = link("a", "b", trouble="timed out")
    tests = Preflight((host("a"), host("b"), gone), (broken,), CollectiveTest("gloo", ranks))
    assert named(tests) == {
        ("hosts", "fail", ("c",)),
        ("links", "fail", ("a", "b")),
        ("collective", "fail", ("a",)),
    }
    document = json.loads(render_json(judge(tests), tests))
    assert document["improvable"] == 3
    assert document["hosts"][2]["trouble"] == "ssh fails"
    assert {check["level"] for check in document["checks"]} <= {level.value for level in Level}


def test_nothing_that_a_host_sends_is_taken_unchecked() -> None:
    for report in ({}, {"speeds": "x"}, {"speeds": [float("inf")]}, {"trouble": ["x"]}):
        assert isinstance(parse(report, Compute), str)
    assert parse({"trouble": "no memory"}, Memory) == "no memory"


def test_every_pair_is_tested_once_and_nobody_twice_at_a_time() -> None:
    for count in (2, 3, 8, 9):
        rounds = list(pair_up(range(count)))
        pairs = [frozenset(pair) for one in rounds for pair in one]
        assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
        assert all(len({*sum(one, ())}) == 2 * len(one) for one in rounds)
