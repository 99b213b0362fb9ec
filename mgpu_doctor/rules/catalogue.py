"""Every rule there is: our own families and those that other packages bring."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from mgpu_doctor.case.model import Unexamined
from mgpu_doctor.rules import doctor
from mgpu_doctor.rules.communication import (
    collective_times,
    communication_bound,
    ddp_settings,
    excess_synchronization,
    slow_link,
)
from mgpu_doctor.rules.failures import (
    asked_to_end,
    failed_rendezvous,
    full_file_systems,
    job_failure,
    lost_host,
    process_limits,
    restart_cost,
)
from mgpu_doctor.rules.failures.log_rules import make_log_rules
from mgpu_doctor.rules.gpu import (
    ecc_errors,
    gpu_topology,
    gpu_utilization,
    host_transfers,
    lost_gpus,
    missing_gpus,
    numa_placement,
    nvlink_errors,
    pcie_links,
    precision,
    replica_imbalance,
    throttled_gpus,
    throttled_stragglers,
    xid_errors,
)
from mgpu_doctor.rules.hang import dead_rank_hang, mismatch, rank_behind, rendezvous_hang
from mgpu_doctor.rules.input import input_wait
from mgpu_doctor.rules.memory import (
    gpu_memory_use,
    gpu_occupants,
    host_oom,
    leaks,
    memory_snapshots,
    oom_risk,
)
from mgpu_doctor.rules.rule import Rule, RuleError, check_rule
from mgpu_doctor.rules.slow import (
    data_imbalance,
    gc_and_checkpoints,
    host_contention,
    parameter_server_workers,
    slow_host,
    stage_imbalance,
    straggler_phases,
    torch_usage,
    transient_stragglers,
)
from mgpu_doctor.rules.traces import trace_time
from mgpu_doctor.rules.training import data_sharding, loss, replica_divergence, update_batch

GROUP = "mgpu_doctor.rules"
"""Entry points of this group name a tuple of `Rule`."""

_DECLARED: tuple[Rule, ...] = (
    *lost_host.RULES,
    *job_failure.RULES,
    *host_oom.RULES,
    *memory_snapshots.RULES,
    *leaks.RULES,
    *oom_risk.RULES,
    *gpu_occupants.RULES,
    *gpu_memory_use.RULES,
    *full_file_systems.RULES,
    *process_limits.RULES,
    *restart_cost.RULES,
    *asked_to_end.RULES,
    *failed_rendezvous.RULES,
    *mismatch.RULES,
    *dead_rank_hang.RULES,
    *rank_behind.RULES,
    *rendezvous_hang.RULES,
    *slow_host.RULES,
    *straggler_phases.RULES,
    *parameter_server_workers.RULES,
    *input_wait.RULES,
    *host_contention.RULES,
    *data_imbalance.RULES,
    *stage_imbalance.RULES,
    *gc_and_checkpoints.RULES,
    *transient_stragglers.RULES,
    *slow_link.RULES,
    *communication_bound.RULES,
    *ddp_settings.RULES,
    *excess_synchronization.RULES,
    *torch_usage.RULES,
    *throttled_stragglers.RULES,
    *gpu_utilization.RULES,
    *host_transfers.RULES,
    *precision.RULES,
    *replica_imbalance.RULES,
    *lost_gpus.RULES,
    *xid_errors.RULES,
    *ecc_errors.RULES,
    *nvlink_errors.RULES,
    *pcie_links.RULES,
    *throttled_gpus.RULES,
    *gpu_topology.RULES,
    *numa_placement.RULES,
    *missing_gpus.RULES,
    *data_sharding.RULES,
    *update_batch.RULES,
    *loss.RULES,
    *replica_divergence.RULES,
    *doctor.RULES,
    *trace_time.RULES,
    *collective_times.RULES,
)
OWN: tuple[Rule, ...] = tuple(
    map(check_rule, (*_DECLARED, *make_log_rules({rule.code for rule in _DECLARED})))
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    rules: tuple[Rule, ...]
    broken: tuple[Unexamined, ...] = ()
    """Entry points that gave no rules."""


def catalogue() -> Catalogue:
    """Our rules, then those of other packages. What cannot be loaded is reported, never fatal."""
    rules = list(OWN)
    broken = []
    for point in _points():
        try:
            brought = tuple(point.load())
        except Exception as error:  # a package that is not ours may raise anything at import
            broken.append(_broken(point.name, f"{type(error).__name__}: {error}"))
            continue
        known = {rule.code for rule in rules}
        usable = [rule for rule in brought if isinstance(rule, Rule) and rule.code not in known]
        if len(usable) < len(brought):
            broken.append(_broken(point.name, "not all of it is rules with codes of their own"))
        for rule in usable:
            try:
                rules.append(check_rule(rule))
            except RuleError as error:
                broken.append(_broken(point.name, str(error)))
    return Catalogue(tuple(rules), tuple(broken))


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Read once: it costs milliseconds, and a live view diagnoses every second."""
    return tuple(entry_points(group=GROUP))


def _broken(name: str, reason: str) -> Unexamined:
    return Unexamined(f"rules of {name}", reason, f"fix or uninstall the package behind {name}")
