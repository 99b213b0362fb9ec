"""The index of public console texts is sound, and its scorer counts only the texts it lists."""

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
    part_of,
)
from mgpu_doctor.rules.catalogue import OWN
from tests.support.log_texts import recorded_failures

INDEX = load_index()
FAULTY = recorded_failures()[0]


def listed(kind: Kind, *codes: str, text: str = FAULTY.text) -> tuple[ThreadText, str]:
    entry = ThreadText("sample", Part.OPEN, kind, codes, "https://x", 1, digest_of(text))
    return entry, text


def test_the_index_is_large_and_mixed() -> None:
    for kind, least in ((Kind.FAULTY, 150), (Kind.HEALTHY, 30)):
        addresses = {entry.address for entry in INDEX if entry.kind is kind}
        assert len(addresses) >= least
    aside = sum(entry.part is Part.ASIDE for entry in INDEX)
    assert 0.4 < aside / len(INDEX) < 0.6


def test_texts_of_the_index_are_distinct() -> None:
    for values in ([entry.name for entry in INDEX], [entry.digest for entry in INDEX]):
        assert len(set(values)) == len(values)


def test_the_part_follows_from_the_address() -> None:
    assert [entry.name for entry in INDEX if part_of(entry.address) is not entry.part] == []


def test_expected_codes_exist_and_faulty_texts_have_one() -> None:
    known = {rule.code for rule in OWN}
    assert {code for entry in INDEX for code in entry.codes} <= known
    assert all(entry.codes for entry in INDEX if entry.kind is Kind.FAULTY)


def test_only_texts_with_the_digest_are_scored(tmp_path: Path) -> None:
    entry, text = listed(Kind.FAULTY, FAULTY.code)
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
        (Kind.FAULTY, ("loss-nan", FAULTY.code), None),
        (Kind.FAULTY, ("loss-nan",), (FAULTY.code,)),
        (Kind.HEALTHY, (), (FAULTY.code,)),
        (Kind.HEALTHY, (FAULTY.code,), None),
    ],
)
def test_wrong_verdicts_are_counted(
    kind: Kind, codes: tuple[str, ...], verdicts: tuple[str, ...] | None, tmp_path: Path
) -> None:
    sample = listed(kind, *codes)
    expected = [] if verdicts is None else [Miss(sample[0], verdicts)]
    assert find_misses([sample], None, tmp_path) == expected
