"""The plan as one JSON object (docs/plan.schema.json). Bytes and fractions; unknown values are
null."""

from __future__ import annotations

import json
from typing import Any

from mgpu_doctor.analysis.memory.fix_search import Offer
from mgpu_doctor.analysis.memory.prediction import Prediction
from mgpu_doctor.plan.planned import Planned

SCHEMA = "mgpu-doctor/plan/1"


def render(planned: Planned) -> str:
    """The object as indented JSON that ends in a newline."""
    return json.dumps(document(planned), indent=2) + "\n"


def document(planned: Planned) -> dict[str, Any]:
    """The object itself, of plain JSON types."""
    asked, device = planned.prediction.plan, planned.device
    advice = planned.advice
    cheapest = advice.cheapest if advice else None
    return {
        "schema": SCHEMA,
        "subject": planned.subject.name,
        "plan": {
            "batch": asked.settings.batch,
            "accumulate": asked.settings.accumulate,
            "checkpointing": asked.settings.checkpointing.value,
            "precision": asked.settings.precision.value,
            "optimizer": asked.settings.optimizer.value,
            "strategy": asked.strategy.value,
            "ranks": asked.ranks,
        },
        "framework": asked.framework.value,
        "gpu": device
        and {"name": device.name, "capacity": device.capacity, "source": device.source},
        "method": planned.followed.method.name.lower(),
        "reasons": list(planned.followed.reasons),
        "lower_bound": planned.bound,
        "parameters": planned.followed.parameters,
        "fits": planned.fits,
        "largest_batch": planned.largest,
        "prediction": _prediction(planned.prediction),
        "fixes": [_offer(offer) for offer in (advice.offers if advice else ())],
        "not_offered": [
            {"id": each.fix.id, "reason": each.reason}
            for each in (advice.declined if advice else ())
        ],
        "together": cheapest
        and {
            "fixes": [fix.id for fix in cheapest.fixes],
            "prediction": _prediction(cheapest.prediction),
        },
        "notes": list(planned.notes),
    }


def _prediction(prediction: Prediction) -> dict[str, Any]:
    made = prediction.composition
    return {
        "peak_allocated": prediction.allocated,
        "smallest_capacity": prediction.capacity,
        "peak_reserved": prediction.reserved,
        "needed": prediction.needed,
        "needed_at_most": prediction.needed_at_most,
        "margin": prediction.margin,
        "basis": prediction.basis,
        "outside": [
            {
                "name": constant.name,
                "bytes": constant.size,
                "margin": constant.margin,
                "source": constant.source,
            }
            for constant in prediction.outside
        ],
        "peak_phase": made.phase and made.phase.value,
        "peak_by_kind": {kind.value: size for kind, size in made.kinds.items()},
        "peak_by_phase": {phase.value: size for phase, size in made.phases.items()},
        "largest": [{"name": name, "bytes": size} for name, size in made.largest],
    }


def _offer(offer: Offer) -> dict[str, Any]:
    treatment = offer.fix.treatment_for(offer.prediction.plan)
    return {
        "id": offer.fix.id,
        "summary": offer.fix.summary,
        "how": offer.how,
        "caveat": offer.fix.caveat or None,
        "treatment": treatment and treatment.name,
        "needed": offer.prediction.needed,
        "saved": offer.saved,
        "time_fraction": offer.time.fraction,
        "time_basis": offer.time.basis,
        "fits": offer.fits,
        "basis": offer.prediction.basis,
    }
