"""Hides addresses of machines in untrusted text.

Regular expressions find candidates, in time linear in the length of the text; `ipaddress` decides.
What may be a version or an address counts as an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

Address: TypeAlias = "IPv4Address | IPv6Address"

_IPV4 = re.compile(r"(?<!\d)(?<!\d\.)(\d{1,3}(?:\.\d{1,3}){3})(?:\.\d{1,5})?(?!\d|\.\d)")
_IPV6 = re.compile(
    r"(?<![0-9A-Fa-f:])(?P<run>(?:[0-9A-Fa-f]*:){2,}[0-9A-Fa-f]*(?:(?:\.\d{1,3}){3}(?!\d))?)"
    r"(?P<zone>%(?:25)?[\w-]{1,32})?"
)
_MAC = re.compile(
    r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}:){5,30}[0-9A-Fa-f]{2}(?![0-9A-Fa-f]|:[0-9A-Fa-f])"
    r"|(?<![A-Za-z0-9-])(?=[\d-]{0,16}[A-Fa-f])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}(?![A-Za-z0-9-])"
    r"|(?<![A-Za-z0-9.])(?=[\d.]{0,13}[A-Fa-f])(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}"
    r"(?![A-Za-z0-9]|\.\w)"
)
_VERSION_OF = re.compile(
    r"(?i:(?<![a-z])(?:cu[a-z]{2,12}|nv[a-z]{2,12}|version)(?:[-_]\w{1,12}){0,2}"
    r"[\"'\s=:@_-]{1,4})$"
)
_VERSION = re.compile(
    r"(?i:(?<![^\W_])(?:v|(?:torch|tensorflow|nccl|rocm|jax|keras|python|release|driver)[ =-]{1,2})"
    r"|[\w-][=<>~!]=)$|\.so\.$"
)


def hide_addresses(message: str, labels: Mapping[Address, str]) -> str:
    """Returns text with addresses replaced by their label or `address`; addresses that every
    machine has stay."""

    def hide(match: re.Match[str], address: Address) -> str:
        everywhere = address.is_loopback or address.is_unspecified
        return match.group() if everywhere else labels.get(address, "address")

    def four(match: re.Match[str]) -> str:
        address = _ipv4(match[1])
        is_version = address is None or _is_version(match, address)
        return match.group() if address is None or is_version else hide(match, address)

    def six(match: re.Match[str]) -> str:
        run = match["run"]
        for start, stop in _find_bounds(match):
            address = _ipv6(run[start:stop])
            if address is not None:
                hidden = hide(match, address.ipv4_mapped or address)
                unchanged = hidden == match.group() or _is_code(match, address)
                return match.group() if unchanged else f"{run[:start]}{hidden}{run[stop:]}"
        return match.group()

    return _IPV4.sub(four, _MAC.sub("address", _IPV6.sub(six, message)))


def parse_address(name: str) -> Address | None:
    """Returns the address; None if it is not one."""
    return _ipv6(name.strip("[]").partition("%")[0]) or _ipv4(name)


def _ipv4(digits: str) -> IPv4Address | None:
    """Returns the IPv4 address. Leading zeros, as in `010.000.000.001`, are allowed."""
    with suppress(ValueError):
        return IPv4Address(".".join(str(int(part)) for part in digits.split(".")))
    return None


def _ipv6(digits: str) -> IPv6Address | None:
    with suppress(ValueError):
        head, colon, last = digits.rpartition(":")
        return IPv6Address(f"{head}{colon}{_ipv4(last)}" if "." in last else digits)
    return None


def _is_version(match: re.Match[str], address: IPv4Address) -> bool:
    """Returns whether four numbers are a version rather than an address, judged by their
    context."""
    message = match.string
    if re.match(r"[</]|\]?:\d", message[match.end() : match.end() + 3]):
        return False
    preceding = message[max(0, match.start() - 48) : match.start()]
    if address.is_private:  # among these, only 10.x.x.x can be a version
        return str(address).startswith("10.") and _VERSION_OF.search(preceding) is not None
    return bool(_VERSION_OF.search(preceding) or _VERSION.search(preceding))


def _find_bounds(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Yields where in a sequence of groups an address may begin and end, longest first. Ports may
    be around it, and words that the first or last group is part of."""
    run, message = match["run"], match.string
    begins, stops = [0], [len(run)]
    for _ in range(2):
        begins.append(run.find(":", begins[-1]) + 1 or len(run))
        stops.append(max(0, run.rfind(":", 0, stops[-1])))
    begins = begins[1:] if _get_character_before(match).isalnum() else begins
    stops = stops[1:] if message[match.end("run") : match.end("run") + 1].isalnum() else stops
    yield from ((begin, stop) for begin in begins for stop in stops)


def _get_character_before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - 1) : match.start()]


def _is_code(match: re.Match[str], address: IPv6Address) -> bool:
    """Whether the text is code such as `x[1::2]` or `add::c10`, not an address."""
    message, end = match.string, match.end()
    bracketed = _get_character_before(match) == "[" and message[end : end + 2] == "]:"
    if match["zone"] or bracketed or re.match(r"/\d", message[end : end + 2]):
        return False
    few = sum(map(bool, match["run"].split(":"))) <= 3
    return few and address.is_reserved and address.ipv4_mapped is None
