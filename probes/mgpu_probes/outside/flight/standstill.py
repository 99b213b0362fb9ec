"""NCCL's account of a job that stands, in the form of flight recorders.

RAS counts what each rank has launched in a communicator. Two accounts that agree, with more time
between them than a wait in a moving job takes, say who waits in which operation and who has not
come to it. Nobody has seen it on a GPU yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from mgpu_probes.outside.flight.form import FORM
from mgpu_probes.outside.flight.ras import ADDRESS, NoRasError, ask_ras

Json = Any
APART = 6.0
"""Seconds between the two accounts: the analysis takes a wait of less than 5 for mere delay."""
OPERATION = "an operation that NCCL counts"


def address_of(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Where NCCL listens in a job with this environment; None: it was told not to."""
    if environ.get("NCCL_RAS_ENABLE") == "0":
        return None
    host, _, port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    if host and port.isdecimal() and 0 < int(port) < 1 << 16:
        return host.strip("[]"), int(port)
    return ADDRESS


def standing(
    numbers: Mapping[int, int],
    address: tuple[str, int],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, Json], ...]:
    """A form for each of the ranks `numbers` (by pid), with the communicators that stand; none
    where nothing answers. Takes `APART` seconds where NCCL answers, else no time."""
    try:
        began, first = time.time(), _counts(ask_ras(address), numbers)
        if not first:
            return ()
        sleep(APART)
        again, at = _counts(ask_ras(address), numbers), time.time()
    except NoRasError:
        return ()
    still = {group: held for group, held in again.items() if first.get(group) == held}
    return tuple(_form(rank, still, began, at) for rank in sorted({*numbers.values()}))


def _counts(told: Mapping[str, Json], numbers: Mapping[int, int]) -> dict[str, dict[int, int]]:
    """Communicator -> rank of the job -> operations launched. Only communicators that are wholly
    in these processes: NCCL numbers the ranks of each for itself."""
    found: dict[str, dict[int, int]] = {}
    for one in told["communicators"]:
        known = {
            numbers[each["pid"]]: each["launched"]
            for each in one["ranks"]
            if each["pid"] in numbers and each["launched"] is not None
        }
        hosts = {each["host"] for each in one["ranks"]}
        whole = 1 < len(known) == len(one["ranks"]) and len(hosts) == 1
        if one["hash"] and whole and not one["missing"]:
            found[one["hash"]] = known
    return found


def _form(rank: int, still: Mapping[str, Mapping[int, int]], began: float, at: float) -> Json:
    mine = {group: held for group, held in still.items() if rank in held}
    return {
        "form": FORM,
        "rank": rank,
        "source": "NCCL RAS",
        "at": at,
        "slack": 0.0,
        "host": None,
        "pid": None,
        "version": None,
        "groups": {group: sorted(held) for group, held in mine.items()},
        "progress": {group: [held[rank], None, None] for group, held in mine.items()},
        "places": [],
        "collectives": [
            _entry(group, held[rank], began, waits=held[rank] > min(held.values()))
            for group, held in mine.items()
        ],
        "lost": 0,
        "unseen": 0,
    }


def _entry(group: str, launched: int, began: float, *, waits: bool) -> dict[str, Json]:
    return {
        "group": group,
        "backend": "nccl",
        "sequence": launched,
        "operation": OPERATION,
        "inputs": [],
        "outputs": [],
        "dtypes": [],
        "state": "started" if waits else "completed",
        "retired": not waits,
        "created": began,
        "started": began,
        "timeout": None,
        "p2p": False,
        "stack": [],
    }
