"""The page is well-formed, loads nothing, and untrusted text never becomes markup."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from mgpu_doctor.report import html
from mgpu_doctor.report.html.heat_map import BAND, ROWS, heat_map, heat_section, write_png
from mgpu_doctor.report.html.page import SCRIPT
from tests.support import diagnoses

VOID = {"meta", "img", "br"}
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "p", "span", "strong",
    "dl", "dt", "dd", "div", "pre", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect",
    "polyline", "figure", "figcaption", "text", "ol", "script", "button", "canvas",
    "code", "img", "details", "summary", "ul", "li", "br", "footer",
}  # fmt: skip


class Walk(HTMLParser):
    """Tags must close in order; collects text, tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def walk(page: str) -> Walk:
    walker = Walk()
    walker.feed(page)
    walker.close()
    assert walker.open == []
    return walker


@pytest.mark.parametrize("name", diagnoses.ALL)
def test_well_formed_and_alone(name: str) -> None:
    page = html.render(diagnoses.ALL[name])
    seen = walk(page)
    assert seen.tags <= ALLOWED
    assert not re.search(r"https?://|@import|url\(", page)
    assert not any(key.startswith("on") or key in {"href", "style"} for key, _ in seen.attributes)
    sources = [value or "" for key, value in seen.attributes if key == "src"]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    page.encode("utf-8")


def test_the_policy_admits_the_style_the_script_and_nothing_else() -> None:
    page = html.render(diagnoses.healthy())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    style = re.search(r"<style>(.*?)</style>", page, re.S)
    assert policy
    assert style
    import hashlib

    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy.group(1)
    assert policy.group(1).startswith("default-src 'none'")
    script = re.search(r"<script>(.*?)</script>", page, re.S)
    assert script
    assert script.group(1) == SCRIPT
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy.group(1)
    assert "unsafe" not in policy.group(1)


def test_hostile_words_stay_words() -> None:
    page = html.render(diagnoses.failed())
    assert page.count("<script") == 1
    assert "\x1b" not in page
    assert "<script>alert(1)</script>" in "".join(walk(page).words)


def test_the_story_is_on_the_page() -> None:
    words = " ".join(walk(html.render(diagnoses.straggler())).words)
    for part in (
        "rank 2 is slow",
        "ranks 0, 1 and 3",
        "persistent_workers=True",
        "44 % less",
        "train.py:31",
        "no NVIDIA driver",
        "torchrun --nproc-per-node 4 train.py",
    ):
        assert part in words


def decode(png: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Pixels of an RGBA picture without filters; checks every chunk's sum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        data = png[at + 8 : at + 8 + size]
        (crc,) = struct.unpack_from(">I", png, at + 8 + size)
        assert crc == zlib.crc32(kind + data)
        parts[kind], at = data, at + 12 + size
    width, height, depth, colour = struct.unpack_from(">IIBB", parts[b"IHDR"])
    assert (depth, colour) == (8, 6)
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 4)


def test_the_heat_map_shows_the_slow_rank_alone() -> None:
    drawn = heat_map(diagnoses.straggler().case.ranks)
    assert drawn is not None
    pixels = decode(write_png(drawn.pixels))
    assert pixels.shape == (4, 240, 4)
    assert (pixels[2, :, 3] > 150).all()
    assert (pixels[2, :, 0] > pixels[2, :, 2]).all(), "orange: slower"
    assert not pixels[[0, 1, 3], :, 3].any(), "like the others: nothing drawn"


def test_the_heat_map_shows_what_is_missing_as_missing() -> None:
    ranks = list(diagnoses.healthy().case.ranks)
    ranks[1] = replace(ranks[1], steps=ranks[1].steps[:200])
    drawn = heat_map(ranks)
    assert drawn is not None
    pixels = decode(write_png(drawn.pixels))
    assert not pixels[1, :120, 3].any()
    assert (pixels[1, 121:] == (128, 128, 128, 60)).all()


def test_the_heat_map_is_bounded_and_keeps_the_one_slow_rank() -> None:
    drawn = heat_map(diagnoses.straggler(1000, 501).case.ranks)
    assert drawn is not None
    assert drawn.rows <= ROWS
    assert len(write_png(drawn.pixels)) < 20_000
    pixels = decode(write_png(drawn.pixels))
    assert np.flatnonzero(pixels[:, 0, 3] > 150).tolist() == [501 // drawn.ranks_a_row]


def test_a_high_heat_map_is_in_images_that_fit_on_a_page() -> None:
    section = heat_section(diagnoses.straggler(512, 77).case.ranks, frozenset({77}))
    heights = [int(height) for height in re.findall(r'class="heat" height="(\d+)"', section)]
    assert (len(heights), sum(heights)) == (3, 512)
    assert max(heights) <= BAND
    assert section.count('class="guilty"') == 1


def test_no_heat_map_of_nothing() -> None:
    assert heat_map(()) is None
    assert heat_map(diagnoses.healthy().case.ranks[:1]) is None


def test_the_table_of_evidence_says_on_a_phone_what_its_columns_say() -> None:
    page = html.render(diagnoses.straggler())
    assert '<table class="folds">' in page
    heads = {value for key, value in walk(page).attributes if key == "data-head"}
    assert {"measure", "value"} <= heads


def test_a_sentence_is_no_block_of_code_and_what_one_types_in_it_is_code() -> None:
    made = diagnoses.straggler()
    fix = replace(made.findings[0].fixes[0], how="`dmesg -T` tells <who> it was")
    page = html.render(replace(made, findings=(replace(made.findings[0], fixes=(fix,)),)))
    assert "<p><code>dmesg -T</code> tells &lt;who&gt; it was</p>" in page
