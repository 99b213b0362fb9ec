"""The index of public console texts is sound, and its scorer counts only those texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.thread_verdicts import (
    Kind,
    Miss,
    Part,
    ThreadText,
    collect,
    digest_of,
    find_misses,
    load_index,
)
from mgpu_doctor.rules.catalogue import OWN
from tests.support.log_texts import CODES, CONSOLE

INDEX = load_index()
HEADER = "name,round,kind,codes,address,lines,sha256"
ROUNDS = (("a", 2), ("b", 9), ("c", 10), ("d", 10))
NAME, CODE = next(iter(CODES.items()))
TEXT = (CONSOLE / "failed" / f"{NAME}.log").read_text(encoding="utf-8").rstrip("\n")


def listed(kind: Kind, *codes: str, text: str = TEXT) -> tuple[ThreadText, str]:
    entry = ThreadText("sample", Part.OPEN, kind, codes, "https://x", 1, digest_of(text))
    return entry, text


@pytest.mark.parametrize("part", Part)
def test_each_part_of_the_index_is_large_and_mixed(part: Part) -> None:
    for kind, least in ((Kind.FAULTY, 110), (Kind.HEALTHY, 12)):
        texts = [entry for entry in INDEX if entry.part is part and entry.kind is kind]
        assert len({entry.address for entry in texts}) >= least


def test_texts_of_the_index_are_distinct() -> None:
    for values in ([entry.name for entry in INDEX], [entry.digest for entry in INDEX]):
        assert len(set(values)) == len(values)


def test_only_the_newest_round_is_set_aside(tmp_path: Path) -> None:
    index = tmp_path / "index.csv"
    rows = [f"{name},{number},faulty,loss-nan,https://x/{name},1,0" for name, number in ROUNDS]
    index.write_text("\n".join([HEADER, *rows]), encoding="utf-8")
    assert [entry.name for entry in load_index(index) if entry.part is Part.ASIDE] == ["c", "d"]


def test_no_thread_is_in_both_parts() -> None:
    threads = {part: {entry.address for entry in INDEX if entry.part is part} for part in Part}
    assert not threads[Part.OPEN] & threads[Part.ASIDE]


def test_expected_codes_exist_and_faulty_texts_have_one() -> None:
    known = {rule.code for rule in OWN}
    assert {code for entry in INDEX for code in entry.codes} <= known
    assert all(entry.codes for entry in INDEX if entry.kind is Kind.FAULTY)


def test_only_texts_with_the_digest_are_scored(tmp_path: Path) -> None:
    entry, text = listed(Kind.FAULTY, CODE)
    assert collect([entry], tmp_path).absent == (entry.name,)

    path = tmp_path / "open" / f"{entry.name}.txt"
    path.parent.mkdir()
    path.write_text("\n" + text.replace("\n", "  \n") + "\n\n", encoding="utf-8")
    assert [scored for scored, _ in collect([entry], tmp_path).texts] == [entry]

    path.write_text(f"{text}\none more line", encoding="utf-8")
    assert collect([entry], tmp_path).different == (entry.name,)


@pytest.mark.parametrize(
    ("kind", "codes", "verdicts"),
    [
        (Kind.FAULTY, ("loss-nan", CODE), None),
        (Kind.FAULTY, ("loss-nan",), (CODE,)),
        (Kind.HEALTHY, (), (CODE,)),
        (Kind.HEALTHY, (CODE,), None),
    ],
)
def test_wrong_verdicts_are_counted(
    kind: Kind, codes: tuple[str, ...], verdicts: tuple[str, ...] | None, tmp_path: Path
) -> None:
    sample = listed(kind, *codes)
    expected = [] if verdicts is None else [Miss(sample[0], verdicts)]
    assert find_misses([sample], None, tmp_path) == expected
