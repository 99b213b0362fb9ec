"""What the names of log files tell of the ranks that wrote them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SAYS_RANK = re.compile(r"(?:^|[^A-Za-z0-9])(?:global_?)?rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBERED = (
    re.compile(r"(?:^|/)(\d{1,6})/(?:stdout|stderr)(?:\.log|\.txt)?(?:\.gz)?$"),  # torchrun
    re.compile(r"(?:^|/)rank\.(\d{1,6})/std(?:out|err)$"),  # Horovod, mpirun --output-filename
    re.compile(r"(?:^|/)slurm-\d+[_\-](\d{1,6})\.(?:out|err|log)(?:\.gz)?$"),
)


def ranks_of(names: Sequence[str]) -> list[int | None]:
    """The rank behind each name, or None.

    A name that says `rank` is believed. A bare number (torchrun's folders, slurm's tasks) counts
    only where several names differ in it: alone it may be anything.
    """
    said = [int(found[1]) if (found := _SAYS_RANK.search(_base(name))) else None for name in names]
    if any(rank is not None for rank in said):
        return said
    for form in _NUMBERED:
        matches = [form.search(name) for name in names]
        if len({match[1] for match in matches if match}) > 1:
            return [int(match[1]) if match else None for match in matches]
    return said


def _base(name: str) -> str:
    """The file's name and that of the folder that it lies in."""
    return "/".join(name.split("/")[-2:])
