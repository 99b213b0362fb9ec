"""What of a fix is copied to the clipboard. That it arrives is tested in real terminals."""

from __future__ import annotations

import pytest

from mgpu_doctor.tui.clipboard import code_of


@pytest.mark.parametrize(
    ("how", "copied"),
    [
        ("`DataLoader(x, a=4)`: it is 0 now, or `cache()`.", "DataLoader(x, a=4)\ncache()"),
        ("torchrun --nproc-per-node 4 train.py", "torchrun --nproc-per-node 4 train.py"),
        ("first `a`\nthen `b`", "first `a`\nthen `b`"),
        ("kill 12\x1b[201~; rm x", "kill 12; rm x"),
    ],
)
def test_of_a_fix_its_code_is_copied_and_nothing_that_steers_a_terminal(
    how: str, copied: str
) -> None:
    assert code_of(how) == copied
