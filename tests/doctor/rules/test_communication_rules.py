"""Rules on communication: bound by it, poorly overlapped, needless; and healthy jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.analysis.machines.cpu_contention import Surroundings
from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.model import Case
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.communication import ddp_settings
from tests.support.gpus import timed
from tests.support.metadata import with_metadata
from tests.support.rule_limits import equal_counts_as
from tests.support.seeds import at_most
from tests.support.synthetic import Synthetic, synthetic_case

MIB = 1 << 20
DDP = {
    "find_unused_parameters": False,
    "static_graph": False,
    "bucket_cap_bytes": 25 * MIB,
    "parameter_bytes": 40 * MIB,
    "buckets": [1 * MIB, 25 * MIB, 14 * MIB],
    "forwards": 120,
    "synced": 120,
    "backward_seconds": 0.014,
    "communication_seconds": 0.012,
    "overlap_seconds": 0.010,
}
BUSY = 0.020
"""Communication, of a step of about 47 ms."""


def case(
    *, passes: int = 1, ddp: dict[str, Any] | None = None, birth: Any = (), **job: Any
) -> Case:
    module = {**DDP, **ddp} if ddp is not None else None
    facts = {
        "ddp": module,
        "optimizers": [{"class": "SGD"}],
        "steps": 120,
        "backend": "nccl",
        **dict(birth),
    }
    made = synthetic_case(Synthetic(birth=facts, **job))
    for rank in made.ranks:
        rank.steps["micro_batches"] = passes
    return made


def only(made: Case) -> Finding:
    (finding,) = diagnose(made).findings
    return finding


def codes(made: Case) -> list[str]:
    return [finding.code for finding in diagnose(made).findings]


# --- communication-bound --------------------------------------------------------------------------


def test_a_job_that_mostly_moves_data() -> None:
    finding = only(case(ddp={}, communication=BUSY))
    assert (finding.code, finding.severity) == ("communication-bound", Severity.WARNING)
    assert finding.culprits == ()
    assert "42 %" in finding.title
    assert finding.cost.step_fraction == pytest.approx(0.42 * 0.75, abs=0.02)
    assert [fix.id for fix in finding.fixes] == ["accumulate", "compress", "check-link"]
    predicted = finding.fixes[0].predicted
    assert predicted is not None
    assert predicted.step_time_ratio == pytest.approx(0.685, abs=0.02)


def test_a_job_that_accumulates_is_told_to_accumulate_more() -> None:
    """Four batches per exchange already, by `no_sync`: to repeat that would gain nothing."""
    finding = only(case(ddp={"synced": 30}, passes=4, communication=BUSY))
    assert finding.code == "communication-bound"
    fix = finding.fixes[0]
    assert "over 16 batches per exchange instead of 4" in fix.summary
    assert "(i + 1) % 16 == 0" in fix.how


def test_little_communication_is_silent() -> None:
    assert codes(case(ddp={}, communication=0.005)) == []


def test_cores_that_also_compute_are_to_blame_before_a_network() -> None:
    crowded = {"clock": "cpu", "affinity": 2, "backend": "gloo"}
    finding = only(case(ddp={}, birth=crowded, communication=BUSY))
    assert (finding.code, finding.severity) == ("communication-bound", Severity.INFO)
    assert "4 ranks share 2 cores" in finding.cause
    assert finding.fixes[0].id == "fewer-ranks"
    assert finding.cost.step_fraction is None
    free = only(case(ddp={}, birth={**crowded, "affinity": 16}, communication=BUSY))
    assert free.severity is Severity.WARNING


def test_a_loop_of_its_own_is_shown_where_it_waits() -> None:
    calls = [{"name": "all_reduce", "site": "train.py:36", "count": 720, "seconds": 2.4}]
    finding = only(case(birth={"calls": calls}, communication=BUSY))
    assert finding.code == "communication-bound"
    assert "all_reduce at train.py:36" in finding.cause
    assert finding.fixes[0].id == "use-ddp"


def test_a_hook_of_the_users_is_not_replaced() -> None:
    finding = only(case(ddp={"comm_hook": "bf16_compress_hook"}, communication=BUSY))
    assert "compress" not in [fix.id for fix in finding.fixes]


def test_devices_behind_the_host_are_judged_by_what_ddp_logged() -> None:
    behind = {"clock": "host"}
    exposed = {"communication_seconds": 0.03, "overlap_seconds": 0.01, "buckets": [8 * MIB] * 5}
    finding = only(case(ddp=exposed, birth=behind, device="cuda:0", communication=BUSY))
    assert finding.code == "communication-bound"
    assert "42 %" in finding.title
    assert codes(case(ddp={}, birth=behind, device="cuda:0", communication=BUSY)) == []


# --- accumulation-syncs ---------------------------------------------------------------------------


def test_every_micro_batch_exchanges_its_gradients() -> None:
    finding = only(case(passes=4, ddp={"forwards": 480, "synced": 480}, communication=BUSY))
    assert (finding.code, finding.severity) == ("accumulation-syncs", Severity.WARNING)
    assert "4 times per update" in finding.title
    assert "with contextlib.nullcontext() if last else model.no_sync():" in finding.fixes[0].how
    assert finding.cost.step_fraction == pytest.approx(0.75 * 0.42, abs=0.02)
    predicted = finding.fixes[0].predicted
    assert predicted is not None
    assert predicted.step_time_ratio == pytest.approx(1 - 0.75 * 0.42, abs=0.02)


def test_on_busy_cores_what_backward_hides_is_not_free() -> None:
    ddp = {"forwards": 480, "synced": 480}
    birth = {"clock": "cpu", "threads": 1, "affinity": 2}
    made = measure(case(passes=4, ddp=ddp, birth=birth, communication=BUSY))
    busy = Surroundings(running=0.6, main_running=0.36, queueing=0.1, all_queueing=0.5)
    free = Surroundings(running=0.6, main_running=0.36, queueing=0.1, all_queueing=0.1)
    saved = []
    for around in (busy, free):
        measures = replace(made, surroundings=dict.fromkeys(range(4), around))
        (finding,) = ddp_settings.RULES[0].examine(measures, {})
        saved.append(finding.cost.step_fraction or 0.0)
    # Of 12 ms, 10 are hidden; the threads that move data use 0.24 s of each second.
    assert saved[0] - saved[1] == pytest.approx(0.75 * 0.24 * 10 / 12, abs=1e-6)


def test_no_sync_in_the_wrong_half_is_half_the_fault() -> None:
    finding = only(case(passes=4, ddp={"forwards": 480, "synced": 240}, communication=0.007))
    assert finding.code == "accumulation-syncs"
    assert "2 times per update" in finding.title
    assert finding.cost.step_fraction == pytest.approx(0.5 * 0.2, abs=0.02)


@pytest.mark.parametrize(
    "healthy",
    [
        case(passes=4, ddp={"forwards": 480, "synced": 120}, communication=0.005),
        case(passes=1, ddp={}, communication=0.005),
        case(passes=4, communication=0.005),
        case(
            passes=2,
            ddp={"forwards": 240, "synced": 240},
            birth={"optimizers": [{"class": "Adam"}, {"class": "Adam"}]},
            communication=0.005,
        ),
    ],
    ids=["no_sync", "no accumulation", "no module", "an optimizer each"],
)
def test_exchanges_that_an_update_needs_are_no_fault(healthy: Case) -> None:
    assert codes(healthy) == []


# --- unused-parameter-scan ------------------------------------------------------------------------

SEARCHED = {
    "find_unused_parameters": True,
    "unused_bytes": 0,
    "graph_varies": False,
    "scans": 120,
    "scan_seconds": 0.24,
}


def test_a_search_that_finds_nothing_costs_its_time() -> None:
    finding = only(case(ddp=SEARCHED))
    assert (finding.code, finding.severity) == ("unused-parameter-scan", Severity.WARNING)
    assert "2 ms per step" in finding.title
    assert finding.cost.step_fraction == pytest.approx(2 / 29.5, abs=0.01)
    assert "ddp_find_unused_parameters=False" in finding.fixes[0].how


@pytest.mark.parametrize(
    ("lead", "at_most", "cost"), [(0, 0.001, 2 / 29.5), (0.3, 0.4, 0), (0, 0.02, None)]
)
def test_a_search_costs_nothing_while_the_devices_have_work(
    lead: float, at_most: float, cost: float | None
) -> None:
    searching = case(ddp=SEARCHED, birth={"clock": "device"}, device="cuda:0")
    finding = only(timed(searching, lead, at_most))
    share = finding.cost.step_fraction
    assert share is None if cost is None else share == pytest.approx(cost, abs=0.01)
    assert finding.severity is (Severity.WARNING if cost else Severity.INFO)
    assert "2 ms" in finding.title
    assert bool(finding.fixes[0].predicted) == bool(cost)


def test_it_is_paid_in_each_pass_that_exchanges() -> None:
    finding = only(case(passes=4, ddp={**SEARCHED, "forwards": 480, "synced": 120}))
    assert "2 ms per step" in finding.title


@pytest.mark.parametrize(
    "needed",
    [
        {"find_unused_parameters": False},
        {"unused_bytes": 4096},
        {"graph_varies": True},
        {"unused_bytes": None},
        {"static_graph": True},
    ],
    ids=["no search", "something is unused", "now and then", "unknown", "searched once"],
)
def test_a_search_that_may_be_needed_is_left_alone(needed: dict[str, Any]) -> None:
    assert codes(case(ddp={**SEARCHED, **needed})) == []


def test_one_rank_that_needs_the_search_is_enough() -> None:
    made = case(ddp=SEARCHED)
    other = with_metadata(made.ranks[3], ddp={**DDP, **SEARCHED, "unused_bytes": 64})
    ranks = (*made.ranks[:3], other)
    assert codes(replace(made, ranks=ranks)) == []


def test_what_was_seen_in_samples_only_is_less_sure() -> None:
    sampled = only(case(ddp={**SEARCHED, "graph_varies": None}))
    assert sampled.confidence < only(case(ddp=SEARCHED)).confidence
    assert "that was checked" in sampled.cause


def test_an_untimed_search_has_no_cost() -> None:
    finding = only(case(ddp={**SEARCHED, "scan_seconds": None}))
    assert finding.severity is Severity.INFO
    assert finding.cost.step_fraction is None
    assert finding.fixes[0].predicted is None


# --- overlap-poor ---------------------------------------------------------------------------------

ONE_BUCKET = {
    "bucket_cap_bytes": 1000 * MIB,
    "buckets": [40 * MIB],
    "communication_seconds": 0.012,
    "overlap_seconds": 0.0,
}


def test_one_bucket_hides_nothing() -> None:
    finding = only(case(ddp=ONE_BUCKET, communication=0.012))
    assert (finding.code, finding.severity) == ("overlap-poor", Severity.WARNING)
    assert "0 %" in finding.title
    assert "bucket_cap_mb=1000" in finding.cause
    assert "bucket_cap_mb=5" in finding.fixes[0].how
    # 12 ms moved one after the other beside 14 ms of backward: the last bucket stays.
    assert finding.cost.seconds_per_step == pytest.approx(0.0105, abs=0.001)


def test_the_same_on_busy_cores_promises_nothing() -> None:
    crowded = {"clock": "cpu", "affinity": 2, "backend": "gloo"}
    found = next(
        finding
        for finding in diagnose(case(ddp=ONE_BUCKET, birth=crowded, communication=0.012)).findings
        if finding.code == "overlap-poor"
    )
    assert found.severity is Severity.INFO
    assert found.fixes[0].predicted is None
    assert found.cost.step_fraction is None


@pytest.mark.parametrize(
    "healthy",
    [
        {},
        {**ONE_BUCKET, "buckets": [2 * MIB]},
        {**ONE_BUCKET, "communication_seconds": None},
        {**ONE_BUCKET, "buckets": [8 * MIB] * 5},
    ],
    ids=["default", "small model", "not logged", "even buckets"],
)
def test_buckets_that_cannot_be_blamed(healthy: dict[str, Any]) -> None:
    assert "overlap-poor" not in codes(case(ddp=healthy, communication=0.006))


@given(
    backward=st.sampled_from([0.0, 1e-9, 1e-4, 0.02]),
    moved=st.sampled_from([0.0, 1e-9, 1e-4, 0.02]),
    hidden=st.sampled_from([0.0, 1e-4, 0.02, 1.0]),
    communication=st.sampled_from([0.0, 1e-6, 0.01]),
    buckets=st.lists(st.integers(1, 200 * MIB), min_size=1, max_size=3),
)
@settings(max_examples=at_most(60), deadline=None)
def test_no_log_of_buckets_stops_the_diagnosis(
    backward: float, moved: float, hidden: float, communication: float, buckets: list[int]
) -> None:
    logged = {
        **ONE_BUCKET,
        "buckets": buckets,
        "backward_seconds": backward,
        "communication_seconds": moved,
        "overlap_seconds": hidden,
    }
    for found in diagnose(case(ddp=logged, communication=communication)).findings:
        assert found.cost.step_fraction is None or 0 <= found.cost.step_fraction <= 1


# --- sync-excess ----------------------------------------------------------------------------------


def calling(name: str, count: int = 120, seconds: float = 0.36, **more: Any) -> dict[str, Any]:
    call = {"name": name, "site": "train.py:50", "count": count, "seconds": seconds, "elements": 1}
    return {"calls": [{**call, **more}]}


def test_a_barrier_in_every_step() -> None:
    finding = only(case(ddp={}, birth=calling("barrier")))
    assert (finding.code, finding.severity) == ("sync-excess", Severity.WARNING)
    assert (
        finding.title
        == "barrier at train.py:50 synchronizes all ranks in every step: 3 ms per step"
    )
    assert finding.fixes[0].id == "no-barrier"
    cheap = only(case(birth=calling("barrier", seconds=0.012)))
    assert cheap.severity is Severity.INFO


def test_the_rank_that_waits_least_tells_what_a_barrier_costs() -> None:
    made = case(ddp={}, birth=calling("barrier"))
    last = with_metadata(made.ranks[1], **calling("barrier", seconds=0.06))
    finding = only(replace(made, ranks=(made.ranks[0], last, *made.ranks[2:])))
    assert finding.cost.seconds_per_step == pytest.approx(0.0005)


def test_objects_for_the_log_in_every_step() -> None:
    finding = only(case(birth=calling("all_gather_object")))
    assert finding.code == "sync-excess"
    assert "pickled" in finding.cause
    assert finding.fixes[0].id == "less-often"


@pytest.mark.parametrize(
    "more",
    [{"elements": 64 * 128}, {"elements": None}, {"through": "distributed/algorithms/join.py"}],
    ids=["embeddings", "size unknown", "torch itself"],
)
def test_what_training_itself_exchanges_beside_ddp_is_left_alone(more: dict[str, Any]) -> None:
    assert diagnose(case(ddp={}, birth=calling("all_gather", **more))).findings == ()


def test_a_number_beside_ddp_is_worth_knowing_and_no_more() -> None:
    finding = only(case(ddp={}, birth=calling("all_reduce")))
    assert (finding.code, finding.severity) == ("sync-excess", Severity.INFO)
    assert finding.cost.step_fraction is None
    assert "step % 50" in finding.fixes[0].how


@pytest.mark.parametrize(
    "healthy",
    [
        case(birth=calling("all_reduce")),
        case(ddp={"comm_hook": "hook"}, birth=calling("all_reduce")),
        case(ddp={}, birth=calling("all_gather_into_tensor")),
        case(ddp={}, birth=calling("all_reduce", count=24 * 120)),
        case(ddp={}, birth=calling("barrier", count=3)),
        case(ddp={}, birth={**calling("barrier", count=4), "steps": 4}),
    ],
    ids=["own loop", "own hook", "batch norm", "many layers", "now and then", "few steps"],
)
def test_collectives_that_are_the_training_are_no_excess(healthy: Case) -> None:
    assert codes(healthy) == []


PACKAGES = "/venv/lib/python3.12/site-packages"


def from_package(file: str, *names: str, seconds: float = 0.36) -> dict[str, Any]:
    site = f"{PACKAGES}/{file}:207"
    call = {"site": site, "count": 120, "seconds": seconds, "elements": 1}
    rows = [{"name": name, **call} for name in names]
    return {"calls": rows}


@pytest.mark.parametrize(
    ("file", "framework", "typed"),
    [
        ("lightning/fabric/utilities/distributed.py", "Lightning", "on_epoch=True"),
        ("lightning_fabric/utilities/distributed.py", "Lightning", "sync_dist=False"),
        ("torchmetrics/utilities/distributed.py", "TorchMetrics", "dist_sync_on_step=False"),
        ("accelerate/utils/operations.py", "Accelerate", "step % 50"),
        ("transformers/trainer_pt_utils.py", "transformers", "logging_steps=50"),
    ],
)
def test_what_a_framework_calls_is_reported_by_the_setting_that_asks_for_it(
    file: str, framework: str, typed: str
) -> None:
    finding = only(case(ddp={}, birth=from_package(file, "barrier", "all_reduce")))
    assert (finding.code, finding.severity) == ("sync-excess", Severity.WARNING)
    assert finding.title == f"{framework} synchronizes all ranks in every step: 6 ms per step"
    assert f"{framework} calls all_reduce and barrier for " in finding.cause
    (fix,) = finding.fixes
    assert typed in fix.how
    assert PACKAGES not in fix.how


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("lightning/pytorch/loops/training_epoch_loop.py", "broadcast"),
        ("somebody/loop.py", "barrier"),
        ("deepspeed/comm/torch.py", "all_reduce"),
    ],
)
def test_nobody_is_blamed_for_calls_of_a_package(file: str, name: str) -> None:
    assert codes(case(ddp={}, birth=from_package(file, name))) == []


def test_the_users_own_lines_are_reported_beside_those_of_a_framework() -> None:
    calls = from_package("torchmetrics/utilities/distributed.py", "barrier")["calls"]
    both = {"calls": calls + calling("barrier")["calls"]}
    findings = diagnose(case(ddp={}, birth=both)).findings
    assert [one.code for one in findings] == ["sync-excess"] * 2
    assert {one.fixes[0].id for one in findings} == {"no-barrier", "less-often"}


def test_gradients_that_a_package_exchanges_ask_for_no_wrapper() -> None:
    called = from_package("somebody/loop.py", "all_reduce", seconds=2.4)
    (found,) = [
        finding
        for finding in diagnose(case(birth=called, communication=BUSY)).findings
        if finding.code == "communication-bound"
    ]
    assert "use-ddp" not in {fix.id for fix in found.fixes}
    assert "site-packages" not in found.cause


def test_what_a_barrier_costs_behind_a_device_is_unknown() -> None:
    behind = {"clock": "host", **calling("barrier")}
    finding = only(case(birth=behind, device="cuda:0"))
    assert finding.severity is Severity.INFO
    assert finding.cost.step_fraction is None


def test_a_barrier_on_hosts_that_are_not_ahead_costs_their_time() -> None:
    on_devices = case(birth={"clock": "device", **calling("barrier")}, device="cuda:0")
    cost = only(case(birth=calling("barrier"))).cost.step_fraction
    assert only(timed(on_devices, 0, 0.001)).cost.step_fraction == pytest.approx(cost)
    assert only(timed(on_devices, 0.3, 0.4)).cost.step_fraction is None


def test_one_rank_alone_has_nobody_to_wait_for() -> None:
    assert codes(case(birth=calling("barrier"), ranks=1)) == []


def test_what_equals_a_limit_of_communication_counts() -> None:
    bound = case(ddp={}, communication=BUSY)
    (share, *_) = only(bound).evidence
    assert equal_counts_as(bound, "communication-bound", "share", share.value) == "more"
    hidden = case(ddp=ONE_BUCKET, communication=BUSY)
    gain = only(hidden).cost.step_fraction
    assert equal_counts_as(hidden, "overlap-poor", "gain", gain) == "more"


@pytest.mark.parametrize(
    ("mebibytes", "crowded", "reported"),
    [(25, True, False), (26, True, True), (25, False, True), (None, True, True)],
)
def test_on_busy_cores_only_larger_buckets_than_usual_are_reported(
    mebibytes: int | None, crowded: bool, reported: bool
) -> None:
    birth = {"clock": "cpu", "affinity": 2 if crowded else 16, "backend": "gloo"}
    cap = {"bucket_cap_bytes": None if mebibytes is None else mebibytes * MIB}
    made = case(ddp={**ONE_BUCKET, "buckets": [25 * MIB], **cap}, birth=birth, communication=0.012)
    assert ("overlap-poor" in codes(made)) is reported


@pytest.mark.parametrize(("elements", "reported"), [(1024, True), (1025, False)])
def test_a_thousand_numbers_are_for_a_log(elements: int, reported: bool) -> None:
    made = case(ddp={}, birth=calling("all_reduce", elements=elements))
    assert ("sync-excess" in codes(made)) is reported


@pytest.mark.parametrize(
    ("steps", "count", "reported"),
    [(20, 20, True), (19, 19, False), (120, 108, True), (120, 107, False), (120, 481, False)],
)
def test_a_barrier_counts_if_it_comes_in_nearly_every_step(
    steps: int, count: int, reported: bool
) -> None:
    made = case(birth={**calling("barrier", count=count), "steps": steps})
    assert ("sync-excess" in codes(made)) is reported


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_two_ranks_are_enough_to_synchronize_too_often(ranks: int) -> None:
    made = case(birth=calling("barrier"), ranks=ranks)
    assert ("sync-excess" in codes(made)) is (ranks > 1)


def test_the_rank_with_the_fewest_exchanges_tells_how_often() -> None:
    made = case(passes=4, ddp={"forwards": 480, "synced": 480}, communication=0.007)
    fewer = with_metadata(made.ranks[2], ddp={**DDP, "forwards": 480, "synced": 240})
    finding = only(replace(made, ranks=(*made.ranks[:2], fewer, made.ranks[3])))
    assert finding.code == "accumulation-syncs"
    assert finding.evidence[0].value == 2
