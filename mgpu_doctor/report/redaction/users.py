"""Finds names of users in untrusted text: owners of home folders in paths, and logins.

Also lists the words that are never redacted although some hosts and users have such names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


def fold(name: str) -> str:
    """Returns the name in lower case with unchanged length: `İ` would become two characters."""
    return name.replace("İ", "I").lower()


def split_words(listed: str) -> frozenset[str]:
    """The words between blanks."""
    return frozenset(listed.split())


COMMON = split_words(
    """
    a adam addr address admin all ampere an and any app are argument as auto azureuser bert by can
    centos chief client cluster coder cpu cuda data dataset datasets debian default device docker
    down ec2-user endpoint env epoch false flag for from git gpu grace group head home homes hopper
    host hostname hosts if in input instead ip is it jenkins job jovyan launcher leader line local
    localdomain localhost localhost.localdomain login machine main master master_addr max may min
    model models must name names needs network no nobody node nodes none norm not null of on one
    option options or output pascal peer port process project projects ps public python rank ray
    remote root run runner runs server servers set shared should step task tensorflow test tests
    that the this tmp to torch train trainer training true ubuntu unknown unreachable user username
    users value volta vscode was when which with work worker workers workspace
    """
)

CODE = re.compile(
    r"(?:self|cls|args|cfg|config|opts?|os|sys|socket|dist|torch|tf|tensorflow|np|numpy|jax|keras"
    r"|pandas|accelerate|deepspeed|lightning|transformers|mgpu_\w{1,20})\..*"
    r"|.*\.(?:py[cix]?|c|cc|cpp|cxx|h|hh|hpp|cuh?|so|rs|go|java|jsx?|tsx?|sh|txt|log|out|err|ya?ml"
    r"|toml|json|html|csv|md|pth?|bin|tar|gz|zip|whl|ipynb|safetensors)"
)
"""Attributes and files, which may look like names of hosts and users."""

_AT = re.compile(r"(?<![\w.+-])([\w.+-]{2,64})@(?!plt\b|GLIBC|CXXABI|LIB)(?=[A-Za-z\[])")
_LOGIN = re.compile(r"(?<=://)[^\s/@'\"]{1,200}(?=@)")
_OWNER = re.compile(
    r"((?<![^\W_])(?:(?i:user(?:_?name)?|logname|owner))(?:[\"'\\]{0,2}\s{0,3}=\s{0,3}"
    r"[\"'\\]{0,2}|[\"'\\]{1,2}\s{0,3}:\s{0,3}[\"'\\]{1,2}|(?<=USER): |\s[\"']|(?<=--user)\s))"
    r"([A-Za-z_][\w.-]{0,63})(?![\w(]|[.-]\w)|(\buid=\d{1,10}\()([A-Za-z_][\w.-]{0,63})(?=\))"
)
_TILDE = re.compile(r"(?<![\w~/\\.-])~([A-Za-z_][\w.-]{0,63})(?=[/\\])")

_PATH = re.compile(r"(?:[/\\]{1,2}[^/\\\s'\",;:=()\[\]<>|`{}*?$]+)+")
_BEHIND = re.compile(r"(?:(?<!\S)-[A-Za-z]|:\d{1,5})$")
"""An option such as `-I`, or a port: an absolute path follows."""
_PART = re.compile(r"[^/\\]+")
_HOMES = re.compile(r"(?:homes?\d*|[Uu]sers|jusers)")
_WORKSPACES = re.compile(r"[a-z]{0,2}scratch\d*")
_BETWEEN = re.compile(r"j?users|staff|students?|people|sd|\d+|[A-Z][A-Z0-9_-]+")
"""Folders between the parent of all homes and a user's home."""


def find_users(message: str) -> Iterator[tuple[str, bool]]:
    """Returns names of users, and whether they are surely names."""
    for path in _PATH.finditer(message):
        owner = _find_owner(path)
        if owner is not None:
            yield owner.name, owner.at_home
    for match in _TILDE.finditer(message):
        yield match[1], True
    for match in _OWNER.finditer(message):
        name = match[2] or match[4]
        if not CODE.fullmatch(name):
            yield name.rstrip("."), True
    for match in _AT.finditer(message):
        yield match[1], False


def hide_homes(message: str) -> str:
    """Returns text with homes as `~`, and owners of workspace folders as `user`."""

    def hidden(path: re.Match[str]) -> str:
        owner = _find_owner(path)
        if owner is None:
            return path.group()
        if owner.at_home and owner.is_whole:
            return f"~{path.group()[owner.end :]}"
        return f"{path.group()[: owner.start]}user{path.group()[owner.end :]}"

    return _TILDE.sub("~", _PATH.sub(hidden, message))


def hide_logins(message: str) -> str:
    """Returns text without users before an `@` and after `USER=`, whatever their names."""

    def hidden(match: re.Match[str]) -> str:
        key, name = (match[1], match[2]) if match[2] else (match[3], match[4])
        return match.group() if fold(name) in COMMON or CODE.fullmatch(name) else f"{key}user"

    message = _LOGIN.sub("user", _OWNER.sub(hidden, message))
    return _AT.sub(lambda match: match.group() if fold(match[1]) in COMMON else "user@", message)


@dataclass(frozen=True, slots=True)
class _Owner:
    """The owner of a folder in a path; `start` and `end` of the part of the path to hide."""

    name: str
    start: int
    end: int
    at_home: bool
    """Whether it is in the parent folder of all homes, not only in a workspace."""
    is_whole: bool
    """Whether the path begins at the root."""


def _find_owner(path: re.Match[str]) -> _Owner | None:
    preceding = path.string[max(0, path.start() - 1) : path.start()]
    behind = _BEHIND.search(path.string[max(0, path.start() - 7) : path.start()])
    rooted = behind is not None or not (
        preceding.isalnum() or preceding in {".", "_", "-", "~", "*"}
    )
    from_root = rooted and not path.group().startswith("//") and not preceding.isdigit()
    parts = [*_PART.finditer(path.group())]
    names = [part.group() for part in parts]
    if names[0] == "root" and rooted:
        return _Owner("root", 1, parts[0].end(), True, from_root)
    for index, name in enumerate(names[:-1]):
        home = _is_home(names, index, rooted)
        workspace = _WORKSPACES.fullmatch(name) or (index == 0 and name == "work")
        if not home and not (rooted and workspace):
            continue
        place = index + 1
        while place < len(names) - 1 and _is_between(names[place], names[place + 1]):
            place += 1
        if home or names[place] not in COMMON:
            part = parts[place]
            return _Owner(names[place], part.start(), part.end(), home, from_root)
    return None


def _is_home(names: list[str], index: int, rooted: bool) -> bool:
    """Returns whether it is the parent folder of all homes."""
    name = names[index]
    if name == "user":  # HDFS, AFS
        return rooted and (
            index == 0 or _is_between(names[index + 1], (names[index + 2 : index + 3] or [""])[0])
        )
    return (name == "u" and index == 0 and rooted) or _HOMES.fullmatch(name) is not None


def _is_between(name: str, following: str) -> bool:
    """Returns whether it is a folder of some homes: of a group, or of users with the same
    initial."""
    initial = len(name) < 3 and following.startswith(name) and following != name
    return initial or _BETWEEN.fullmatch(name) is not None
