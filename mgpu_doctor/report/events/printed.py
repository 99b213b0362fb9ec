"""Exceptions, and what the console gave away."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from mgpu_doctor.case.model import Case, Error, Rank
from mgpu_doctor.case.signs import Sign
from mgpu_doctor.report.events.coming import hosts_of, named
from mgpu_doctor.report.events.event import Event, Kind, said, together
from mgpu_doctor.report.verdict import Tone

_LOGGER = re.compile(r"^\d+ \S+:\d+\] ")
"""What glog puts in front of a line: the thread, and where in whose code."""


def exceptions(case: Case) -> Iterator[Event]:
    """What ended ranks; the same on several of them at once is told once."""
    hosts = hosts_of(case)
    raised: dict[str, list[tuple[float, Rank]]] = defaultdict(list)
    for rank in (*case.earlier, *case.ranks):
        own = [one for one in rank.events if one.kind == "exception"]
        if rank.error is not None:
            at = rank.error.at if rank.error.at is not None else rank.ended
            words = _sentence(rank.error)
            if at is None:
                yield Event(Kind.ERRORS, None, named([rank], hosts), words, Tone.CRITICAL)
            else:
                raised[words].append((at, rank))
        elif own:
            raised[said(own[-1].text) or "an exception"].append((own[-1].at, rank))
    for words, moments in raised.items():
        first = {id(rank): at for at, rank in moments}
        for group in together(moments):
            at = min(first[id(rank)] for rank in group)
            yield Event(Kind.ERRORS, at, named(group, hosts), words, Tone.CRITICAL)


def _sentence(error: Error) -> str:
    line = "" if error.line is None else f":{error.line}"
    place = f", {error.file}{line}" if error.file else ""
    return said(f"{error.type}: {error.message}{place}" if error.message else error.type + place)


def signs(case: Case) -> Iterator[Event]:
    """Lines of the console that known failures print, without the exceptions told already."""
    for sign in case.signs:
        if _raised(sign, case):
            continue
        who = "the console" if sign.rank is None else f"rank {sign.rank}"
        often = "" if sign.count == 1 else f", {sign.count} times"
        words = _LOGGER.sub("", sign.text)
        yield Event(Kind.ERRORS, sign.at, who, said(f"printed: {words}{often}"), Tone.WARNING)


def _raised(sign: Sign, case: Case) -> bool:
    """Whether the line is the exception that the rank's own black box holds."""
    return any(
        rank.error is not None
        and rank.error.message != ""
        and sign.rank in (None, rank.rank)
        and said(rank.error.message) in said(sign.text)
        for rank in case.ranks
    )
