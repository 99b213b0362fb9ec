"""What a scrape costs: making the page of a job and of 8 GPUs, its size, and that on the wire.

    python -m benchmarks.export_cost [--runs 15]

Examining the job is not counted: `benchmarks.top_cost` measures that.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Sequence

from benchmarks.support import machine, spread
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.export import metrics_page
from tests.support import diagnoses, frames

RANKS = (8, 64, 256, 1024, 4096)


def seconds(ranks: int, runs: int) -> tuple[list[float], bytes]:
    """CPU seconds of each page, and the page."""
    job = diagnoses.straggler(ranks, ranks // 2, Outcome.RUNNING)
    frame = frames.frame(job, devices=frames.eight_gpus())
    took = []
    for _ in range(runs):
        began = time.process_time()
        text = metrics_page.lines(metrics_page.families(frame, "node-a"))
        took.append(time.process_time() - began)
    return took, text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args(arguments)
    print(machine())
    for ranks in RANKS:
        took, text = seconds(ranks, args.runs)
        series = sum(not line.startswith(b"#") for line in text.splitlines())
        print(
            f"{ranks:5} ranks: {series:6} series, {len(text) / 1e3:7.1f} kB, "
            f"{len(gzip.compress(text, 1)) / 1e3:5.1f} kB compressed, "
            f"{spread(took, 'ms', 1e3, 1)} CPU"
        )


if __name__ == "__main__":
    main()
