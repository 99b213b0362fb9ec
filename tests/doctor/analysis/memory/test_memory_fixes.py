"""Fixes for memory are predicted and ranked, and not proposed if they save nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from mgpu_doctor.advice.treatment_catalogue import TREATMENTS
from mgpu_doctor.analysis.memory.allocator import GIB, MIB
from mgpu_doctor.analysis.memory.device_memory import GPUS, Gpu, find_gpu
from mgpu_doctor.analysis.memory.fix_search import Advice, Offer, advise
from mgpu_doctor.analysis.memory.fixes import FIXES as ALL_FIXES
from mgpu_doctor.analysis.memory.fixes import accumulate, smaller_batch, wanted_traces
from mgpu_doctor.analysis.memory.memory_plan import (
    Checkpointing,
    Framework,
    Optimizer,
    Plan,
    Settings,
    Strategy,
)
from mgpu_doctor.analysis.memory.prediction import Prediction, largest_batch, predict
from mgpu_doctor.analysis.memory.traced_streams import Traces
from tests.doctor.analysis.memory.allocation_streams import KEPT, LOGITS, Job

FIXES = ALL_FIXES[Framework.TORCH]
BATCH = 8
OWN = Settings(BATCH)
FULL = replace(OWN, checkpointing=Checkpointing.FULL)
ONE, ONE_FULL = replace(OWN, batch=1), replace(FULL, batch=1)
SGD = replace(OWN, optimizer=Optimizer.SGD)


def device(mebibytes: float) -> Gpu:
    return Gpu("made up", int(mebibytes * MIB), "as given")


def traces_of(*, logits: int = LOGITS, kept: int = KEPT) -> Traces:
    make = partial(Job, logits=logits, kept=kept)
    made = {
        OWN: make(BATCH),
        replace(OWN, batch=BATCH // 2): make(BATCH // 2),
        FULL: make(BATCH, recomputed=True),
        SGD: make(BATCH, states=0),
    }
    return Traces({settings: each.stream() for settings, each in made.items()})


@pytest.fixture(scope="module")
def traces() -> Traces:
    return traces_of()


@pytest.fixture(scope="module")
def heavy() -> Traces:
    """Weights and states are all that counts."""
    return traces_of(logits=512, kept=4096)


def predicted(plan: Plan, traces: Traces) -> Prediction:
    found = predict(plan, traces)
    assert found is not None
    return found


def advised(plan: Plan, traces: Traces, on: Gpu | None = None) -> Advice:
    found = advise(plan, traces, on)
    assert found is not None
    return found


def offered(advice: Advice) -> dict[str, Offer]:
    return {offer.fix.id: offer for offer in advice.offers}


def ids(fixes: Iterable[object]) -> set[str]:
    return {fix.fix.id for fix in fixes}  # type: ignore[attr-defined]


def test_three_numbers_and_what_comes_on_top(traces: Traces) -> None:
    found = predicted(Plan(OWN), traces)
    assert found.allocated <= found.capacity <= found.reserved
    assert found.composition.total == found.allocated
    assert found.needed == found.capacity + sum(each.size for each in found.outside)
    spread = sum(each.size + each.margin for each in found.outside)
    assert found.needed_at_most == int(found.capacity * 1.03) + spread
    expandable = predicted(Plan(OWN, expandable=True), traces)
    assert expandable.needed_at_most == int(expandable.capacity * 1.1) + spread
    assert found.basis == "traced"
    assert found.fits(device(found.needed_at_most / MIB + 1))
    assert not found.fits(device(found.needed / MIB))


def test_ranks_pay_for_their_communicator(traces: Traces) -> None:
    alone = predicted(Plan(OWN), traces).outside
    pair = predicted(Plan(OWN, Strategy.DDP, 2), traces).outside
    many = predicted(Plan(OWN, Strategy.DDP, 8), traces).outside
    assert [len(each) for each in (alone, pair, many)] == [2, 3, 3]
    assert many[-1].size > pair[-1].size > 0


def test_what_activations_fill_is_mended_by_fixes_for_activations(traces: Traces) -> None:
    found = offered(advised(Plan(OWN), traces))
    assert {"checkpoint-full", "chunked-loss", "smaller-batch"} <= set(found)
    assert found["checkpoint-full"].time.fraction == pytest.approx(1 / 3)
    saved = found["chunked-loss"].saved
    assert saved <= 3 * LOGITS * BATCH
    half = found["smaller-batch"].prediction
    assert half.basis == "traced"
    assert half.plan.settings.batch == BATCH // 2
    assert found["smaller-batch"].how == "set the batch of a device to 4"


def test_a_fix_on_a_phase_that_is_not_the_peak_is_not_sold(heavy: Traces) -> None:
    states = advised(Plan(OWN, Strategy.DDP, 4), heavy)
    assert {"zero1", "fsdp", "fused-optimizer", "offload-optimizer", "sgd"} <= ids(states.offers)
    assert {"checkpoint-full", "chunked-loss"} <= ids(states.declined)
    reasons = {each.fix.id: each.reason for each in states.declined}
    assert "the peak lies in the optimizer phase" in reasons["checkpoint-full"]
    assert "trace with it is missing" in reasons["bf16"]


def test_fixes_that_make_no_sense_are_not_mentioned(traces: Traces) -> None:
    alone = advised(Plan(OWN), traces)
    assert not {"zero1", "fsdp", "bucket-view"} & (ids(alone.offers) | ids(alone.declined))
    done = Plan(SGD, Strategy.FSDP, 4, chunked_loss=True, expandable=True, fused_optimizer=True)
    left = {fix.id for fix in FIXES if fix.variants(done)}
    assert left == {
        "bf16",
        "checkpoint-half",
        "checkpoint-full",
        "accumulate",
        "smaller-batch",
        "empty-cache",
    }


def test_clearing_the_cache_is_never_sold(traces: Traces) -> None:
    advice = advised(Plan(OWN), traces, device(1000))
    reasons = {each.fix.id: each.reason for each in advice.declined}
    assert "by itself" in reasons["empty-cache"]
    assert advice.cheapest is None or "empty-cache" not in {f.id for f in advice.cheapest.fixes}


def test_offers_that_fit_come_first_the_cheapest_of_them_before_all(traces: Traces) -> None:
    need = predicted(Plan(FULL), traces).needed_at_most
    offers = advised(Plan(OWN), traces, device(need / MIB + 1)).offers
    fits = [bool(offer.fits) for offer in offers]
    assert fits == sorted(fits, reverse=True)
    assert any(fits)
    order = [fix.id for fix in FIXES]
    places = [order.index(offer.fix.id) for offer in offers if offer.fits]
    assert places == sorted(places)


def test_the_mildest_form_that_fits_is_offered(traces: Traces) -> None:
    need = predicted(Plan(replace(OWN, batch=2)), traces).needed_at_most
    offer = offered(advised(Plan(OWN), traces, device(need / MIB + 2)))["smaller-batch"]
    assert offer.fits
    assert offer.prediction.plan.settings.batch == 2


@pytest.mark.parametrize(
    ("best", "number"),
    [
        (Plan(ONE_FULL, Strategy.DDP, 4), 1),
        (Plan(ONE_FULL, Strategy.DDP, 4, chunked_loss=True), 2),
        (Plan(ONE_FULL, Strategy.FSDP, 4, chunked_loss=True), 3),
        (Plan(ONE_FULL, Strategy.FSDP, 4, chunked_loss=True, offload_optimizer=True), 4),
    ],
)
def test_the_cheapest_set_fits_and_none_of_it_can_be_left_out(best: Plan, number: int) -> None:
    """With a batch of one sample, which leaves no smaller ones."""
    plan = Plan(ONE, Strategy.DDP, 4)
    job = partial(Job, 1, logits=96 * MIB, kept=8 * MIB)
    traces = Traces({ONE: job().stream(), ONE_FULL: job(recomputed=True).stream()})
    on = device(predicted(best, traces).needed_at_most / MIB + 2)
    together = advised(plan, traces, on).cheapest
    assert together is not None
    assert together.prediction.fits(on)
    assert len(together.fixes) == number
    order = [fix.id for fix in FIXES]
    if number <= 2:
        dearest = max(order.index(fix.id) for fix in together.fixes)
        assert dearest <= order.index("checkpoint-full")
    for left_out in together.fixes:
        plans = [plan]
        for fix in together.fixes:
            if fix is not left_out:
                plans = [variant for plan in plans for variant in fix.variants(plan)]
        assert not any(predicted(plan, traces).fits(on) for plan in plans)


def test_no_set_is_named_where_it_fits_or_nothing_helps(traces: Traces) -> None:
    assert advised(Plan(OWN), traces, device(100_000)).cheapest is None
    assert advised(Plan(OWN), traces, device(500)).cheapest is None
    assert advised(Plan(OWN), traces).cheapest is None


def test_counted_operations_replace_the_bound(traces: Traces) -> None:
    counted = replace(traces, flops={OWN: 1000, FULL: 1153})
    time = offered(advised(Plan(OWN), counted))["checkpoint-full"].time
    assert time.fraction == pytest.approx(0.153)
    assert "counted" in time.basis


def test_the_largest_batch_fits_and_a_larger_one_does_not(traces: Traces) -> None:
    on = device(2048)
    batch = largest_batch(Plan(OWN), traces, on)
    assert batch is not None
    assert batch > 0
    assert predicted(Plan(replace(OWN, batch=batch)), traces).fits(on)
    assert not predicted(Plan(replace(OWN, batch=batch + 1)), traces).fits(on)
    assert largest_batch(Plan(OWN), traces, device(600)) == 0
    assert largest_batch(Plan(OWN), Traces({}), on) is None


def test_what_was_not_traced_is_not_predicted() -> None:
    assert predict(Plan(OWN), Traces({})) is None
    assert advise(Plan(OWN), Traces({})) is None


def test_what_to_trace_begins_with_another_batch() -> None:
    wanted = wanted_traces(Plan(OWN))
    assert wanted[0] == Settings(BATCH // 2)
    assert {FULL, SGD} < set(wanted)
    assert OWN not in wanted
    assert len(set(wanted)) == len(wanted)
    assert wanted_traces(Plan(Settings(1)))[0] == Settings(2)
    assert {trace.accumulate for trace in wanted_traces(Plan(Settings(4, accumulate=64)))} == {2}


def test_micro_batches_are_halved_and_halved_again() -> None:
    found = [(each.batch, each.accumulate) for each in accumulate(Settings(8, accumulate=3))]
    assert found == [(4, 6), (2, 12), (1, 24)]
    assert accumulate(Settings(7)) == ()
    assert [each.batch for each in smaller_batch(Settings(7))] == [3, 1]


@pytest.mark.parametrize(
    ("text", "capacity"),
    [
        ("h100-80gb", GPUS["H100-80GB"].capacity),
        ("A100", GPUS["A100-40GB"].capacity),
        ("rtx 4090", GPUS["RTX-4090"].capacity),
        ("40GiB", 40 * GIB),
        ("1.5 GB", 1_500_000_000),
    ],
)
def test_gpus_are_known_by_name_or_size(text: str, capacity: int) -> None:
    found = find_gpu(text)
    assert found is not None
    assert found.capacity == capacity


@pytest.mark.parametrize(
    "text", ["", "-", "H", "RTX", "0GiB", "GiB", "1e9GiB", "-3GiB", "9" * 5000 + "GB"]
)
def test_other_words_are_no_gpu(text: str) -> None:
    assert find_gpu(text) is None


def test_every_fix_says_what_to_type_and_what_it_costs() -> None:
    assert len({fix.id for fix in FIXES}) == len(FIXES)
    for fix in FIXES:
        assert fix.how
        assert fix.time.basis
        assert fix.how.format(batch=1, accumulate=2)


def test_treatments_that_fixes_name_exist_for_their_framework() -> None:
    for framework, fixes in ALL_FIXES.items():
        named = [fix.treatment for fix in fixes if fix.treatment is not None]
        assert len({each.name for each in named}) == len(named) >= 3
        assert all(TREATMENTS[each.name] is each for each in named)
        assert {each.framework for each in named} <= {framework.value, None}


def test_treatments_are_named_where_they_fit_the_strategy() -> None:
    def named(strategy: Strategy) -> set[str]:
        plan = Plan(OWN, ranks=2, strategy=strategy)
        return {each.name for fix in FIXES if (each := fix.treatment_for(plan)) is not None}

    everywhere = {"optimizer-fused", "expandable-segments", "activation-checkpointing"}
    assert named(Strategy.FSDP) == everywhere
    assert named(Strategy.SINGLE) == everywhere | {"autocast-bf16"}
    replicated = {"ddp-bucket-view", "autocast-bf16", "optimizer-zero1"}
    assert named(Strategy.DDP) == everywhere | replicated
