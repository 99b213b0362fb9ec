"""How often the first verdict is right on console output from public threads and repositories.

    python -m benchmarks.thread_verdicts --texts FOLDER [--part open|aside] [--wrap 80] [--missed]

The texts belong to the people who posted them and are not in this repository.
`thread_texts.csv` lists, for each: the round in which it was collected, its kind, the codes that an
expert would accept, its public address, its number of lines and its digest. Collect the texts from
the addresses into FOLDER/open/NAME.txt and FOLDER/aside/NAME.txt; those whose digest differs are
not scored.

The newest round is set aside: it measures what was achieved. Older rounds are open: improve the
product with those. Before you read the misses of the newest round, collect another one.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.support.log_texts import alarms, first_code
from tests.support.log_variants import wrap

INDEX = Path(__file__).with_name("thread_texts.csv")


class Part(str, Enum):
    OPEN = "open"
    ASIDE = "aside"


class Kind(str, Enum):
    FAULTY = "faulty"
    HEALTHY = "healthy"


@dataclass(frozen=True)
class ThreadText:
    """One row of the index."""

    name: str
    part: Part
    kind: Kind
    codes: tuple[str, ...]
    """Codes that are right as the first verdict; for a healthy text, codes that are no alarm."""
    address: str
    lines: int
    digest: str


def digest_of(text: str) -> str:
    """SHA-256 of the text without blanks at the ends of lines and blank lines around it."""
    lines = [line.rstrip() for line in text.split("\n")]
    return hashlib.sha256("\n".join(lines).strip("\n").encode()).hexdigest()


def load_index(path: Path = INDEX) -> list[ThreadText]:
    with path.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    newest = max(int(row["round"]) for row in rows)
    return [
        ThreadText(
            name=row["name"],
            part=Part.ASIDE if int(row["round"]) == newest else Part.OPEN,
            kind=Kind(row["kind"]),
            codes=tuple(row["codes"].split()),
            address=row["address"],
            lines=int(row["lines"]),
            digest=row["sha256"],
        )
        for row in rows
    ]


@dataclass(frozen=True)
class Collected:
    """What a folder holds of the texts of the index."""

    texts: tuple[tuple[ThreadText, str], ...]
    absent: tuple[str, ...]
    different: tuple[str, ...]


def collect(entries: Iterable[ThreadText], folder: Path) -> Collected:
    texts: list[tuple[ThreadText, str]] = []
    absent: list[str] = []
    different: list[str] = []
    for entry in entries:
        path = folder / entry.part.value / f"{entry.name}.txt"
        if not path.is_file():
            absent.append(entry.name)
            continue
        text = path.read_text(encoding="utf-8")
        if digest_of(text) == entry.digest:
            texts.append((entry, text.rstrip("\n")))
        else:
            different.append(entry.name)
    return Collected(tuple(texts), tuple(absent), tuple(different))


@dataclass(frozen=True)
class Miss:
    """A faulty text with another first verdict, or a healthy one with alarms."""

    entry: ThreadText
    verdicts: tuple[str, ...]


def find_misses(
    texts: Iterable[tuple[ThreadText, str]], width: int | None, folder: Path
) -> list[Miss]:
    misses = []
    for entry, original in texts:
        text = wrap(original, width) if width else original
        if entry.kind is Kind.FAULTY:
            code = first_code(text, folder)
            if code not in entry.codes:
                misses.append(Miss(entry, (code,) if code else ()))
        elif raised := tuple(code for code in alarms(text, folder) if code not in entry.codes):
            misses.append(Miss(entry, raised))
    return misses


def report(collected: Collected, misses: Sequence[Miss], title: str) -> None:
    count = {kind: sum(entry.kind is kind for entry, _ in collected.texts) for kind in Kind}
    wrong = {kind: sum(miss.entry.kind is kind for miss in misses) for kind in Kind}
    faulty, right = count[Kind.FAULTY], count[Kind.FAULTY] - wrong[Kind.FAULTY]
    share = f"{right / faulty:.1%}" if faulty else "none"
    print(f"{title}: first verdict right on {right} of {faulty} faulty texts ({share})")
    print(f"{title}: alarms on {wrong[Kind.HEALTHY]} of {count[Kind.HEALTHY]} healthy texts")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=Path, required=True, help="folder of the texts")
    parser.add_argument("--part", type=Part, choices=list(Part), help="by default, both")
    parser.add_argument("--wrap", type=int, metavar="WIDTH", help="also wrapped at this width")
    parser.add_argument("--missed", action="store_true", help="list the wrong verdicts")
    chosen = parser.parse_args()
    entries = load_index()
    with tempfile.TemporaryDirectory() as name:
        for part in [chosen.part] if chosen.part else Part:
            collected = collect((entry for entry in entries if entry.part is part), chosen.texts)
            for label, names in (("absent", collected.absent), ("different", collected.different)):
                if names:
                    print(f"{part.value}: {len(names)} texts {label}: {', '.join(names)}")
            for width in (None, chosen.wrap) if chosen.wrap else (None,):
                title = f"{part.value}, wrapped at {width}" if width else part.value
                misses = find_misses(collected.texts, width, Path(name))
                report(collected, misses, title)
                for miss in misses if chosen.missed else ():
                    verdicts = ", ".join(miss.verdicts) or "nothing"
                    expected = " or ".join(miss.entry.codes) or "no alarm"
                    print(f"  {miss.entry.name}: {verdicts}, not {expected}")


if __name__ == "__main__":
    main()
