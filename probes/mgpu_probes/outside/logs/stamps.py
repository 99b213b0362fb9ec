"""Time stamps at the beginning of a line: found, and turned into seconds since the epoch.

Understood: ISO 8601 and RFC 3339 (also Python's logging, absl, slurm, kubernetes, docker), glog and
torch's C++ log (`I0102 03:04:05.678901`, no year), syslog and journalctl (`Jan  2 03:04:05`, no
year). A stamp without a zone is taken as local time.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

MOST_ZONE = timedelta(hours=24)

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_FORMS = (
    re.compile(
        rf"[\[(]?(?P<y>(?:19|20)\d\d)[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ]{_CLOCK}"
        r"(?: ?(?P<z>Z|UTC|[+-]\d\d:?\d\d))?(?:[\])]|(?![\d.]))[:,]? ?"
    ),
    re.compile(rf"(?P<open>\[?)[IWEFDC](?P<mo>\d\d)(?P<d>\d\d) {_CLOCK} ?"),
    re.compile(
        rf"\[?(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?P<mon>{_MONTHS}) +(?P<d>\d\d?) {_CLOCK}"
        r"(?: (?P<y>(?:19|20)\d\d))?(?:\] ?| |(?=\[))"
    ),
)
_ABBREVIATED = _MONTHS.split("|")


def take(text: str, year: int | None = None) -> tuple[float | None, int | None, str] | None:
    """The stamp that `text` begins with: seconds, its own year, and the text after it.

    Seconds are None where the year is neither in the stamp nor given, or where it is no date. None
    where the text begins with no stamp. A bracket that a C++ log opens before its stamp stays open:
    `[E0102 03:04:05 x.cpp:1] text` becomes `x.cpp:1] text`.
    """
    for form in _FORMS:
        if found := form.match(text):
            own = int(found["y"]) if found.groupdict().get("y") else None
            return _seconds(found.groupdict(), own or year), own, text[found.end() :]
    return None


def _seconds(parts: dict[str, str | None], year: int | None) -> float | None:
    if year is None:
        return None
    month = parts.get("mo") or str(_ABBREVIATED.index(parts["mon"] or "") + 1)
    day, hour, minute, second = (int(parts[name] or 0) for name in ("d", "h", "m", "s"))
    fraction = float(f"0.{parts['f']}") if parts.get("f") else 0.0
    try:
        zone = _zone(parts.get("z"))
        moment = datetime(year, int(month), day, hour, minute, second, tzinfo=zone)
        return moment.timestamp() + fraction
    except (ValueError, OverflowError, OSError):  # the 31st of February; a year out of range
        return None


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    if text in ("Z", "UTC"):
        return timezone.utc
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    if offset >= MOST_ZONE:
        raise ValueError(f"no time zone: {text}")
    return timezone(-offset if text[0] == "-" else offset)
