"""The times of collectives as text: a paragraph per process group, and the longest ones."""

from __future__ import annotations

from collections.abc import Iterator

from mgpu_doctor.analysis.collectives.collective_durations import (
    CollectiveTimes,
    GroupTimes,
    TimedCollective,
)
from mgpu_doctor.formatting import (
    format_count,
    format_rank_numbers,
    format_seconds,
    format_share,
)
from mgpu_doctor.report.text import line

LONGEST = 10
MOST_GROUPS = 8
MOST_LAST = 4
HEADINGS = ("collective", "transfer", "longest", "arrived last", "waited longest")


def render_collectives(times: CollectiveTimes) -> str:
    """Groups with most time in collectives first, and in each the longest collectives first."""
    blocks = ["\n".join(_group_lines(group)) for group in times.groups[:MOST_GROUPS]]
    left_out = len(times.groups) - MOST_GROUPS
    if left_out > 0:
        blocks.append(f"{format_count(left_out, 'group')} more with less time in collectives.")
    if times.unmatched:
        blocks.append(
            f"{format_count(times.unmatched, 'group')} not shown: no collective was timed on all "
            "ranks."
        )
    return "\n\n".join(blocks) + "\n"


def _group_lines(group: GroupTimes) -> Iterator[str]:
    yield (
        f"Group {line(group.group)} (ranks {format_rank_numbers(group.ranks)}): "
        f"{format_count(len(group.collectives), 'collective')} timed"
    )
    wait = _amount(group.wait, group.wait_share)
    yield f"  data moves      {_amount(group.transfer, group.transfer_share)}"
    yield f"  ranks wait      {wait} for the last one, mean of the ranks"
    lasts = [f"rank {rank}: {count}" for rank, count in group.last_arrivals.most_common(MOST_LAST)]
    yield f"  arrived last    {', '.join(lasts) or 'no rank clearly'}"
    yield ""
    rows = [HEADINGS, *(_row(timed) for timed in group.worst(LONGEST))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()


def _amount(seconds: float, share: float | None) -> str:
    """Seconds, and their share of the time if that is known."""
    duration = format_seconds(seconds)
    return duration if share is None else f"{duration} ({format_share(share)} of the time)"


def _row(timed: TimedCollective) -> tuple[str, ...]:
    first = max(timed.seconds, key=lambda rank: timed.seconds[rank])
    return (
        f"{line(timed.call.operation)} {timed.sequence}",
        format_seconds(timed.transfer),
        format_seconds(timed.longest),
        "together" if timed.last is None else f"rank {timed.last}",
        f"rank {first}: {format_seconds(timed.wait_of(first))}",
    )
