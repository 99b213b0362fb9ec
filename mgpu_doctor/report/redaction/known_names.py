"""Hides names that are known to be private, wherever they occur in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import count

from mgpu_doctor.report.redaction.hosts import may_be_host
from mgpu_doctor.report.redaction.users import COMMON, fold

LONGEST = 253
"""Characters of a host's name, with its domain."""
MOST_WORDS = 32
"""Words of a name, separated by dots, dashes and underscores."""
_TOKEN = re.compile(r"[^\W_]+(?:[._-]+[^\W_]+)*")
_ATOM = re.compile(r"[^\W_]+")
_HOST_LIST = re.compile(r"(?<![\w.-])([A-Za-z][\w.-]*)\[\d[\d,-]*\]")
"""A list of hosts as Slurm writes it: `node[01-04,07]`."""
_NUMBER = re.compile(r"\d+")
_LAST_NUMBER = re.compile(r"\d+$")


class Reach(Enum):
    """Where a name is hidden."""

    ANYWHERE = "as a part of longer names, too: `events.out.node07.1`, `node07_4711`"
    ALONE = "where no dot, dash or underscore joins it to other words"
    FOLDER = "as the name of a folder and before an @"


@dataclass(frozen=True, slots=True)
class Names:
    """Folded names, their replacements, and where to apply them."""

    labels: Mapping[str, str]
    reaches: Mapping[str, Reach]
    """Where names are hidden that are not hidden everywhere."""
    stems: frozenset[str]
    """Names of hosts without their last number."""
    beginnings: frozenset[str]
    """The first words of all names: a quick test that rules out most texts."""
    longest: int
    """Words of a name."""

    def hide(self, message: str) -> str:
        """Returns `words` without the names, in time linear in its length, however many names there
        are."""
        if self.stems:
            message = _HOST_LIST.sub(self._without_list, message)
        return _TOKEN.sub(self._without_names, message) if self.labels else message

    def _without_list(self, match: re.Match[str]) -> str:
        return "hosts" if fold(match[1]) in self.stems else match.group()

    def _without_names(self, match: re.Match[str]) -> str:
        token = match.group()
        folded = fold(token)
        if not self.beginnings.intersection(_ATOM.findall(folded)):
            return token
        parts, copied = [], 0
        for start, ends in _find_spans(folded, self.longest):
            for end in ends if start >= copied else ():
                label = self.labels.get(folded[start:end])
                if label is not None and self._is_reached(match, start, end):
                    parts += [token[copied:start], label]
                    copied = end
                    break
        return "".join([*parts, token[copied:]])

    def _is_reached(self, match: re.Match[str], start: int, end: int) -> bool:
        reach = self.reaches.get(fold(match.group()[start:end]), Reach.ANYWHERE)
        if reach is Reach.ANYWHERE:
            return True
        if (start, end) != (0, len(match.group())):
            return False
        message, first, last = match.string, match.start(), match.end()
        in_path = message[first - 1 : first] in {"/", "\\", "~"} or message[last : last + 1] == "@"
        return reach is Reach.ALONE or in_path


def _find_spans(token: str, longest: int) -> Iterator[tuple[int, list[int]]]:
    """Yields where names may begin, and for each where it may end, furthest first."""
    spans = [match.span() for match in _ATOM.finditer(token)]
    for place, (start, _) in enumerate(spans):
        yield start, [end for _, end in reversed(spans[place : place + longest])]


def is_plain(name: str) -> bool:
    """Returns whether `Names` can find it: a name with few enough words."""
    return bool(_TOKEN.fullmatch(name)) and len(_ATOM.findall(name)) <= MOST_WORDS


def make_names(
    hosts: Mapping[str, str], users: Mapping[str, bool], domains: Iterable[str]
) -> Names:
    """Returns the names to hide. `hosts`: name -> label. `users`: name -> whether it is surely a
    name."""
    reaches: dict[str, Reach] = {}
    for name in hosts:
        if name in COMMON or (len(name) < 4 and name.isalpha()):
            reaches[name] = Reach.ALONE
    for name in users.keys() - hosts.keys():
        if not users[name] or len(name) < 3:
            reaches[name] = Reach.FOLDER
        elif len(name) == 3:
            reaches[name] = Reach.ALONE
    labels = {**dict.fromkeys(domains, "domain"), **dict.fromkeys(users, "user"), **hosts}
    atoms = {name: _ATOM.findall(name) for name in labels}
    return Names(
        labels,
        reaches,
        frozenset(_LAST_NUMBER.sub("", name) for name in hosts if name[-1:].isdigit()),
        frozenset(parts[0] for parts in atoms.values()),
        max((len(parts) for parts in atoms.values()), default=0),
    )


def number_hosts(recorded: Iterable[str], further_hosts: Iterable[str]) -> dict[str, str]:
    """Name -> `host-1`, …: of folded names, those that were recorded first. A host and
    its name without the domain have one label."""
    first = sorted({*recorded})
    order = [*first, *sorted({*further_hosts}.difference(first))]
    qualified: dict[str, str] = {}
    for name in order:
        if "." in name:
            qualified.setdefault(name.partition(".")[0], name)
    labels: dict[str, str] = {}
    unused = (label for number in count(1) if (label := f"host-{number}") not in {*order})
    for name in order:
        same = qualified.get(name, name)
        labels[name] = labels.get(same) or next(unused)
        labels[same] = labels[name]
    for short, name in qualified.items():
        if name in first or (may_be_host(short) and re.search(r"[\d-]", short)):
            labels.setdefault(short, labels[name])
    return {name: label for name, label in labels.items() if not name.isdigit()}


def find_domains(hosts: Iterable[str]) -> frozenset[str]:
    """`cluster.example.org` and `example.org` of `node07.cluster.example.org`."""
    domains: set[str] = set()
    for name in hosts:
        labels = name.split(".")
        if labels[-1].isalpha():
            domains |= {".".join(labels[level:]) for level in range(1, len(labels) - 1)}
    return frozenset(domains)


@dataclass(frozen=True, slots=True)
class Relatives:
    """Finds hosts that are numbered like known ones (`node08` if `node07` is known) or share their
    domain."""

    patterns: frozenset[str]
    """Names with 0 for each number in them."""
    domains: frozenset[str]
    beginnings: frozenset[str]
    longest: int

    def find(self, message: str) -> Iterator[str]:
        for match in _TOKEN.finditer(fold(message)):
            token = match.group()
            if self.beginnings.isdisjoint(_ATOM.findall(_NUMBER.sub("0", token))):
                continue
            for start, ends in _find_spans(token, self.longest):
                for end in ends:
                    name = token[start:end]
                    if _NUMBER.sub("0", name) in self.patterns and may_be_host(name):
                        yield name
                    elif name in self.domains and token[start - 1 : start] == ".":
                        first = max(0, end - LONGEST)
                        yield token[token.rfind("_", first, start) + 1 or first : end]


def make_relatives(hosts: Iterable[str], domains: frozenset[str]) -> Relatives:
    short = {name.partition(".")[0] for name in hosts}
    patterns = frozenset(_NUMBER.sub("0", name) for name in short if _is_numbered(name))
    atoms = [_ATOM.findall(_NUMBER.sub("0", name)) for name in patterns | domains]
    longest = max(map(len, atoms), default=0)
    return Relatives(patterns, domains, frozenset(parts[0] for parts in atoms), longest)


def _is_numbered(name: str) -> bool:
    """Returns whether a name's numbers can be separated from the other characters."""
    letters = sum(letter.isalpha() for letter in name)
    return letters > 2 and any(letter.isdigit() for letter in name)
