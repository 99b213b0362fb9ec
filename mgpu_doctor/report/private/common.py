"""Words that name nobody, although hosts and users are called so."""

from __future__ import annotations

import re


def fold(name: str) -> str:
    """The name in small letters, as long as before: `İ` alone would become two."""
    return name.replace("İ", "I").lower()


def split_words(words: str) -> frozenset[str]:
    """What stands between blanks."""
    return frozenset(words.split())


COMMON = split_words(
    """
    a adam addr address admin all ampere an and any app are argument as auto azureuser bert by can
    centos chief client cluster coder cpu cuda data dataset datasets debian default device docker
    down ec2-user endpoint env epoch false flag for from git gpu grace group head home homes hopper
    host hostname hosts if in input instead ip is it jenkins job jovyan launcher leader line local
    localdomain localhost localhost.localdomain login machine main master master_addr max may min
    model models must name names needs network no nobody node nodes none norm not null of on one
    option options or output pascal peer port process project projects ps public python rank ray
    remote root run runner server servers set shared should step task tensorflow test tests that
    the this tmp to torch train trainer training true ubuntu unknown unreachable user username
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
