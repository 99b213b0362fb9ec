"""The table of evidence has no empty column."""

from __future__ import annotations

from mgpu_doctor.findings import Evidence
from mgpu_doctor.report.rank_rows import evidence_table


def test_columns_without_a_word_are_left_out() -> None:
    heads, rows = evidence_table([Evidence("own work", 0.2, "s", source="steps")])
    assert heads == ["measure", "value", "source"]
    assert rows == [["own work", "200 ms", "steps"]]


def test_a_column_in_which_one_row_says_something_stays() -> None:
    heads, rows = evidence_table([Evidence("a", 1, "s"), Evidence("b", 2, "s", 3)])
    assert heads == ["measure", "value", "against"]
    assert [row[2] for row in rows] == ["", "3 s"]
