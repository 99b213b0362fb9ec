"""The page around the report: style, script, policy, skeleton. Nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path
from string import Template

from mgpu_doctor import __version__
from mgpu_doctor.report import phase_bars

_COLOURS = "".join(
    f".{name} {{ fill: {look.colour}; }}\n" for name, look in phase_bars.PHASE_STYLES.items()
)
_DARK_WAIT = "@media (prefers-color-scheme: dark) { .wait { fill: #4a515b; } }\n"
STYLE = f"{Path(__file__).with_name('page.css').read_text('utf-8')}{_COLOURS}{_DARK_WAIT}"
"""Light, dark, on a phone and on paper; phases have the colours that they have in a terminal."""
SCRIPT = Path(__file__).with_name("page.js").read_text("utf-8")
"""Copies fixes and zooms into the run. A page without it shows the same facts."""

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
<script>$script</script>
</body>
</html>
""")


def page(title: str, tone: str, body: str) -> str:
    """Returns the whole document; `body` is markup, the rest is text. The policy allows only this
    style and this script, by their hashes, and images embedded in the page."""
    return _PAGE.substitute(
        policy=f"default-src 'none'; style-src '{_digest(STYLE)}'; script-src '{_digest(SCRIPT)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        title=escape(title),
        style=STYLE,
        script=SCRIPT,
        tone=escape(tone),
        body=body,
        version=escape(__version__),
    )


def _digest(text: str) -> str:
    """Returns the source expression of a hash (W3C, Content Security Policy Level 3)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
