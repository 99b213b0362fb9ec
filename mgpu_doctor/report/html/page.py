"""The page around the report: style, policy, skeleton. Nothing is loaded and nothing runs."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from string import Template

from mgpu_doctor import __version__
from mgpu_doctor.report import phase_bars

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f9; --ink: #1b1f24; --soft: #5b6470;
  --line: #d9dde3; --critical: #b3261e; --warning: #9a5b00; --good: #1a7f4b; --unknown: #6b4fa3;
  --info: #0b66a8; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1d2127; --ink: #e6e9ed;
  --soft: #9aa4b1; --line: #343a43; --critical: #ff8a80; --warning: #ffb74d; --good: #69d39a;
  --unknown: #c3a9f5; --info: #7cc4ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 62rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
p { margin: .35rem 0; }
header { border-left: .4rem solid var(--tone); padding-left: 1rem; }
.critical { --tone: var(--critical); } .warning { --tone: var(--warning); }
.good { --tone: var(--good); } .unknown { --tone: var(--unknown); } .info { --tone: var(--info); }
.mark { color: var(--tone); font-weight: 700; }
.soft { color: var(--soft); } .small { font-size: .875rem; }
dl { display: grid; grid-template-columns: 6.5rem 1fr; gap: .35rem 1rem; margin: 1.2rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .8rem 1rem; margin: .7rem 0; }
.gain { color: var(--good); font-weight: 600; }
pre, code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .9em; }
pre { margin: .6rem 0; padding: .7rem .8rem; background: var(--paper); white-space: pre-wrap;
  border: 1px solid var(--line); border-radius: .35rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9375rem; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: normal; }
td.long { overflow-wrap: anywhere; min-width: 8rem; }
td.who { min-width: 7rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.ranks td { vertical-align: middle; white-space: nowrap; }
.ranks .bar { width: 60%; min-width: 11rem; white-space: normal; overflow-wrap: anywhere; }
.culprit td { font-weight: 700; } .culprit td:first-child { color: var(--warning); }
svg { display: block; width: 100%; height: 1.1rem; }
.graphs { display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)); gap: 1rem; }
figure { margin: 0; } .graph { height: 4.5rem; background: var(--card);
  border: 1px solid var(--line); }
.graph polyline { fill: none; stroke: var(--info); stroke-width: 1.5;
  vector-effect: non-scaling-stroke; }
.graph rect { fill: var(--line); } .graph .event { fill: var(--tone); }
.legend span { display: inline-block; margin-right: 1rem; white-space: nowrap; }
.legend svg { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
  vertical-align: -.08rem; }
.heat { display: block; width: 100%; image-rendering: pixelated; border: 1px solid var(--line); }
.ends { display: flex; justify-content: space-between; }
details { margin: .5rem 0; } summary { cursor: pointer; }
ul { padding-left: 1.2rem; margin: .4rem 0; } li { margin: .3rem 0; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .6rem; }
@media (max-width: 34rem) { body { padding: 1rem .8rem 2rem; } h1 { font-size: 1.3rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; } .step { display: none; }
  .ranks .bar { min-width: 7rem; } th, td { padding-right: .5rem; }
  .folds thead { display: none; } .folds td { display: block; border: 0; padding: .1rem 0; }
  .folds tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .folds td:empty { display: none; } .folds td + td::before { content: attr(data-head) ": ";
  color: var(--soft); font-weight: 400; }
  .events tr { display: grid; grid-template-columns: auto auto 1fr; gap: 0 .5rem;
  border-bottom: 1px solid var(--line); padding: .3rem 0; }
  .events td { border: 0; padding: 0; } .events .long { grid-column: 1 / -1; } }
@media print { body { max-width: none; padding: 0 1px; font-size: 10pt; }
  details::details-content { content-visibility: visible; block-size: auto; }
  h2, summary, thead { break-after: avoid; } figure { break-inside: avoid; }
  .card, tr { break-inside: avoid; }
  svg, .heat { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
_COLOURS = "".join(
    f".{name} {{ fill: {look.colour}; }}\n" for name, look in phase_bars.PHASE_STYLES.items()
)
_DARK_WAIT = "@media (prefers-color-scheme: dark) { .wait { fill: #4a515b; } }\n"
STYLE = f"{_STYLE}{_COLOURS}{_DARK_WAIT}"

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>$title</title>
<style>$style</style>
</head>
<body class="$tone">
$body
<footer class="soft small">mgpu-doctor $version</footer>
</body>
</html>
""")


def page(title: str, tone: str, body: str) -> str:
    """Returns the whole document; `body` is markup, the rest is text. The policy allows only this
    style, by its hash, and images embedded in the page."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return _PAGE.substitute(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        title=escape(title),
        style=STYLE,
        tone=escape(tone),
        body=body,
        version=escape(__version__),
    )
