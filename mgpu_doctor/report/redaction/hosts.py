"""Finds names of hosts in untrusted text by their context.

Regular expressions find candidates; sets of words decide. In doubt, a name counts as a host's.
Every repeat is bounded or begins at the start of a word, so time is linear in the length of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address

from mgpu_doctor.report.redaction.users import CODE, COMMON, fold, split_words

_NAME = r"[A-Za-z0-9][\w.-]{0,252}"
_LIST = r"[A-Za-z0-9][\w.:,@\[\]-]{0,512}"
_ALONE = r"(?<![^\W_])"
"""Not preceded by a letter or a digit."""
_NO_HOST = re.compile(
    r"(?:rank|default|gpu|cuda|cpu|device|step|epoch|task|thread|layer|stage|host-)\d+|0x[0-9a-f]+"
    r"|(?:eth|ib|bond|docker|mlx\d_|nvme|sd|lo)\d*"
)
_PUBLIC = re.compile(
    r"(?:.*\.)?(?:(?:pytorch|tensorflow|python|kernel|gnu|debian|arxiv|wikipedia|pypi|open-mpi)\.org"
    r"|(?:nvidia|github|githubusercontent|ubuntu|stackoverflow|google|googleapis|anaconda|schedmd)"
    r"\.com|(?:nvcr|github|readthedocs|keras|docker|ray)\.io|(?:lightning|deepspeed)\.ai"
    r"|huggingface\.co)"
)
"""Public sites."""
_STORES = {"env", "file", "gs", "gcs", "s3", "hf", "local", "memory", "sqlite", "class", "models"}
"""Schemes of URLs that do not start with a host."""
_INTERNAL = split_words("internal local lan localdomain intranet intra corp cluster")
_WORLDWIDE = split_words("com org net edu gov mil")
_COUNTRIES = split_words("de uk fr ch nl fi dk pl cz eu au jp cn kr br tw sg ie nz")
"""Top-level domains of countries. Others are left out if their letters are also usual names of
layers or methods."""

_URL = re.compile(
    rf"(?<![\w+.-])([A-Za-z][\w+.-]{{1,20}})://(?:[^\s/@'\"]{{0,200}}@)?(?=({_NAME}))"
)
_VAGUE = r"hosts?|nodes?|machines?|addr(?:ess)?|server|peer|endpoint|remote|ip"
_KEY = re.compile(
    rf"{_ALONE}(?:(?P<vague>{_VAGUE}|include|exclude)|rdzv[-_]?endpoint|master[-_]?addr(?:ess)?"
    r"|main[-_]process[-_]ip|comm[-_]id|coordinator(?:[-_]address)?|node[-_]?list|node[-_]?name"
    r"|host[-_]?name|host[-_]?list)(?P<sign>[\"'\\]{0,3}\s{0,20}[=:]\s{0,20}|\s)[\"'\\\[(]{0,3}"
    rf"(?=(?P<value>{_LIST}))",
    re.IGNORECASE,
)
_OPTION = re.compile(r"(?<![\w-])--?[\w-]{0,40}$")
_DASH = re.compile(rf"(?<!\S)-(H|w|host)[= ]?(?=({_LIST}))")
_ITEM = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[(\d+))?")
"""An item of a list of hosts: `node07`, or the first of `node[01-04]`."""
_PORT = re.compile(rf"(?<![\w./\\-])({_NAME})(\]?):(\d{{1,5}})(?![\w-]|\.\d|:[\w:])")
_REACHES = re.compile(
    r"(?:\b(?:to|from|with|host|peer|endpoint|addr|address|server|target|reach|resolve|tcp)"
    r"[\s=:]{1,2}|->\s?)[\"'(\[]{0,2}$",
    re.IGNORECASE,
)
_LOGGED = re.compile(
    rf"(?<![\w.-])({_NAME})(?::\d{{1,9}}:\d{{1,9}} \[|<\d{{1,5}}>)"  # NCCL
    rf"|(?:srun: error: |slurmstepd-)(?=({_LIST}): )| ON (?=({_NAME}) [A-Z]{{4}})"  # Slurm
    r"|(?:(?:addresses of|connect to) \(|resolve (?:host(?:name)?|address) [\"']?"  # torch, ssh
    rf"|getaddrinfo[( ](?:failed )?(?:for )?[\"']?)(?=({_NAME}))"
)
_AGENT = re.compile(r"_\d{1,9}_\d{1,9}$")
"""Torch calls an agent `HOST_PID_NUMBER`."""
_DERIVED = re.compile(
    rf"{_ALONE}(?:((?:ip|ec2|vm|host|node|static|dhcp|dyn|pool|compute|instance)[-_])?"
    r"(\d{1,3}(?:[-_]\d{1,3}){3})|ip-[0-9A-Fa-f]{8})(?![^\W_])((?:\.[A-Za-z0-9-]{1,63}){0,8})",
    re.IGNORECASE,
)
"""Cloud names of machines, made from their addresses."""
_QUALIFIED = re.compile(r"(?<![\w.-])(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,20}(?![\w(-]|\.\w)")
_AT = re.compile(rf"[\w+-]@(?!plt\b|GLIBC|CXXABI|LIB)(?=[A-Za-z]\w)(?=({_NAME}))")
"""After a user's name, but not the version of a symbol."""


