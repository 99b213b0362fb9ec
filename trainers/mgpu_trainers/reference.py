"""The tables of options and faults in the documentation, made from their declarations.

    python -m mgpu_trainers.reference docs

rewrites them in the pages of a folder, between `<!-- table: NAME -->` and `<!-- end -->`; a test
holds the pages against it. Imports no framework.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from mgpu_trainers import faults
from mgpu_trainers.capabilities import Framework
from mgpu_trainers.catalogue import TRAINERS
from mgpu_trainers.fault_spec import Key, list_keys
from mgpu_trainers.options import OPTIONS, RANKS, Option
from mgpu_trainers.trainer import Trainer

PAGES = ("trainers.md", "trainers-tf.md", "faults.md")
_TABLE = re.compile(r"(<!-- table: ([^>]+) -->\n\n).*?(\n<!-- end -->)", re.DOTALL)


def make_table(name: str) -> str:
    """The table of that name in Markdown: `options FRAMEWORK`, `faults GROUP` or `keys`."""
    kind, _, rest = name.partition(" ")
    if kind == "options":
        return _format_table(("option", "default", "trainers", ""), _option_rows(Framework(rest)))
    if kind == "faults":
        return _format_table(
            ("kind", "keys, with defaults", "trainers", "a rank"), _fault_rows(rest)
        )
    return _format_table(("key", "unit", "kinds", ""), _key_rows())


def fill_tables(page: str) -> str:
    """The text of a page with its tables regenerated."""
    return _TABLE.sub(lambda match: f"{match[1]}{make_table(match[2])}{match[3]}", page)


def _option_rows(framework: Framework) -> Iterator[tuple[str, ...]]:
    trainers = [trainer for trainer in TRAINERS if trainer.framework is framework]
    defaults = ", ".join(str(n) for n in sorted({t.default_ranks for t in trainers} - {1}))
    yield f"`--{RANKS.name}`", defaults, "all but those of one process", RANKS.help
    for option in OPTIONS:
        takers = [trainer for trainer in trainers if option in trainer.options]
        if takers:
            yield f"`--{option.name}`", _default(option), _names(takers, trainers), _help(option)


def _default(option: Option) -> str:
    if option.default is None:
        return option.default_text
    return f"`{option.default}` {option.unit}".rstrip()


def _help(option: Option) -> str:
    choices = f": {', '.join(f'`{choice}`' for choice in option.choices)}" if option.choices else ""
    return f"{option.help}{choices}"


def _names(takers: list[Trainer], trainers: list[Trainer]) -> str:
    if len(takers) == len(trainers):
        return "all"
    non_takers = [trainer for trainer in trainers if trainer not in takers]
    listed = non_takers if len(non_takers) < len(takers) / 2 else takers
    names = ", ".join(f"`{trainer.name}`" for trainer in listed)
    return f"all but {names}" if listed is non_takers else names


def _fault_rows(group: str) -> Iterator[tuple[str, ...]]:
    for kind in faults.GROUPS[group]:
        keys = " ".join(f"`{key.name}={key.default}`" for key in list_keys(kind))
        where = "all" if kind.needs is None else f"those whose {kind.needs.value}"
        yield f"`{kind.kind}`", keys, where, kind.summary


def _key_rows() -> Iterator[tuple[str, ...]]:
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for name, kind in faults.KINDS.items():
        for key in list_keys(kind):
            kinds.setdefault(_meaning(key), []).append(name)
    for (name, unit, text), names in kinds.items():
        several = "all" if len(names) == len(faults.KINDS) else ", ".join(f"`{n}`" for n in names)
        yield f"`{name}`", unit, several, text


def _meaning(key: Key) -> tuple[str, str, str]:
    return key.name, key.unit, key.help


def _format_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Rewrites the tables in the pages of the folder named on the command line."""
    for name in PAGES:
        page = Path(sys.argv[1]) / name
        page.write_text(fill_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
