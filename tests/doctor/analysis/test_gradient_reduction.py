"""Buckets, overlap, and how often gradients are reduced."""

from __future__ import annotations

from typing import Any

import pytest

from mgpu_doctor.analysis.cost.gradient_reduction import (
    Exchanges,
    count_exchanges,
    exposed_seconds,
    logged_reduction,
    transfer_seconds,
)
from mgpu_doctor.case.model import Rank
from tests.support.synthetic import Synthetic, make_rank, records

SGD = {"class": "SGD"}


def rank(passes: int = 1, *, optimizers: Any = (SGD,), weights: Any = (), **ddp: Any) -> Rank:
    steps = records(Synthetic(ranks=2))[0]
    steps["micro_batches"] = passes
    birth = {"ddp": ddp, "optimizers": list(optimizers), "weights": list(weights)}
    return make_rank(0, steps, birth=birth)


@pytest.mark.parametrize(
    ("transfer", "buckets", "left"),
    [
        (0.030, [10], 0.030),  # one bucket leaves when all is computed
        (0.030, [5, 5], 0.020),  # the link is the slower one: half of backward hides something
        (0.008, [1, 1, 1, 1], 0.002),  # backward is: the last bucket alone is exposed
        (0.030, [], 0.0),
    ],
)
def test_what_a_backward_pass_of_20_ms_leaves_exposed(
    transfer: float, buckets: list[int], left: float
) -> None:
    assert exposed_seconds(0.020, transfer, buckets) == pytest.approx(left)


@pytest.mark.parametrize("transfer", [0.005, 0.018, 0.060])
def test_the_time_to_move_all_bytes_is_found_from_what_was_exposed(transfer: float) -> None:
    buckets = [1, 3, 2, 2]
    measured = exposed_seconds(0.020, transfer, buckets)
    assert transfer_seconds(0.020, measured, buckets) == pytest.approx(transfer, rel=1e-6)


def test_the_rank_that_waits_least_tells_what_is_exposed() -> None:
    times: dict[str, Any] = {
        "backward_seconds": 0.02,
        "buckets": [4, 8],
        "bucket_cap_bytes": 25 << 20,
    }
    early = rank(communication_seconds=0.05, overlap_seconds=0.01, **times)
    last = rank(communication_seconds=0.03, overlap_seconds=0.012, **times)
    found = logged_reduction([early, last])
    assert found is not None
    assert found.communication == 0.03
    assert found.exposed == pytest.approx(0.018)
    assert (found.backward, found.buckets, found.cap) == (0.02, (4, 8), 25 << 20)
    assert logged_reduction([early, rank(backward_seconds=0.02)]) is None
    assert logged_reduction([]) is None


@pytest.mark.parametrize(
    ("passes", "synced", "needless"), [(4, 400, 0.75), (4, 100, 0.0), (4, 200, 0.5), (1, 400, 0.0)]
)
def test_exchanges_beyond_one_an_update_are_needless(
    passes: int, synced: int, needless: float
) -> None:
    found = count_exchanges(rank(passes, forwards=400, synced=synced))
    assert found == Exchanges(passes, passes * synced / 400, 1.0)
    assert found.needless == pytest.approx(needless)


def test_several_optimizers_are_as_many_updates_as_were_counted() -> None:
    counts = {"forwards": 200, "synced": 200}
    two = (SGD, {"class": "AdamW"})
    assert count_exchanges(rank(2, optimizers=two, **counts)) is None
    each = count_exchanges(rank(2, optimizers=two, weights=[[50, 100, 100, "a"]], **counts))
    assert each is not None
    assert (each.updates, each.needless) == (2.0, 0.0)


@pytest.mark.parametrize(
    "silent",
    [
        rank(4, optimizers=[{"class": "LBFGS"}], forwards=400, synced=400),
        rank(4, forwards=0, synced=0),
        rank(4, forwards=400),
    ],
)
def test_what_the_counters_do_not_tell_is_not_guessed(silent: Rank) -> None:
    assert count_exchanges(silent) is None
