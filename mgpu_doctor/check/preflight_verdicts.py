"""What the tests of `preflight` mean: one result per test, or one per host, GPU or link that is
off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from mgpu_doctor.check.check_result import CheckedResult, Level, Result, Subject
from mgpu_doctor.check.preflight_outliers import (
    Why,
    find_best,
    find_few_cores,
    find_long_round_trips,
    find_slow_gpus,
    find_slow_hosts,
    find_slow_links,
)
from mgpu_doctor.check.preflight_reports import HostTests, Preflight, describe
from mgpu_doctor.formatting import format_count, format_number, format_seconds, format_share

HOSTS = Subject("hosts", "hosts")
CORES = Subject("cores", "cores")
COMPUTE = Subject("compute", "core speed")
MEMORY = Subject("memory", "memory")
DISK = Subject("disk", "disk")
GPUS = Subject("gpus", "GPUs")
LINKS = Subject("links", "links")
COLLECTIVE = Subject("collective", "all-reduce")
SCHEMA = "mgpu-doctor/preflight/1"
MOST_NAMED = 8
BUSY = "stop what else runs there, or repeat the test later"


def judge(tests: Preflight) -> tuple[CheckedResult, ...]:
    """The results, in the order of the tests."""
    judges: tuple[tuple[Subject, Callable[[Preflight], Iterable[Result]]], ...] = (
        (HOSTS, _judge_hosts),
        (CORES, _judge_cores),
        (COMPUTE, lambda given: _judge_speed(given, "compute")),
        (MEMORY, lambda given: _judge_speed(given, "memory")),
        (DISK, lambda given: _judge_speed(given, "disk")),
        (GPUS, _judge_gpus),
        (LINKS, _judge_links),
        (COLLECTIVE, _judge_collective),
    )
    return tuple(
        CheckedResult(subject, result) for subject, rule in judges for result in rule(tests)
    )


def make_headline(results: Sequence[CheckedResult], tests: Preflight) -> str:
    """The outcome in one sentence."""
    off = sum(result.is_improvable for result in results)
    where = "this machine" if len(tests.hosts) == 1 else f"{len(tests.hosts)} hosts"
    if off:
        return f"{format_count(off, 'problem')} on {where}: → says what to do."
    return f"Nothing looks off on {where}."


def _judge_hosts(tests: Preflight) -> Iterable[Result]:
    for host in tests.hosts:
        if host.trouble is not None:
            reason = f"{host.name} could not be tested: {host.trouble.reason}"
            yield Result(Level.FAIL, reason, host.trouble.remedy, (host.name,))
    alive = [host for host in tests.hosts if host.trouble is None]
    kinds = {host.greeting.processor for host in alive if host.greeting}
    if len(alive) > 1 and len(kinds) > 1:
        listed = "; ".join(
            f"{host.name}: {host.greeting.processor or 'unknown'}"
            for host in alive
            if host.greeting
        )
        yield Result(Level.NOTE, f"the processors differ: {listed}")
    versions = {host.gpus.torch for host in alive if host.gpus and host.gpus.torch}
    if len(versions) > 1:
        listed = "; ".join(f"{host.name}: {host.gpus.torch}" for host in alive if host.gpus)
        remedy = "install one version on all hosts: ranks of different versions may hang"
        yield Result(Level.WARN, f"the versions of PyTorch differ: {listed}", remedy)
    if alive and len(alive) == len(tests.hosts) and len(alive) > 1:
        yield Result(Level.PASS, f"{len(alive)} hosts answer: {_name(alive)}")


def _name(hosts: Sequence[HostTests]) -> str:
    names = ", ".join(host.name for host in hosts[:MOST_NAMED])
    return names + (" …" if len(hosts) > MOST_NAMED else "")


def _judge_cores(tests: Preflight) -> Iterable[Result]:
    few = find_few_cores(tests.hosts)
    for host in few:
        what, remedy = _FEW_CORES[host.why]
        figures = what.format(f"{host.cores:.2g}", f"{host.usual:g}")
        if host.why is not Why.UNSEEN and len(tests.hosts) > 1:
            figures += f"; the other hosts have {host.usual:g}"
        yield Result(Level.WARN, f"{host.name} {figures}", remedy, (host.name,))
    known = [host.compute[-1].cores for host in tests.hosts if host.compute]
    if known and not few:
        counts = (
            f"{min(known):g}" if min(known) == max(known) else f"{min(known):g} to {max(known):g}"
        )
        yield Result(Level.PASS, f"{counts} per host" if len(known) > 1 else counts)


_RAISE = (
    "raise the quota (docker --cpus, Kubernetes resources.limits.cpu, systemd CPUQuota, Slurm "
    "--cpus-per-task), or remove it"
)
_FEW_CORES = {
    Why.QUOTA: ("has a CPU quota of {} cores", _RAISE),
    Why.AFFINITY: (
        "may use {} cores",
        "look for taskset, numactl, --cpuset-cpus or --cpus-per-task there",
    ),
    Why.UNSEEN: ("gets {} of {} cores, although no other process uses them", _RAISE),
}
_UNITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "compute": (
        "hashes {} per second on one core",
        lambda speed: f"{format_number(speed / 1e9)} GB",
    ),
    "memory": ("copies {} per second", lambda speed: f"{format_number(speed / 1e9)} GB"),
    "disk": ("takes {} per random read of 128 KiB", lambda speed: format_seconds(1 / speed)),
}
_REMEDIES = {
    "compute": "compare clocks and temperature (`cpupower frequency-info`, `sensors`), the "
    "governor and the power profile with another host's",
    "memory": "compare the memory modules with another host's (`dmidecode -t memory`) and look for "
    "corrected errors (`ras-mc-ctl --summary`)",
    "disk": "compare its disk and mount options with another host's (`lsblk`, `iostat -x 1`)",
}


def _judge_speed(tests: Preflight, test: str) -> Iterable[Result]:
    says, write = _UNITS[test]
    slow = find_slow_hosts(test, tests.hosts)
    for host in slow:
        figures = f"{says.format(write(host.speed))}; the others: {write(host.usual)}"
        if host.busy:
            message = f"{host.name} is busy: {figures}. Other processes use {host.others:.1f} cores"
            yield Result(Level.NOTE, message, BUSY, (host.name,))
        else:
            share = format_share(host.slower)
            message = f"{host.name} is {share} slower than the other hosts: it {figures}"
            yield Result(Level.WARN, message, _REMEDIES[test], (host.name,))
    yield from _list_failures(tests, test)
    if test == "disk":
        yield from _list_disk_troubles(tests)
    best = [found for host in tests.hosts if (found := find_best(getattr(host, test)))]
    speeds = sorted((found.speed for found in best if found.speed), reverse=test == "disk")
    if speeds and not slow:
        least, most = write(speeds[0]), write(speeds[-1])
        figures = least if least == most else f"{least} to {most}"
        yield Result(
            Level.PASS, f"{'each host' if len(speeds) > 1 else 'it'} {says.format(figures)}"
        )


def _list_disk_troubles(tests: Preflight) -> Iterable[Result]:
    for host in tests.hosts:
        if host.disk and (trouble := host.disk[-1].trouble):
            message = f"not tested on {host.name}: {host.disk[-1].place}: {trouble}"
            remedy = "name the folder of your data with --data DIR"
            yield Result(Level.NOTE, message, remedy, (host.name,))


def _list_failures(tests: Preflight, test: str) -> Iterable[Result]:
    for host in tests.hosts:
        if test in host.failures:
            message = f"it failed on {host.name}: {host.failures[test]}"
            yield Result(Level.FAIL, message, hosts=(host.name,))


def _judge_gpus(tests: Preflight) -> Iterable[Result]:
    yield from _list_failures(tests, "devices")
    with_torch = [host for host in tests.hosts if host.gpus and host.gpus.torch]
    counts = {host.name: len(host.gpus.devices) for host in with_torch if host.gpus}
    off = [*_list_lost_gpus(with_torch, counts), *_list_slow_gpus(tests)]
    yield from off
    if not with_torch:
        reason = "no Python with PyTorch was found; name one with --python PATH"
        yield Result(Level.NOTE, f"not tested: {reason}")
    elif not any(counts.values()):
        yield Result(Level.NOTE, "PyTorch finds none")
    elif not off:
        count = format_count(sum(counts.values()), "GPU")
        yield Result(Level.PASS, f"{count} tested; none is slower than others of its model")


def _list_lost_gpus(hosts: Sequence[HostTests], counts: Mapping[str, int]) -> Iterable[Result]:
    for host in hosts:
        for gpu in host.gpus.devices if host.gpus else ():
            if gpu.trouble:
                message = f"GPU {gpu.index} of {host.name} failed its test: {gpu.trouble}"
                remedy = "look for Xid messages in `dmesg` on that host"
                yield Result(Level.FAIL, message, remedy, (host.name,))
    most = max(counts.values(), default=0)
    for name, count in counts.items():
        if count < most:
            message = f"{name} has {format_count(count, 'GPU')}; other hosts have {most}"
            remedy = "compare `nvidia-smi -L` and CUDA_VISIBLE_DEVICES"
            yield Result(Level.FAIL, message, remedy, (name,))


def _list_slow_gpus(tests: Preflight) -> Iterable[Result]:
    for slow in find_slow_gpus(tests.hosts):
        share = format_share(1 - slow.speed / slow.usual)
        where = f"GPU {slow.gpu.index} of {slow.host} ({slow.gpu.name})"
        message = f"{where}: {slow.what} are {share} slower than on the others of its model"
        if slow.busy:
            yield Result(Level.NOTE, f"{message}. The GPU is in use", BUSY, (slow.host,))
        else:
            remedy = (
                "compare `nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,ECC` and the PCIe "
                "link with another GPU's"
            )
            yield Result(Level.WARN, message, remedy, (slow.host,))


def _judge_links(tests: Preflight) -> Iterable[Result]:
    if len(tests.hosts) < 2:
        return
    if not tests.links:
        reason = tests.untested.get("links", "they open a port on each host for some seconds")
        yield Result(Level.NOTE, f"not tested: {reason}; add --pairs to test them")
        return
    off = [*_list_broken_links(tests), *_list_slow_links(tests), *_list_round_trips(tests)]
    yield from off
    if "links" in tests.untested:
        yield Result(Level.NOTE, tests.untested["links"])
    speeds = [
        max(series)
        for test in tests.links
        for series in (test.link.there, test.link.back)
        if series
    ]
    trips = [seconds for test in tests.links if (seconds := test.link.round_trip) is not None]
    if speeds and trips and not off:
        yield Result(
            Level.PASS,
            f"{format_count(len(tests.links), 'pair')}: at least {_rate(min(speeds))}, a round "
            f"trip takes at most {format_seconds(max(trips))}",
        )


def _list_broken_links(tests: Preflight) -> Iterable[Result]:
    for test in tests.links:
        if test.link.trouble:
            ends = f"{test.source} cannot use the network to {test.target}"
            remedy = "open the ports between the hosts, or choose the network with --interface NAME"
            named = (test.source, test.target)
            yield Result(Level.FAIL, f"{ends}: {test.link.trouble}", remedy, named)


def _list_slow_links(tests: Preflight) -> Iterable[Result]:
    for slow in find_slow_links(tests.links):
        what = f"the link from {slow.source} to {slow.target} is slow"
        if slow.target is None:
            what = f"what {slow.source} sends to any host is slow"
        elif slow.source is None:
            what = f"what {slow.target} receives from any host is slow"
        usual = f"{_rate(slow.usual)} on the others" if slow.usual else "1 Gbit/s moves more"
        message = f"{what}: {_rate(slow.speed)}; {usual}"
        named = tuple(name for name in (slow.source, slow.target) if name is not None)
        if slow.busy:
            yield Result(Level.NOTE, f"{message}. The hosts are busy", BUSY, named)
        else:
            remedy = (
                "compare its network card with another host's (`ethtool`, `ip -s link`), its "
                "cable, its switch port and rate limits (`tc qdisc`)"
            )
            yield Result(Level.WARN, message, remedy, named)


def _list_round_trips(tests: Preflight) -> Iterable[Result]:
    for trip in find_long_round_trips(tests.links):
        usual = f"; {format_seconds(trip.usual)} between the others" if trip.usual else ""
        ends = f"a round trip between {trip.source} and {trip.target}"
        message = f"{ends} takes {format_seconds(trip.seconds)}{usual}"
        named = trip.source, trip.target
        if trip.busy:
            yield Result(Level.NOTE, f"{message}. The hosts are busy", BUSY, named)
        else:
            remedy = "look for a detour or a delay between them (`traceroute`, `tc qdisc`)"
            yield Result(Level.WARN, message, remedy, named)


def _rate(speed: float) -> str:
    return f"{format_number(speed / 1e6)} MB/s"


def _judge_collective(tests: Preflight) -> Iterable[Result]:
    if tests.collective is None:
        if reason := tests.untested.get("collective"):
            yield Result(Level.NOTE, f"not tested: {reason}")
        return
    backend, ranks = tests.collective.backend, tests.collective.ranks
    failed = [(name, rank.trouble) for name, rank in ranks if rank.trouble]
    if failed:
        listed = "; ".join(f"{name}: {trouble}" for name, trouble in failed[:MOST_NAMED])
        variable = "GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME"
        remedy = f"set {variable} to the network between the hosts, or --interface NAME"
        named = tuple(dict.fromkeys(name for name, _ in failed))
        yield Result(Level.FAIL, f"it fails over {backend}: {listed}", remedy, named)
        return
    small = [min(rank.small) for _, rank in ranks if rank.small]
    large = [min(rank.large) for _, rank in ranks if rank.large]
    if small and large:
        yield Result(
            Level.PASS,
            f"over {backend}, {len(ranks)} ranks: 4 KiB take {format_seconds(max(small))}, 16 MiB "
            f"{format_seconds(max(large))}",
        )


def render_json(results: Sequence[CheckedResult], tests: Preflight) -> str:
    """One JSON object: the results, and the figures behind them."""
    listed = [
        {
            "id": checked.check.id,
            "level": checked.result.level.value,
            "hosts": list(checked.result.hosts),
            "said": checked.result.message,
            "remedy": checked.result.remedy or None,
        }
        for checked in results
    ]
    improvable = sum(checked.is_improvable for checked in results)
    document = {"schema": SCHEMA, "improvable": improvable, "checks": listed, **describe(tests)}
    return json.dumps(document, indent=2) + "\n"
