"""Which fixes help a memory plan, how much, and the cheapest set of them that fits.

For `mgpu-doctor plan`. Pure: nothing is run, every plan is predicted from traces of similar ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from mgpu_doctor.analysis.memory.device_memory import Gpu
from mgpu_doctor.analysis.memory.fixes import Fix, Time, known_fixes
from mgpu_doctor.analysis.memory.memory_plan import Plan
from mgpu_doctor.analysis.memory.prediction import Prediction, may_fit, predict
from mgpu_doctor.analysis.memory.traced_streams import Traces

WORTH = 0.01
"""Share of the needed memory: a fix that saves less is not offered."""
MOST_VARIANTS = 32
"""Most sets of fixes that are tried."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A fix, and the plan with it. `fits`: None where no device was named."""

    fix: Fix
    prediction: Prediction
    saved: int
    """Bytes that are needed less."""
    time: Time
    fits: bool | None
    how: str


@dataclass(frozen=True, slots=True)
class Declined:
    """A fix that is not offered, and why."""

    fix: Fix
    reason: str


@dataclass(frozen=True, slots=True)
class FixSet:
    """Fixes that fit together: none of them can be left out."""

    fixes: tuple[Fix, ...]
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Advice:
    """`offers`: first those that fit, from the cheapest on, then by what they save. `cheapest`:
    None where the plan fits, or nothing does, or no device was named."""

    offers: tuple[Offer, ...]
    declined: tuple[Declined, ...]
    cheapest: FixSet | None


def advise(plan: Plan, traces: Traces, device: Gpu | None = None) -> Advice | None:
    """The memory of the plan and the fixes for it; None: no similar plan was traced."""
    return _Adviser(plan, traces, device).advice()


class _Adviser:
    """Remembers what it has predicted: sets of fixes share most of their plans."""

    def __init__(self, plan: Plan, traces: Traces, device: Gpu | None) -> None:
        self.plan, self.traces, self.device = plan, traces, device
        self._fixes = known_fixes(plan)
        self._predicted: dict[Plan, Prediction | None] = {}

    def advice(self) -> Advice | None:
        now = self._predict(self.plan)
        if now is None:
            return None
        assessments = [
            self._assess(fix, variants, now)
            for fix in self._fixes
            if (variants := fix.variants(self.plan))
        ]
        offers = [fix for fix in assessments if isinstance(fix, Offer)]
        declined = tuple(fix for fix in assessments if isinstance(fix, Declined))
        fitting = [offer for offer in offers if offer.fits]
        rest = sorted(
            (offer for offer in offers if not offer.fits), key=lambda offer: offer.prediction.needed
        )
        wanted = self.device is not None and not self._fits(now)
        return Advice((*fitting, *rest), declined, self._find_cheapest(now) if wanted else None)

    def _assess(self, fix: Fix, variants: Sequence[Plan], now: Prediction) -> Offer | Declined:
        mildest = self._find_mildest(variants)
        if mildest is None:
            return Declined(fix, f"not predicted: {fix.unknown}")
        saved = now.needed - mildest.needed
        if saved < WORTH * now.needed:
            return Declined(fix, fix.caveat if mildest is now else _why_not(mildest, now))
        settings, before = mildest.plan.settings, now.plan.settings
        work = self.traces.extra_work(before, settings)
        time = fix.time
        if work is not None and settings.checkpointing is not before.checkpointing:
            time = Time(work, "floating-point operations counted in the traces")
        how = fix.how.format(batch=settings.batch, accumulate=settings.accumulate)
        return Offer(fix, mildest, saved, time, self._fits(mildest) if self.device else None, how)

    def _find_mildest(self, plans: Sequence[Plan]) -> Prediction | None:
        """The first that fits, else the strongest; the mildest where no device is named."""
        if self.device is None:
            return self._predict(plans[0])
        return self._find_fitting(plans) or self._predict(plans[-1])

    def _find_fitting(self, plans: Sequence[Plan]) -> Prediction | None:
        for plan in plans[:MOST_VARIANTS]:
            if self.device is not None and may_fit(plan, self.traces, self.device):
                fitting = self._predict(plan)
                if fitting is not None and self._fits(fitting):
                    return fitting
        return None

    def _find_cheapest(self, now: Prediction) -> FixSet | None:
        """The cheapest single fix that fits, else a pair whose costlier fix is cheapest, else
        several."""
        order = {fix.id: place for place, fix in enumerate(self._fixes)}
        applicable = [fix for fix in self._fixes if fix.variants(self.plan)]
        for count in (1, 2):
            sets = combinations(applicable, count)
            for fixes in sorted(sets, key=lambda fixes: [order[fix.id] for fix in fixes[::-1]]):
                if fitting := self._find_fitting(self._apply(fixes)):
                    return FixSet(fixes, fitting)
        return self._grow_set(now)

    def _grow_set(self, now: Prediction) -> FixSet | None:
        """Fixes are added from the cheapest on, as long as each saves something, until it fits;
        then unnecessary ones are removed, the costliest first."""
        chosen: list[Fix] = []
        best = now
        for fix in self._fixes:
            plans = self._apply([*chosen, fix])
            prediction = self._find_mildest(plans) if plans else None
            if prediction is None or not _helps(prediction, best):
                continue
            chosen.append(fix)
            best = prediction
            if self._fits(best):
                break
        if not self._fits(best):
            return None
        for fix in reversed(chosen[:-1]):
            fewer = [other for other in chosen if other is not fix]
            if prediction := self._find_fitting(self._apply(fewer)):
                chosen, best = fewer, prediction
        return FixSet(tuple(chosen), best)

    def _apply(self, fixes: Sequence[Fix]) -> list[Plan]:
        """The plan with all these fixes, in all their forms."""
        plans = [self.plan]
        for fix in fixes:
            plans = [variant for plan in plans for variant in fix.variants(plan)]
        return plans

    def _predict(self, plan: Plan) -> Prediction | None:
        if plan not in self._predicted:
            self._predicted[plan] = predict(plan, self.traces, self.device)
        return self._predicted[plan]

    def _fits(self, prediction: Prediction) -> bool:
        return self.device is not None and prediction.fits(self.device)


def _why_not(prediction: Prediction, now: Prediction) -> str:
    more = prediction.needed - now.needed
    if more >= WORTH * now.needed:
        return f"it would need {more / now.needed:.0%} more here"
    if now.allocated - prediction.allocated >= WORTH * now.needed:
        return "it makes room only between blocks that stay: fragmentation eats what it saves"
    phase = now.composition.phase
    where = f"the peak lies in the {phase.value} phase and stays" if phase else "there is no peak"
    return f"it saves less than {WORTH:.0%} here: {where}"


def _helps(prediction: Prediction, before: Prediction) -> bool:
    """Whether it saves enough, margins included: a set of fixes has to fit in spite of them."""
    saved = before.needed_at_most - prediction.needed_at_most
    return saved >= WORTH * before.needed_at_most
