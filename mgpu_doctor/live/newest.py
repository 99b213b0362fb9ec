"""What was known of the GPUs of each host at a moment of a recording."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from mgpu_doctor.case.gpu import DeviceSample

GONE = 30.0
"""Seconds after which a host that tells no more is left out, while others do."""
LATE = 3.0
"""As long it is waited for where that is more: so many times its usual spacing. A long recording is
thinned out."""


class _Told(NamedTuple):
    """By one host, oldest first. `stands`: seconds for which a sample does, beside newer ones."""

    times: list[float]
    samples: list[DeviceSample]
    stands: float


class Newest:
    """All samples of a recording, ordered once."""

    def __init__(self, samples: Iterable[DeviceSample]) -> None:
        hosts: dict[str, list[DeviceSample]] = defaultdict(list)
        for sample in sorted(samples, key=lambda one: one.at):
            hosts[sample.host or ""].append(sample)
        self._hosts = [_told(hosts[name]) for name in sorted(hosts)]

    def until(self, at: float) -> tuple[DeviceSample, ...]:
        """The newest sample of each host at a moment, by the hosts' names."""
        found = [
            (host.samples[place - 1], host.stands)
            for host in self._hosts
            if (place := bisect_right(host.times, at))
        ]
        newest = max((sample.at for sample, _ in found), default=at)
        return tuple(sample for sample, stands in found if newest - sample.at <= stands)


def _told(samples: list[DeviceSample]) -> _Told:
    times = [one.at for one in samples]
    usual = (times[-1] - times[0]) / max(1, len(times) - 1)
    return _Told(times, samples, max(GONE, LATE * usual))
