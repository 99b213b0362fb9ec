"""The documentation's tables are those of the declarations."""

from pathlib import Path

import pytest
from mgpu_trainers import faults, reference
from mgpu_trainers.catalogue import TRAINERS
from mgpu_trainers.options import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_documents_have_the_declared_tables(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert "<!-- table: " in page
    assert reference.fill_tables(page) == page, "run `python -m mgpu_trainers.reference docs`"


def test_every_fault_and_option_is_in_a_table() -> None:
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in reference.PAGES)
    assert all(f"| `{kind}` |" in pages for kind in faults.KINDS)
    assert all(f"| `--{option.name}` |" in pages for option in OPTIONS)
    assert all(f"| `{trainer.name}` |" in pages for trainer in TRAINERS)


def test_every_trainer_takes_each_option_once() -> None:
    for trainer in TRAINERS:
        names = [option.name for option in trainer.options]
        assert len(names) == len(set(names))