def find_hosts(message: str) -> Iterator[str]:
    """Returns the names of machines in texts of frameworks, launchers and people."""
    for match in _URL.finditer(message):
        if match[1].lower() not in _STORES:
            yield from _yield_host(match[2], sure=True)
    yield from _find_keyed_hosts(message)
    for match in _PORT.finditer(message):
        yield from _find_host_with_port(match)
    for match in _LOGGED.finditer(message):
        yield from _split_hosts(next(filter(None, match.groups())), sure=True)
    for match in _DERIVED.finditer(message):
        prefix, numbers, domain = match.groups()
        if numbers is None or ((prefix or domain) and _is_address(re.sub("[-_]", ".", numbers))):
            name = match.group()
            yield from (name.removesuffix(domain), name) if prefix or not numbers else (name,)
    for match in _QUALIFIED.finditer(message):
        if _is_machine(match.group()):
            yield from _yield_host(match.group(), sure=False)
    for match in _AT.finditer(message):
        yield from _yield_host(match[1], sure=False)


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(IPv4Address(name))
    return False


def _find_keyed_hosts(message: str) -> Iterator[str]:
    """`--rdzv_endpoint=node07:29500`, `MASTER_ADDR=node07`, `Local host: node07`, `-H a:4,b:4`."""
    for match in _KEY.finditer(message):
        vague, sign, value = match.group("vague", "sign", "value")
        following = message[match.end("value") : match.end("value") + 1]
        if following in {"=", "("} or (following == "/" and value.endswith(":")):
            value = value.rpartition(",")[0]  # the last is a name of something else
        if _OPTION.search(message[max(0, match.start() - 42) : match.start()]):
            chosen = (vague or "").lower() not in {"include", "exclude"}
            yield from _split_hosts(value, sure=chosen or "@" in value, code=False)
        elif "=" in sign:
            yield from _split_hosts(value, sure=not vague or vague.isupper())
        else:
            alone = ":" in sign and following not in {" ", "\t"}
            yield from _split_hosts(value, sure=alone and not vague)
    for match in _DASH.finditer(message):
        yield from _split_hosts(match[2], sure=match[1] != "w")


def _split_hosts(value: str, *, sure: bool, code: bool = True) -> Iterator[str]:
    """The hosts of a list. `sure`: they are hosts, whatever they look like; `code`: unless they
    look like code."""
    for item in re.split("[,@]", value):
        match = _ITEM.match(item)
        if match:
            name = match[1] + (match[2] or "")
            if sure or _looks_like_host(name):
                yield from _yield_host(name, sure=not code)


def _find_host_with_port(match: re.Match[str]) -> Iterator[str]:
    name, bracket, port = match.groups()
    message, start, end = match.string, match.start(), match.end()
    preceding, following = message[max(0, start - 1) : start], message[end : end + 1]
    if bracket:
        if preceding == "[":
            yield from _yield_host(name, sure=True)
        return
    plain = "_" not in name
    quoted = preceding in {'"', "'"} and following in {'"', "'", "\\"} and len(port) > 2
    if quoted and "cluster" in message:
        yield from _yield_host(name, sure=True)
    elif plain and (
        _REACHES.search(message[max(0, start - 24) : start])
        or (_looks_like_host(name) and (quoted or len(port) > 3))
    ):
        yield from _yield_host(name, sure=False)


def _yield_host(name: str, *, sure: bool) -> Iterator[str]:
    """Yields the name, if it can be a host's. `sure`: it is one by its context, even if it looks
    like code."""
    name = _AGENT.sub("", name).rstrip("._-")
    if may_be_host(name, code=sure):
        yield name


def may_be_host(name: str, *, code: bool = False) -> bool:
    """Returns whether it is not a usual word, a number, a public site or, unless `code`, code."""
    folded = fold(name)
    if not 1 < len(name) < 254 or folded in COMMON or not any(letter.isalpha() for letter in name):
        return False
    if _NO_HOST.fullmatch(folded) or _PUBLIC.fullmatch(folded):
        return False
    return code or not CODE.fullmatch(name)


def _looks_like_host(name: str) -> bool:
    name = _AGENT.sub("", name)
    numbered = any(letter.isdigit() for letter in name)
    ending = fold(name).rpartition(".")[2] if "." in name else ""
    if "_" in name or not (name.islower() or name.isupper()):
        return False  # more like a name in a program
    return name[0].isalpha() and (numbered or ending in _INTERNAL | _WORLDWIDE)


def _is_machine(name: str) -> bool:
    """Returns whether a name with dots is a machine's, without help from its context."""
    first, *rest = fold(name).split(".")
    numbered = any(letter.isdigit() or letter == "-" for letter in first)
    named = numbered and any(letter.isalpha() for letter in first)
    ending = rest[-1]
    if ending in _INTERNAL:
        return named or len(rest) > 1
    return len(rest) > 1 and (ending in _WORLDWIDE or (named and ending in _COUNTRIES))
