"""Why a GPU's memory ran out, by the numbers in torch's own message. Pure.

The message names the capacity, what is free, what this process and others hold, and what torch
keeps without using it. A pattern recognises the message; which of the signatures is right follows
from arithmetic: others on the device that hold more than was lacking, or unused memory of torch
that would have been enough in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mgpu_doctor.case.log_matches import LogMatch

RAN_OUT, OLD_RAN_OUT = "cuda-oom", "cuda-oom-old"
FRAGMENTED, SHARED, PILED_UP = (
    "cuda-oom-fragmented",
    "cuda-oom-shared-device",
    "cuda-oom-many-ranks",
)
READ = frozenset({RAN_OUT, OLD_RAN_OUT, FRAGMENTED, SHARED, PILED_UP})
"""Signatures of the messages that are read here."""

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
LEAST_UNUSED = 1 << 30
"""Unused bytes from which memory counts as fragmented: torch's message calls for action if they are
"large", and its blocks always leave some hundred MiB unused. A choice."""
NAMED_SHARE = 0.05
"""Share of the device that named processes must hold to matter: a context alone takes 0.4 GiB
(`oom-foreign-process` has the same limit)."""
HIDDEN_SHARE = 0.25
"""The same for memory that the message assigns to no process. It includes some GiB of the process's
own context, NCCL and cuDNN. A choice."""
ALIKE = 1.5
"""Processes whose memory differs by less than this factor do the same: ranks of one job."""
LEAST_RANKS = 2
"""Other processes that must be alike to be taken for ranks: one alone may be another job."""
_OF_TORCH = re.compile(
    r"allocated ?memory ?(?P<allocated>[\d.]{1,24} ?(?:bytes|[KMGT]iB)) ?is ?allocated.{0,160}?"
    r"and ?(?P<unallocated>[\d.]{1,24} ?(?:bytes|[KMGT]iB)) ?is ?reserved"
)
_SIZE = re.compile(r"([\d.]{1,24}) ?(bytes|[KMGT]iB)")
_HOLDER = re.compile(
    r"(?:this ?process|Process ?(\d{1,10})) ?has ?([\d.]{1,24} ?(?:bytes|[KMGT]iB))"
)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Bytes. `torch`: reserved by torch in this process, None: not in the message. `named`: of
    other processes; `own`: of this one, by the driver."""

    device: str
    capacity: float
    requested: float
    free: float
    torch: float | None
    unused: float | None
    own: float | None
    named: tuple[float, ...]


def reread(sign: LogMatch) -> LogMatch:
    """The sign with the signature that its numbers support; unchanged if it has none."""
    if sign.signature not in READ:
        return sign
    numbers = _numbers(sign.values)
    if numbers is None:
        return sign
    unused = _of_torch(sign.values).get("unallocated")
    if unused is None and numbers.unused is not None:  # torch 1 prints what it reserved instead
        unused = f"{numbers.unused / _UNITS['GiB']:.2f} GiB"
    values = {**sign.values, **({"unallocated": unused} if unused else {})}
    return replace(sign, signature=_signature(numbers, sign.signature), values=values)


def _signature(numbers: _Numbers, printed: str) -> str:
    lacking = numbers.requested - numbers.free
    named = sum(numbers.named)
    if named >= max(lacking, NAMED_SHARE * numbers.capacity):
        return PILED_UP if numbers.device == "0" and _are_ranks(numbers.named) else SHARED
    hidden = _hidden(numbers)
    if hidden is not None and hidden >= max(lacking, HIDDEN_SHARE * numbers.capacity):
        return SHARED
    if numbers.unused is not None and numbers.unused >= max(numbers.requested, LEAST_UNUSED):
        return FRAGMENTED
    return OLD_RAN_OUT if printed == OLD_RAN_OUT else RAN_OUT


def _are_ranks(held: Sequence[float]) -> bool:
    return len(held) >= LEAST_RANKS and max(held) < ALIKE * min(held)


def _hidden(numbers: _Numbers) -> float | None:
    """Bytes on the device that the message assigns to no process; None: unknown."""
    own = numbers.own if numbers.own is not None else numbers.torch
    if own is None or numbers.requested > numbers.capacity:
        return None
    return numbers.capacity - numbers.free - own - sum(numbers.named)


def _numbers(values: Mapping[str, str]) -> _Numbers | None:
    """None: the message is cut off before its numbers."""
    texts = {**values, **_of_torch(values)}
    sizes = {name: _size(text) for name, text in texts.items() if name not in ("device", "rest")}
    capacity, requested, free = (sizes.get(name) for name in ("capacity", "requested", "free"))
    if not capacity or requested is None or free is None or free > capacity:
        return None
    allocated, unused = sizes.get("allocated"), sizes.get("unallocated")
    reserved = sizes.get("reserved")
    if reserved is not None and allocated is not None:
        unused = reserved - allocated
    torch = None if allocated is None or unused is None else allocated + unused
    own, named = _holders(values.get("rest", ""), capacity, torch)
    device = values.get("device", "")
    return _Numbers(device, capacity, requested, free, torch, unused, own, named)


def _of_torch(values: Mapping[str, str]) -> Mapping[str, str]:
    """What torch holds, by the rest of a message of torch 2."""
    found = _OF_TORCH.search(values.get("rest", ""))
    return found.groupdict() if found else {}


def _holders(
    text: str, capacity: float, torch: float | None
) -> tuple[float | None, tuple[float, ...]]:
    """Bytes that this process holds, and bytes of each other process. In a container the message
    does not say which process is this one: then it is the smallest of those that hold at least what
    torch holds here. Sizes above the capacity are ignored: a driver prints them for unknown."""
    held = [(pid, size) for pid, size in _HOLDER.findall(text) if _size(size) is not None]
    sizes = [(pid, _size(size) or 0.0) for pid, size in held]
    own = next((size for pid, size in sizes if not pid and size <= capacity), None)
    others = [size for pid, size in sizes if pid and size <= capacity]
    if own is None and not any(not pid for pid, _ in sizes) and others:
        enough = [size for size in others if torch is not None and size >= 0.98 * torch]
        own = min(enough, default=max(others))
        others.remove(own)
    return own, tuple(others)


def _size(text: str) -> float | None:
    found = _SIZE.fullmatch(text)
    try:
        return float(found[1]) * _UNITS[found[2]] if found else None
    except ValueError:
        return None
