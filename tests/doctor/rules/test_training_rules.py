"""Training defects: duplicated samples, diverged weights, lost losses, batch sizes and learning
rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mgpu_doctor.analysis.measures import Measures, measure
from mgpu_doctor.case.model import Case, Console, Outcome
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding, Severity
from mgpu_doctor.rules.training import data_sharding, loss, replica_divergence, update_batch
from tests.support.failure_cases import dead, error, failed_job, secondary_failure
from tests.support.recorded_diagnoses import examine
from tests.support.synthetic import Synthetic, make_case, make_rank, records

RULES = (*data_sharding.RULES, *update_batch.RULES, *loss.RULES, *replica_divergence.RULES)
STEPS = records(Synthetic(ranks=4, steps=60))
LOADER = {
    "sampler": "DistributedSampler",
    "sampler_seed": 0,
    "sampler_epoch": 3,
    "sampler_ranks": 4,
    "shuffles": True,
    "dataset_length": 1000,
    "batch_size": 16,
    "epochs": 4,
}
OWN = {"strategy": "ddp", "seed": 7}
EXPERTS = {"name": "all_to_all_single", "site": "moe.py:26", "count": 60, "seconds": 0.5}


def batches(rank: int | str, epochs: int = 1, *, again: bool = False) -> list[list[Any]]:
    return [
        [0, epoch, index, f"{rank}-{0 if again else epoch}-{index}"]
        for epoch in range(epochs)
        for index in range(8)
    ]


def weights(who: object, total: float = 1.0) -> list[list[Any]]:
    return [[at, 10 + 3 * at, at, f"s.{who}{at}.{total}"] for at in (20, 40)]


def job(*births: dict[str, Any], samples: int = 16, loss: Any = None, **changes: Any) -> Case:
    ranks = []
    for number, birth in enumerate(births):
        steps = STEPS[number].copy()
        steps["samples"] = samples
        if loss is not None:
            steps["loss"] = loss[number]
        ranks.append(make_rank(number, steps, birth={**OWN, **birth}))
    return make_case(ranks, **changes)


def findings_of(case: Case) -> list[Finding]:
    return examine(RULES, measure(case))


def ended(case: Case) -> list[Finding]:
    """What folding leaves of what ended the job."""
    return [finding for finding in diagnose(case).findings if finding.severity is Severity.CRITICAL]


def fed(rank: int, who: object = None, **loader: Any) -> dict[str, Any]:
    rows = batches(rank if who is None else str(who))
    return {"loaders": [{**LOADER, "sampler_rank": rank, **loader}], "batches": rows}


# ---------------------------------------------------------------------------- data-duplicated


@pytest.mark.parametrize(
    ("loader", "cause"),
    [
        ({"sampler": "RandomSampler", "sampler_ranks": None}, "from the same random seed (7)"),
        (
            {"sampler": "SequentialSampler", "sampler_ranks": None, "shuffles": False},
            "reads the whole dataset",
        ),
        ({"sampler_ranks": 1, "sampler_rank": 0}, "num_replicas=1, rank=0"),
        ({"sampler": "_InfiniteConstantSampler", "sampler_ranks": None}, "whole stream"),
    ],
)
def test_the_same_batches_on_all_ranks(loader: dict[str, Any], cause: str) -> None:
    (finding,) = findings_of(job(*(fed(rank, "same", **loader) for rank in range(4))))
    assert (finding.code, finding.severity) == ("data-duplicated", Severity.WARNING)
    assert finding.title.startswith("All 4 ranks train on the same batches: 3 of 4")
    assert cause in finding.cause
    assert finding.victims == (0, 1, 2, 3)


@pytest.mark.parametrize("strategy", ["zero1", "localsgd", "fsdp2"])
def test_whoever_trains_on_parts_of_the_data_should_see_other_batches(strategy: str) -> None:
    (finding,) = findings_of(
        job(*({**fed(rank, "same"), "strategy": strategy} for rank in range(4)))
    )
    assert finding.code == "data-duplicated"


def test_two_ranks_that_share() -> None:
    who = ["a", "b", "c", "b"]
    (finding,) = findings_of(job(*(fed(rank, who[rank]) for rank in range(4))))
    assert finding.title.startswith("Ranks 1 and 3 train on the same batches: 1 of 4")
    assert finding.victims == (1, 3)


def test_batches_without_a_loader() -> None:
    same = {"batches": batches("same")}
    (finding,) = findings_of(job(same, same))
    assert "the same random seed (7)" in finding.cause
    assert "seed + rank" in finding.fixes[0].how
    (other,) = findings_of(job(same, {**same, "seed": 8}))
    assert "seed" not in other.cause


@pytest.mark.parametrize(
    "birth",
    [
        {"groups": [{"name": "default", "ranks": None}, {"name": "tp", "ranks": [0, 1]}]},
        {"sends_to": [1]},
        {"strategy": "tensor"},
        {"strategy": "manual"},
        {"input_samples": 4},
        {"batch_samples": 64, "input_samples": 16},
        {"batches": [[0, 0, index, "one"] for index in range(8)]},
    ],
    ids=["groups", "pipeline", "tensor", "unknown", "takes its part", "whole batches", "constant"],
)
def test_ranks_that_may_share_batches_on_purpose(birth: dict[str, Any]) -> None:
    assert findings_of(job(*({**fed(rank, "same"), **birth} for rank in range(4)))) == []


def test_collectives_by_hand_and_equal_weights_are_replicas() -> None:
    by_hand = {"strategy": "manual", "weights": weights("w")}
    (finding,) = findings_of(job(*({**fed(rank, "same"), **by_hand} for rank in range(4))))
    assert finding.code == "data-duplicated"


def test_ranks_with_batches_of_their_own_are_fine() -> None:
    assert findings_of(job(*(fed(rank) for rank in range(4)))) == []


def repeating(rank: int, **loader: Any) -> dict[str, Any]:
    return {**fed(rank, **loader), "batches": batches(rank, 3, again=True)}


def test_a_missing_set_epoch_is_worth_knowing() -> None:
    (finding,) = findings_of(job(*(repeating(rank, sampler_epoch=0) for rank in range(4))))
    assert (finding.code, finding.severity) == ("data-duplicated", Severity.INFO)
    assert "set_epoch" in finding.title


@pytest.mark.parametrize(
    "changes", [{"sampler_epoch": 2}, {"shuffles": False}, {"epochs": 1}, {"sampler_ranks": None}]
)
def test_an_order_that_repeats_otherwise_is_meant(changes: dict[str, Any]) -> None:
    loader = {"sampler_epoch": 0, **changes}
    assert findings_of(job(*(repeating(rank, **loader) for rank in range(4)))) == []


# --------------------------------------------------------------------------- seed-inconsistent


def test_seeds_that_differ() -> None:
    (finding,) = findings_of(job(*(fed(rank, sampler_seed=rank) for rank in range(4))))
    assert (finding.code, finding.severity) == ("seed-inconsistent", Severity.WARNING)
    assert "32 %" in finding.title


@pytest.mark.parametrize(
    "changes",
    [{"shuffles": False}, {"sampler_ranks": 2}, {"sampler_rank": 0}, {"sampler_ranks": None}],
)
def test_seeds_that_do_not_matter(changes: dict[str, Any]) -> None:
    births = [fed(rank, **{"sampler_seed": rank, **changes}) for rank in range(4)]
    assert findings_of(job(*births)) == []


# ----------------------------------------------------------------------------- batch-confusion


def asked(*argv: str, **birth: Any) -> Case:
    births = ({**fed(rank), "argv": ["python", "t.py", *argv], **birth} for rank in range(4))
    return job(*births)


@pytest.mark.parametrize(
    ("argv", "meant", "real"),
    [
        (["--global-batch-size", "16"], 16, 64),
        (["--total_batch=16"], 16, 64),
        (["train.global_batch_size=16"], 16, 64),
        (["--per-device-batch-size", "64"], 256, 64),
        (["--batch-size-per-gpu=64"], 256, 64),
    ],
)
def test_a_batch_that_was_mistaken(argv: list[str], meant: int, real: int) -> None:
    (finding,) = findings_of(asked(*argv))
    assert (finding.code, finding.severity) == ("batch-confusion", Severity.WARNING)
    assert f"{real} samples, not {meant}" in finding.title


@pytest.mark.parametrize(
    ("argv", "birth"),
    [
        (["--global-batch-size", "64"], {}),
        (["--per-device-batch-size", "16"], {}),
        (["--batch-size", "16"], {}),
        (["--global-batch-size", "sixteen"], {}),
        (["--global-batch-size", "16"], {"input_samples": 4}),
        (["--global-batch-size", "16"], {"sends_to": [1]}),
        (["--global-batch-size", "16"], {"batches": []}),
    ],
)
def test_a_batch_that_is_right_or_unclear(argv: list[str], birth: dict[str, Any]) -> None:
    assert findings_of(asked(*argv, **birth)) == []


# -------------------------------------------------------------------------- replicas-diverged


def drifting(rank: int, who: object, total: float, **birth: Any) -> dict[str, Any]:
    return {"batches": batches(rank), "weights": weights(who, total), **birth}


def test_two_replicas_that_differ_name_nobody() -> None:
    (finding,) = findings_of(job(drifting(0, "a", 1.0), drifting(1, "b", 1.5)))
    assert (finding.code, finding.severity) == ("replicas-diverged", Severity.WARNING)
    assert finding.culprits == ()
    assert finding.victims == (0, 1)
    assert finding.since_step == 20


def find_divergence(*ends: str, before: str = "a") -> list[Finding]:
    """What is found if ranks were equal at one moment and hold these weights when they end."""
    births = []
    for number, end in enumerate(ends):
        total = 1.0 + (end == "b")
        rows = [[20, 69, 20, f"s.{before}.1.0"], [40, 129, 40, f"s.{end}.{total}"]]
        births.append({**drifting(number, end, total), "weights": rows})
    return [finding for finding in findings_of(job(*births)) if finding.code == "replicas-diverged"]


def test_two_replicas_that_part_late_are_reported_and_neither_is_blamed() -> None:
    (one,) = find_divergence("b", "c")
    assert (one.severity, one.culprits, one.since_step) == (Severity.INFO, (), 40)
    assert find_divergence("c", "c") == []


@pytest.mark.parametrize(
    ("ends", "named"), [("ccb", [2]), ("bccc", None), ("cbcb", None), ("cbb", None), ("cbcc", [1])]
)
def test_of_several_that_part_late_the_one_that_left_is_named(
    ends: str, named: list[int] | None
) -> None:
    """Not rank 0 alone: it may have loaded weights on purpose."""
    reported = [[who.rank for who in one.culprits] for one in find_divergence(*ends)]
    assert reported == ([] if named is None else [named])


def test_the_minority_is_the_culprit() -> None:
    births = [drifting(rank, rank == 2, 1.0 + (rank == 2)) for rank in range(4)]
    (finding,) = findings_of(job(*births))
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)
    assert "rank 2" in finding.title


def test_two_against_two_name_nobody() -> None:
    (finding,) = findings_of(job(*(drifting(rank, rank % 2, 1.0 + rank % 2) for rank in range(4))))
    assert finding.culprits == ()


@pytest.mark.parametrize(
    ("birth", "cause"),
    [
        ({}, "outside DistributedDataParallel"),
        ({"strategy": "manual"}, "reduces gradients itself"),
        ({"ddp": {"synced": 0, "forwards": 0}}, "model.module(...)"),
    ],
)
def test_why_they_differ(birth: dict[str, Any], cause: str) -> None:
    (finding,) = findings_of(job(*(drifting(rank, rank, 1.0 + rank, **birth) for rank in range(2))))
    assert cause in finding.cause


def test_rates_that_differ_are_the_cause() -> None:
    rates = [{"optimizers": [{"class": "SGD", "lr": 0.1, "lr_now": 0.1 / (r + 1)}]} for r in (0, 1)]
    (finding,) = findings_of(
        job(*(drifting(rank, rank, 1.0 + rank, **rates[rank]) for rank in range(2)))
    )
    assert "learning rates differ (0.05, 0.1)" in finding.cause


@pytest.mark.parametrize(
    "birth",
    [
        {"strategy": "fsdp"},
        {"strategy": "localsgd"},
        {"strategy": "manual", "batches": batches("same")},
        {"strategy": "manual", "batches": []},
        {"receives_from": [0]},
        {"groups": [{"name": "default", "ranks": None}, {"name": "tp", "ranks": [0, 1]}]},
        {"ddp": {"comm_hook": "post_localSGD_hook"}},
        {"optimizers": [{"class": "PostLocalSGDOptimizer"}]},
        {"strategy": "manual", "calls": [EXPERTS]},
        {"calls": [EXPERTS]},
    ],
    ids=[
        *("sharded", "alone", "one model", "unknown", "pipeline", "groups", "hook", "averaging"),
        *("experts by hand", "experts beside"),
    ],
)
def test_weights_that_differ_on_purpose(birth: dict[str, Any]) -> None:
    assert findings_of(job(*(drifting(r, r, 1.0 + r, **birth) for r in range(4)))) == []


def test_ranks_that_seldom_talk_may_differ() -> None:
    case = job(*(drifting(rank, rank, 1.0 + rank) for rank in range(2)))
    for rank in case.ranks:
        rank.steps["group_seq"] = np.arange(len(rank.steps)) // 4
    assert findings_of(case) == []


def test_ranks_that_never_talk_train_models_of_their_own() -> None:
    def find(strategy: str, backend: str | None) -> list[Finding]:
        birth = {"strategy": strategy, "backend": backend}
        case = job(*(drifting(rank, rank, 1.0 + rank, **birth) for rank in range(4)))
        for rank in case.ranks:
            rank.steps["group_seq"] = rank.steps["collectives"] = 0
        return findings_of(case)

    (finding,) = find("manual", "gloo")
    assert (finding.code, finding.severity) == ("replicas-diverged", Severity.INFO)
    assert (finding.culprits, finding.victims) == ((), (0, 1, 2, 3))
    assert "No rank called a collective" in finding.cause
    assert find("manual", None) == find("localsgd", "gloo") == []


def test_one_moment_does_not_decide() -> None:
    births = [drifting(rank, rank, 1.0 + rank) for rank in range(2)]
    for birth in births:
        del birth["weights"][1]
    assert findings_of(job(*births)) == []


def left_at_the_end(*leavers: int, ranks: int = 2) -> Case:
    births = [drifting(rank, "a", 1.0) for rank in range(ranks)]
    for rank in leavers:
        births[rank]["weights"][1][3] = f"s.b{rank}.1.2"
    return job(*births)


def test_one_moment_decides_if_the_others_stayed_equal() -> None:
    for leavers, ranks in (((1,), 3), ((2,), 3), ((3,), 4)):
        (divergence,) = findings_of(left_at_the_end(*leavers, ranks=ranks))
        assert [culprit.rank for culprit in divergence.culprits] == [*leavers]
        assert divergence.since_step == 40


def test_weights_that_rank_0_loads_at_the_end_are_no_divergence() -> None:
    """Of two ranks, it may be either: worth knowing, and no warning."""
    assert findings_of(left_at_the_end(0, ranks=4)) == []
    for rank in (0, 1):
        (finding,) = findings_of(left_at_the_end(rank))
        assert (finding.severity, finding.culprits) == (Severity.INFO, ())


# -------------------------------------------------------------------------------- lr-unscaled


def rated(**optimizer: Any) -> Case:
    known = {"class": "AdamW", "lr": 1e-3, "lr_now": 1e-3, "lr_default": 1e-3, **optimizer}
    births = ({"batches": batches(rank), "optimizers": [known]} for rank in range(4))
    return job(*births, samples=128)


def test_a_default_rate_for_a_large_batch() -> None:
    (finding,) = findings_of(rated())
    assert (finding.code, finding.severity) == ("lr-unscaled", Severity.INFO)
    assert "512 samples" in finding.title


@pytest.mark.parametrize(
    "optimizer", [{"lr_now": 9e-4}, {"lr": 4e-3}, {"lr_default": None}, {"class": "Adadelta"}]
)
def test_a_rate_that_somebody_chose(optimizer: dict[str, Any]) -> None:
    assert findings_of(rated(**optimizer)) == []


def test_a_default_rate_for_a_small_batch() -> None:
    case = rated()
    for rank in case.ranks:
        rank.steps["samples"] = 127
    assert findings_of(case) == []


# ----------------------------------------------------------------------------------- loss-nan


def losses(*from_steps: int | None) -> list[Any]:
    """A loss for each rank that is no number from a step on."""
    made = [np.linspace(2.0, 1.0, 60) for _ in from_steps]
    for values, begin in zip(made, from_steps, strict=True):
        if begin is not None:
            values[begin:] = np.inf
    return made


def test_the_first_rank_is_named() -> None:
    (finding,) = findings_of(job({}, {}, {}, loss=losses(31, 30, 31)))
    assert (finding.code, finding.severity) == ("loss-nan", Severity.WARNING)
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    assert finding.since_step == 30
    assert "step 30" in finding.title


@pytest.mark.parametrize("begins", [(30, 30), (0, 0), (30, 30, 31)])
def test_ranks_that_were_first_together_name_nobody(begins: tuple[int, ...]) -> None:
    (finding,) = findings_of(job(*({} for _ in begins), loss=losses(*begins)))
    assert finding.culprits == ()
    assert finding.since_step == begins[0]


def test_a_rank_whose_peers_loss_is_not_known_is_not_named() -> None:
    known, unknown = losses(30, None)
    unknown[:] = np.nan
    (finding,) = findings_of(job({}, {}, loss=[known, unknown]))
    assert finding.culprits == ()
    assert "several ranks" not in finding.cause  # as in a pipeline, whose last stage has the loss


def test_one_rank_alone() -> None:
    (finding,) = findings_of(job({}, loss=losses(30)))
    assert finding.culprits == ()
    assert finding.victims == (0,)


@pytest.mark.parametrize(
    ("begin", "outcome", "reported"),
    [
        (56, Outcome.RUNNING, False),
        (55, Outcome.RUNNING, True),
        (59, Outcome.COMPLETED, False),
        (58, Outcome.COMPLETED, True),
    ],
)
def test_only_what_lasts_to_the_end_counts(begin: int, outcome: Outcome, reported: bool) -> None:
    case = job({}, {}, loss=losses(begin, begin), outcome=outcome)
    assert bool(findings_of(case)) is reported


def test_a_loss_lost_before_any_update_is_due_to_how_training_starts() -> None:
    (at_once,) = findings_of(job({}, {}, loss=losses(0, 0)))
    assert [fix.id for fix in at_once.fixes] == ["check-the-start"]
    (later,) = findings_of(job({}, {}, loss=losses(1, 1)))
    assert "check-the-start" not in [fix.id for fix in later.fixes]


def test_a_loss_that_recovers_is_no_finding() -> None:
    values = losses(None, None)
    values[0][20:40] = np.inf
    assert findings_of(job({}, {}, loss=values)) == []
    assert findings_of(job({}, {}, loss=losses(None, None))) == []


@pytest.mark.parametrize(
    "message",
    [
        "loss is nan at step 5",
        "Loss is NaN, stopping training",
        "train_loss = inf is not finite",
        "Function 'MulBackward0' returned nan values in its 0th output.",
        "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot",
    ],
)
def test_an_exception_over_the_loss_is_explained(message: str) -> None:
    case = failed_job(
        [secondary_failure(0), dead(1, exit_code=1, error=error("ValueError", message))]
    )
    (finding,) = ended(case)
    assert (finding.code, finding.severity) == ("loss-nan", Severity.CRITICAL)
    assert [culprit.rank for culprit in finding.culprits] == [1]


@pytest.mark.parametrize(
    "message", ["bad sample", "connection lost in infinite loop", "nan in table", "financial loss"]
)
def test_other_exceptions_are_not(message: str) -> None:
    case = failed_job(
        [secondary_failure(0), dead(1, exit_code=1, error=error("ValueError", message))]
    )
    (finding,) = ended(case)
    assert finding.code == "failed-exception"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Loss is nan, stopping training", "loss-nan"),
        ("step 4 loss nan", "failed-exception"),
        ("stopping training", "failed-exception"),
    ],
)
def test_an_exit_is_explained_by_what_the_script_printed(message: str, code: str) -> None:
    case = failed_job([secondary_failure(0), dead(1, exit_code=1)])
    others = [f"[rank0]: line {number}" for number in range(9)]
    assert [one.code for one in ended(replace(case, console=Console(tail=(message, *others))))] == [
        code
    ]


def test_a_case_without_ranks_is_silent() -> None:
    assert examine(RULES, Measures(make_case([]))) == []


@pytest.mark.parametrize(
    ("factions", "named"),
    [("aaab", [3]), ("aab", []), ("aabb", []), ("aaabbb", []), ("aaaabbb", [4, 5, 6])],
)
def test_a_minority_against_three_that_agree_is_named(factions: str, named: list[int]) -> None:
    births = [drifting(rank, who, 1.0 + (who == "b")) for rank, who in enumerate(factions)]
    steps = records(Synthetic(ranks=len(factions), steps=60))
    ranks = [
        make_rank(number, one, birth={**OWN, **birth})
        for number, (one, birth) in enumerate(zip(steps, births, strict=True))
    ]
    (one,) = [
        finding for finding in findings_of(make_case(ranks)) if finding.code == "replicas-diverged"
    ]
    assert [culprit.rank for culprit in one.culprits] == named


def test_the_loader_that_is_trained_from_is_the_one_whose_batches_were_seen() -> None:
    validation = {**LOADER, "sampler": "SequentialSampler", "shuffles": False}
    rows = [[1, *row[1:]] for row in batches("same")]
    training = {**LOADER, "sampler": "RandomSampler", "sampler_ranks": None}
    birth = {"loaders": [validation, training], "batches": rows}
    (finding,) = findings_of(job(birth, birth))
    assert finding.code == "data-duplicated"
    assert "RandomSampler" in [row.value for row in finding.evidence]
