"""How often the first verdict on a console text is right: as printed, and as people pass it on.

    python -m benchmarks.log_verdicts [--part recorded|examples|healthy] [--missed] [--only TEXT]

`recorded`: logs of jobs that failed (tests/recorded/console/failed); `examples`: the message of
each signature by itself, the hardest form; `healthy`: logs of jobs that were well, on which any
finding above info is an alarm. All are also wrapped, indented, quoted, labelled and cut
(tests/support/log_variants.py). `--missed` lists what was wrong.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.support.log_texts import (
    ORIGINAL,
    FaultyText,
    HealthyText,
    alarms,
    examples,
    first_code,
    healthy_texts,
    recorded_failures,
)

PARTS = ("recorded", "examples", "healthy")


def judge_faulty(texts: Iterable[FaultyText], folder: Path, *, missed: bool) -> None:
    """Prints the share of right first verdicts, by variant."""
    right, all_of = Counter[str](), Counter[str]()
    for log in texts:
        for variant, text in log.variants():
            code = first_code(text, folder)
            all_of[variant] += 1
            right[variant] += code == log.code
            if missed and code != log.code:
                print(f"  {log.name}, {variant}: {code}, not {log.code}")
    for variant, count in all_of.items():
        print(f"{variant:<24} {right[variant]:4} of {count:4} right {right[variant] / count:7.1%}")
    changed = sum(all_of.values()) - all_of[ORIGINAL]
    print(f"{'all variants':<24} {(sum(right.values()) - right[ORIGINAL]) / max(1, changed):.1%}")


def judge_healthy(texts: Iterable[HealthyText], folder: Path) -> None:
    """Prints each alarm, and how many there were."""
    count = false = 0
    for log in texts:
        for variant, text in log.variants():
            count += 1
            if raised := alarms(text, folder):
                false += 1
                print(f"  {log.name}, {variant}: {', '.join(raised)}")
    print(f"{false} alarms on {count} healthy texts")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--only", default="", help="texts whose names hold this")
    parser.add_argument("--missed", action="store_true", help="list the wrong verdicts")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in chosen.part or PARTS:
            print(f"\n# {part}", flush=True)
            if part == "healthy":
                judge_healthy((log for log in healthy_texts() if chosen.only in log.name), folder)
                continue
            texts = recorded_failures() if part == "recorded" else examples()
            some = [log for log in texts if chosen.only in log.name]
            judge_faulty(some, folder, missed=chosen.missed)


if __name__ == "__main__":
    main()
