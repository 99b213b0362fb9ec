"""No rank of a healthy job is accused on a host whose cores other processes use, however short the
job is: it is mentioned at most, with that doubt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from tests.support.busy_hosts import BusyHost, make_busy_case
from tests.support.seeds import few_or_sweep
from tests.support.synthetic import Fault, Synthetic

HOSTS = (BusyHost(0.5, 0.1), BusyHost(0.5, 0.3), BusyHost(1, 0.2), BusyHost(2, 0.3), BusyHost(4, 1))
"""Up to a load average of 10 on two cores."""
STEP = {"input": 0.0003, "forward": 0.001, "backward": 0.0012, "optimizer": 0.0012, "other": 0.0003}


def make_job(seed: int) -> Synthetic:
    """Two ranks, 25 to 64 steps of 4 to 16 ms: 0.2 to 2 s where nobody waits for a core."""
    work = {phase: seconds * (1, 2, 4)[seed % 3] for phase, seconds in STEP.items()}
    steps = 25 + 13 * (seed // 3 % 4)
    return Synthetic(ranks=2, steps=steps, seed=seed, noise=0.1, base=work, communication=0.004)


@few_or_sweep(4, 250)
@pytest.mark.parametrize("host", HOSTS, ids=str)
def test_short_healthy_jobs(host: BusyHost, seeds: range) -> None:
    """Seen: none of 1,500. One in a hundred may be, as these seeds are few."""
    accused = [
        seed
        for seed in seeds
        if any(
            finding.culprits and finding.severity is not Severity.INFO
            for finding in diagnose(make_busy_case(make_job(seed), host)).findings
        )
    ]
    assert len(accused) <= len(seeds) / 100


@pytest.mark.parametrize(
    ("host", "severity"),
    [(BusyHost(0, 1), Severity.WARNING), (BusyHost(1, 0.1), Severity.INFO)],
    ids=str,
)
def test_a_slow_rank_of_a_short_job(host: BusyHost, severity: Severity) -> None:
    """It sleeps for 20 ms in each of 40 steps. Nothing shows that it waited for no core."""
    job = replace(make_job(2), steps=40)
    case = make_busy_case(job, host, sleeps=Fault(1, "optimizer", milliseconds=20))
    (finding,) = diagnose(case).findings
    assert (finding.code, finding.severity) == ("straggler-optimizer", severity)
    assert [culprit.rank for culprit in finding.culprits] == [1]
