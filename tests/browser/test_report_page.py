"""The report in a real browser: `make test-browser` gets one and tells where it is. The pages are
those that a user gets, opened from disk, with the policy that they carry."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mgpu_doctor.analysis.comparing.comparison import Comparison, compared
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.report import comparison_html as compared_html
from mgpu_doctor.report import html
from tests.support import diagnoses
from tests.support.browser import SIZES, Browser, Colour
from tests.support.compared_runs import run, step_times
from tests.support.recordings import HEALTHY, SLOW_INPUT, WAITING, recording

pytestmark = pytest.mark.browser

LEAST_CONTRAST = 4.5
"""Of text against what lies behind it: WCAG 2.2, criterion 1.4.3 (AA)."""
DIAGNOSES = ("straggler", "straggler-512", "failed", "hang", "unknown")
COMPARISONS = ("strategies", "harm")
PAGES = ("recording", "healthy-recording", *DIAGNOSES, *COMPARISONS)
BOX = "(() => {{ const b = {}.getBoundingClientRect(); return b.toJSON(); }})()"
FIX = 'document.querySelector(".card")'
TEXTS = {
    "headline": 'document.querySelector("h1")',
    "job": 'document.querySelector("header .soft")',
    "label": 'document.querySelector("dt")',
    "cause": 'document.querySelectorAll("dd")[2]',
    "fix": 'document.querySelector(".card p")',
    "gain": 'document.querySelector(".gain")',
}
OUTSIDE = """
[...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  return !one.closest(".wide") && box.width && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((one) => one.outerHTML.slice(0, 200))
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = os.environ["MGPU_DOCTOR_TEST_BROWSER"]
    started = Browser(command, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of that name, of a recording or of a diagnosis made by hand."""
    folder = tmp_path_factory.mktemp("pages")
    recording(folder / "slow", [WAITING, WAITING, SLOW_INPUT, WAITING])
    recording(folder / "well", [HEALTHY] * 4)
    made = {
        **{name: html.render(diagnoses.ALL[name]) for name in DIAGNOSES},
        "recording": html.render(diagnose(load_recording(folder / "slow"))),
        "healthy-recording": html.render(diagnose(load_recording(folder / "well"))),
        "strategies": compared_html.render_comparison_html(beside("ddp", "fsdp")),
        "harm": compared_html.render_comparison_html(beside(diagnoses.HOSTILE, "x" * 300)),
    }

    def written(name: str) -> Path:
        path = folder / f"{name}.html"
        path.write_text(made[name], encoding="utf-8")
        return path

    return written


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_it_asks_for_nothing_and_fits_the_window(
    browser: Browser, page: Callable[[str], Path], name: str, size: str
) -> None:
    at = page(name)
    browser.open(at, size)
    assert [
        request for request in browser.requests() if not request.startswith("data:image/png")
    ] == [at.as_uri()]
    assert complaints(browser) == []
    assert browser.value("innerWidth") == SIZES[size][0]
    assert browser.value("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert browser.value(OUTSIDE) == []


def test_its_style_is_let_in_by_its_own_policy(
    browser: Browser, page: Callable[[str], Path]
) -> None:
    at = page("recording")
    browser.open(at, "desk")
    styled = browser.value('getComputedStyle(document.querySelector(".card")).borderRadius')
    assert styled == "8px"
    at.write_text(at.read_text("utf-8").replace("--paper: #fff", "--paper: #ffe"), "utf-8")
    browser.open(at, "desk")
    assert browser.value('getComputedStyle(document.querySelector(".card")).borderRadius') == "0px"
    assert complaints(browser)


def test_the_first_screen_tells_who_why_and_what_to_do(
    browser: Browser, page: Callable[[str], Path]
) -> None:
    at = page("recording")
    worst = diagnose(load_recording(at.parent / "slow")).findings[0]
    browser.open(at, "desk")
    words = browser.value(
        '[...document.querySelectorAll("h1, dd, .card")]'
        ".filter((one) => one.getBoundingClientRect().bottom <= innerHeight)"
        '.map((one) => one.innerText).join("\\n")'
    )
    assert worst.title in words
    assert worst.cause.partition(":")[0] in words
    assert worst.fixes[0].summary in words
    assert re.search(r"^Fix ", words, re.M)
    assert "per step instead of" in words


def test_on_a_phone_the_fix_begins_on_the_first_screen(
    browser: Browser, page: Callable[[str], Path]
) -> None:
    browser.open(page("recording"), "phone")
    assert "Rank 2" in browser.value('document.querySelector("h1").innerText')
    assert browser.value(BOX.format(FIX))["top"] < SIZES["phone"][1]


def test_on_a_phone_every_cell_of_a_table_has_its_title(
    browser: Browser, page: Callable[[str], Path]
) -> None:
    """The first, too: a rank would be a bare number."""
    browser.open(page("recording"), "phone")
    before = 'getComputedStyle(cell, "::before").content'
    titles = browser.value(f'[...document.querySelectorAll(".folds td")].map(cell => {before})')
    assert any("measure" in title for title in titles)
    assert "none" not in titles


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_in_both_schemes(
    browser: Browser, page: Callable[[str], Path], dark: bool
) -> None:
    browser.open(page("recording"), "desk", dark=dark)
    boxes = {name: browser.value(BOX.format(text)) for name, text in TEXTS.items()}
    shot = browser.screenshot()
    for name, box in boxes.items():
        behind, ink = paper_and_ink(browser.colours(shot, box))
        assert (luminance(behind) < 0.1) == dark, name
        assert contrast(behind, ink) >= LEAST_CONTRAST, (name, behind, ink)


def test_anybodys_words_stay_words(browser: Browser, page: Callable[[str], Path]) -> None:
    """The title would be another if their script ran; an alert would be an event."""
    at = page("failed")
    text = at.read_text("utf-8")
    browser.open(at, "desk")
    assert browser.value("document.querySelectorAll('script').length") == 1, "the page's own"
    assert "<script>alert(1)</script>" in browser.value("document.body.innerText")
    assert not [one for one, _ in browser.events if one == "Page.javascriptDialogOpening"]
    # Were one of them let through some day, the policy would still stop it.
    harm = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
    at.write_text(text.replace("</footer>", f"</footer>{harm}"), "utf-8")
    browser.open(at, "desk")
    assert browser.value("document.querySelectorAll('script').length") == 2
    assert browser.value("document.title").endswith("– mgpu-doctor")
    assert len(complaints(browser)) >= 2


PLOT = 'document.querySelector(".lane canvas")'
TICKS = '[...document.querySelectorAll(".ticks span")].map((tick) => tick.innerText)'
PIXELS = """
(() => {
  const canvas = document.querySelectorAll(".lane canvas")[%d], seen = {};
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] === 255) {
      const colour = `rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})`;
      seen[colour] = (seen[colour] || 0) + 1;
    }
  }
  return seen;
})()
"""
INPUT = "rgb(230, 159, 0)"


def test_one_zooms_into_the_steps_of_ranks(browser: Browser, page: Callable[[str], Path]) -> None:
    browser.open(page("recording"), "desk")
    drawn = [browser.value(PIXELS % lane) for lane in range(4)]
    shares = [colours.get(INPUT, 0) / sum(colours.values()) for colours in drawn]
    assert shares[2] > 0.3 > max(shares[:2] + shares[3:]), shares
    whole = browser.value(TICKS)
    browser.value("document.querySelector('[data-move=in]').click()")
    zoomed = browser.value(TICKS)
    assert zoomed != whole
    graph = "document.querySelector('svg.graph').viewBox.baseVal.width"
    assert browser.value(graph) == pytest.approx(300), "half of the run"
    browser.value("document.querySelector('[data-move=whole]').click()")
    assert browser.value(TICKS) == whole
    drag(browser, 0.4, 0.6)
    assert browser.value(graph) == pytest.approx(120, abs=3), "a fifth of the run"
    assert re.search(r"^rank 0 at .*: step \d+, .*forward", reading(browser), re.M)
    assert complaints(browser) == []


def test_a_fix_is_copied(browser: Browser, page: Callable[[str], Path]) -> None:
    browser.open(page("straggler"), "desk")
    code = browser.value("document.querySelector('.fix pre, .fix p code').textContent")
    browser.value(
        "document.execCommand = (what) => { window.copied = [what, `${getSelection()}`]; "
        "return true; }; document.querySelector('.fix .copy').click()"
    )
    assert browser.value("window.copied") == ["copy", code]
    assert browser.value("document.querySelector('.fix .copy').innerText") == "copied"


def drag(browser: Browser, left: float, right: float) -> None:
    """Drags over the first lane, from one share of its width to another."""
    browser.value(f"{PLOT}.scrollIntoView()")
    box = browser.value(BOX.format(PLOT))
    for kind, share in (("mousePressed", left), ("mouseMoved", right), ("mouseReleased", right)):
        place = {"x": box["x"] + share * box["width"], "y": box["y"] + box["height"] / 2}
        wish = {"type": kind, "button": "left", "clickCount": 1, **place}
        browser.ask("Input.dispatchMouseEvent", wish)


def reading(browser: Browser) -> str:
    return str(browser.value("document.querySelector('.reading').innerText"))


def test_it_prints_whole(browser: Browser, page: Callable[[str], Path]) -> None:
    """On paper what is folded is open: `Also found` tells its fixes."""
    browser.open(page("straggler"), "desk")
    shown = "document.querySelector('details .card').checkVisibility()"
    assert browser.value(shown) is False
    pdf = browser.printed()
    browser.ask("Emulation.setEmulatedMedia", {"media": "print"})
    opened = browser.value(shown)
    browser.ask("Emulation.setEmulatedMedia", {"media": ""})
    assert opened is True
    assert pdf.startswith(b"%PDF-")


def beside(*names: str) -> Comparison:
    """Runs of those names; each next is slower than the last."""
    return compared(
        [
            run(name, (1 + 0.2 * i) * step_times(200, i), ranks=2, settings={"strategy": name})
            for i, name in enumerate(names)
        ]
    )


def complaints(browser: Browser) -> list[str]:
    """What the browser has against the page: what its policy stopped, mistakes in its style."""
    return [about["entry"]["text"] for name, about in browser.events if name == "Log.entryAdded"]


def paper_and_ink(colours: Mapping[Colour, int]) -> tuple[Colour, Colour]:
    """The colour most pixels have, and of those that more than a few have the one farthest from it:
    between them lies what smooths the letters."""
    behind = max(colours, key=lambda colour: colours[colour])
    many = [one for one, pixels in colours.items() if pixels >= 5]
    return behind, max(many, key=lambda one: contrast(behind, one))


def contrast(one: Colour, other: Colour) -> float:
    """WCAG's ratio, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: Colour) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2.2)."""
    parts = [part / 255 for part in colour]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
