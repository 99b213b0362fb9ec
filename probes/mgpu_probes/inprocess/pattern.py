"""Finds the turn of a loop that shows nothing but collectives, from their recurring call sites."""

from __future__ import annotations

from .pieces import Piece


def turns(pieces: list[Piece], repeats: int) -> tuple[list[list[Piece]], list[Piece]]:
    """Complete turns, and the rest that begins the next one.

    A turn is the shortest pattern of call sites that fills the end of `pieces` `repeats` times. It
    begins with the call that is the first by file and line: ranks that run the same program then
    cut at the same place, whatever is slow on one of them.
    """
    calls = [piece.call for piece in pieces]
    for period in range(1, len(calls) // repeats + 1):
        span = period * repeats
        if calls[-period:] * repeats != calls[-span:]:
            continue
        start = len(calls) - span
        while start > 0 and calls[start - 1] == calls[start - 1 + period]:
            start -= 1
        pattern = calls[-period:]
        turned = min(
            range(period), key=lambda at: [c or ("", 0, "") for c in pattern[at:] + pattern[:at]]
        )
        start += (len(calls) - period + turned - start) % period
        whole = [pieces[at : at + period] for at in range(start, len(pieces) - period + 1, period)]
        return whole, pieces[start + period * len(whole) :]
    return [], pieces
