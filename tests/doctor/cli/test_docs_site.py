"""The pages of the site: all are reachable, and no link is broken."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages(nav: Any) -> Iterator[str]:
    for one in nav:
        for place in one.values():
            yield from [place] if isinstance(place, str) else pages(place)


def test_the_menu_has_every_page_once() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(pages(project["nav"])) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if not target.startswith(("http://", "https://", "#")):
            place = (page.parent / target.partition("#")[0]).resolve()
            assert place.exists(), f"{page.name} links to {target}"
            assert page.parent != DOCS or place.is_relative_to(DOCS), f"{target} is not in the site"
