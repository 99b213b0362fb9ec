"""All treatments, by name. They were tried on CPUs; none has been tried on a GPU yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mgpu_doctor.advice import (
    compute_treatments,
    data_treatments,
    exchange_treatments,
    host_treatments,
)
from mgpu_doctor.advice.treatment import Advice, Situation, Treatment, Value

_TREATMENTS: tuple[Treatment, ...] = (
    *data_treatments.TREATMENTS,
    *exchange_treatments.TREATMENTS,
    *compute_treatments.TREATMENTS,
    *host_treatments.TREATMENTS,
)
ADVICE = (
    Advice(
        "Read the loss less often",
        "if step % 50 == 0: print(loss.item())",
        "only the script knows what depends on the value",
    ),
    Advice(
        "Evaluate less often, or save fewer checkpoints",
        "if epoch % 5 == 0: evaluate(model)",
        "early stopping, schedules and restarts depend on both. `checkpoint-in-background` saves "
        "as often, without the wait",
    ),
    Advice(
        "Make several steps in each call of Keras' training function",
        "model.compile(..., steps_per_execution=10)",
        "callbacks see only the last of these steps then, and the probe counts them as one: the "
        "gain cannot be measured",
    ),
    Advice(
        "Use smaller micro-batches and accumulate more of them, at the same global batch",
        "loss = model(part) / 4; loss.backward() for each quarter of the batch, then one update",
        "the loop decides when it updates. Where the command names both numbers, `treat --goal` "
        "exchanges one for the other",
    ),
    Advice(
        "Use a larger batch, with a learning rate that grows linearly with it after a warm-up",
        "lr = 4 * lr * min(1, (step + 1) / 500)  # for four times the batch",
        "the schedule follows from the number of steps. Where the command names the batch and the "
        "learning rate, `treat --goal throughput` finds the batch and scales the rate",
    ),
)
"""What only an edit of the script can do."""
TREATMENTS: Mapping[str, Treatment] = {treatment.name: treatment for treatment in _TREATMENTS}
"""By name, in the order in which they are listed."""


def find_by_fix(fix_id: str, situation: Situation) -> Treatment | None:
    """The treatment that applies a finding's fix and fits the job; None: there is none."""
    for treatment in _TREATMENTS:
        if treatment.fix == fix_id and not isinstance(treatment.find_value(situation), str):
            return treatment
    return None


def find_by_code(code: str) -> list[Treatment]:
    """The treatments that apply fixes of a finding."""
    return [
        treatment
        for treatment in _TREATMENTS
        if treatment.applies is not None and code in treatment.applies.codes
    ]


def split_by_way(
    values: Mapping[str, Value],
) -> tuple[dict[str, Value], dict[str, str]]:
    """The values that the probe applies, and the environment variables to set."""
    chosen = {name: TREATMENTS[name] for name in values}
    patches = {name: values[name] for name, each in chosen.items() if not each.environment}
    variables = {
        variable: text.replace("{value}", str(values[name]))
        for name, each in chosen.items()
        for variable, text in each.environment.items()
    }
    return patches, variables


def check_values(values: Iterable[tuple[str, object]]) -> dict[str, Value]:
    """Values of a file, checked, also whether they can be combined. Raises ValueError with one
    sentence."""
    checked: dict[str, Value] = {}
    occupied: dict[str, str] = {}
    for name, value in values:
        if name not in TREATMENTS:
            raise ValueError(f"there is no treatment {name!r}: see `mgpu-doctor treat --list`.")
        slot = TREATMENTS[name].slot
        if slot is not None and slot in occupied:
            raise ValueError(f"{occupied[slot]} and {name} both set the {slot}: name one of them.")
        if slot is not None:
            occupied[slot] = name
        checked[name] = TREATMENTS[name].check_value(value)
    return checked


def describe_values(values: Mapping[str, Value]) -> str:
    """`gc-freeze`, `loader-workers=2`, several joined by ` + `."""
    return " + ".join(
        name if value is True else f"{name}={value}" for name, value in values.items()
    )
