"""NCCL RAS (NCCL 2.24 and later): what each rank has launched, and which communicators are
stuck.

This is a client of the port that NCCL opens on loopback in every job (`NCCL_RAS_ADDR`, else
localhost:28028); it opens no port itself. Written from NVIDIA's documentation of RAS and the
client in NCCL's source (src/ras/client.cc). NCCL 2.28 and later answer in JSON; older versions
in text that names only outliers. Not yet tested on GPUs.

    {version, timeouts, communicators: [{hash, size,
     ranks: [{rank, host, pid, device, launched}], missing: [{rank, host, pid, device, dead}]}]}

RAS counts the operations that each rank has launched in a communicator. Two answers that agree,
further apart than a wait in a healthy job lasts, show which ranks wait in which operation and
which ranks have not reached it. Those become a recorder's normalized dump (see `flight_format`)."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from mgpu_probes.outside.flight.flight_format import FORM, count_or_none
from mgpu_probes.outside.terminal_text import clean

ADDRESS = ("localhost", 28028)
PROTOCOL = 2
MOST_BYTES = 16 << 20
MOST_LINES = 100_000
MOST_RANKS = 1 << 17
Json = Any

_HEAD = re.compile(r"^#\d+-\d+ \((?P<hash>[0-9a-fA-F]{1,32})\)")
_COUNT = re.compile(r"^\s+\d+ ranks have launched up to operation (?P<launched>\d{1,18})")
_ONE = re.compile(
    r"^\s+Rank (?P<rank>\d{1,7})(?: has launched up to operation (?P<launched>\d{1,18}))? -- "
    r"GPU (?P<device>\S{1,32}) managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,255})"
)
_DEAD = re.compile(
    r"^\s+Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,255}) managing GPU (?P<device>\S{1,32})"
)
_MISSING_COMMA = re.compile(r'("nvml_dev"\s*:\s*-?\d+)([ \t\r]*\n\s*"status")')
"""NCCL 2.28.9 omits this comma if a rank is missing."""
APART = 6.0
"""Seconds between the two answers: the analysis counts a wait of less than 5 s as a delay."""
OPERATION = "an operation that NCCL counts"


class NoRasError(Exception):
    """RAS gave no usable answer; the message says why in a sentence."""


def ask_ras(address: tuple[str, int] = ADDRESS, timeout: float = 8.0) -> dict[str, Json]:
    """NCCL's report of the job. `timeout`: seconds in total; NCCL takes up to 5 s to collect from
    all of its processes. Raises NoRasError."""
    end = time.monotonic() + timeout
    try:
        with socket.create_connection(address, timeout=min(1.0, timeout)) as asked:
            hello = _line(asked, f"CLIENT PROTOCOL {PROTOCOL}", end)
            if not hello.upper().startswith("SERVER PROTOCOL"):
                raise NoRasError("what answers at NCCL's port is not NCCL")
            _line(asked, "SET FORMAT json", end)  # before 2.28 it is refused, and text follows
            asked.sendall(b"VERBOSE STATUS\n")
            return parse_ras(_rest(asked, end))
    except (OSError, TimeoutError) as error:
        raise NoRasError(f"NCCL's RAS gives no answer: {error}") from None


def parse_ras(raw: bytes) -> dict[str, Json]:
    """The report in RAS's JSON or text. Raises NoRasError."""
    text = raw[:MOST_BYTES].decode("utf-8", "replace").strip()
    start = text.find("{")
    if not text.startswith("{") and not (start > 0 and '"communicators"' in text):
        return _of_text(text)
    try:
        held = json.loads(_MISSING_COMMA.sub(r"\1,\2", text[start:]))
    except (ValueError, RecursionError):
        raise NoRasError("NCCL's RAS answered with damaged JSON") from None
    listed = held.get("communicators") if isinstance(held, dict) else None
    if not isinstance(listed, list):
        raise NoRasError("NCCL's RAS answered without communicators")
    ras = held.get("ras")
    return {
        "version": _text(held.get("nccl_version")),
        "timeouts": count_or_none(ras.get("timeouts_count")) if isinstance(ras, dict) else None,
        "communicators": [
            _communicator(communicator) for communicator in listed if isinstance(communicator, dict)
        ],
    }


def _communicator(held: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "hash": _text(held.get("hash")),
        "size": count_or_none(held.get("size")),
        "ranks": [
            {**_who(member), "launched": _launched(member)} for member in _objects(held, "ranks")
        ],
        "missing": [
            {**_who(member), "dead": _dead(member)} for member in _objects(held, "missing_ranks")
        ],
    }


def _who(held: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "rank": count_or_none(held.get("rank")),
        "host": _text(held.get("host")),
        "pid": count_or_none(held.get("pid")),
        "device": _text(str(held.get("cuda_dev"))) if held.get("cuda_dev") is not None else None,
    }


def _launched(held: Mapping[str, Json]) -> int | None:
    """The number of operations of all kinds; NCCL counts each kind separately."""
    counts = held.get("collective_counts")
    known = [count_or_none(count) for count in counts.values()] if isinstance(counts, dict) else []
    return sum(number for number in known if number is not None) if known else None


def _dead(held: Mapping[str, Json]) -> bool | None:
    status = held.get("status")
    dead = status.get("considered_dead") if isinstance(status, dict) else None
    return dead if isinstance(dead, bool) else None


def _of_text(text: str) -> dict[str, Json]:
    """The report in text, which names only outliers; other ranks are where most are."""
    communicators: list[dict[str, Json]] = []
    launched: int | None = None
    dead: list[dict[str, Json]] = []
    for line in text.splitlines()[:MOST_LINES]:
        if head := _HEAD.match(line):
            communicators.append({"hash": head["hash"], "size": None, "ranks": [], "missing": []})
            launched = None
        elif count := _COUNT.match(line):
            launched = int(count["launched"])
        elif (match := _ONE.match(line)) and communicators:
            number = int(match["launched"]) if match["launched"] else launched
            member = {"rank": int(match["rank"]), "host": clean(match["host"], 255)}
            where = {"pid": int(match["pid"]), "device": clean(match["device"], 32)}
            communicators[-1]["ranks"].append({**member, **where, "launched": number})
        elif gone := _DEAD.match(line):
            where = {"pid": int(gone["pid"]), "device": clean(gone["device"], 32)}
            dead.append({"rank": None, "host": clean(gone["host"], 255), **where, "dead": True})
    if not communicators and not dead and "Communicators" not in text:
        raise NoRasError("what answers at NCCL's port is not NCCL's RAS")
    if dead:
        communicators.append({"hash": None, "size": None, "ranks": [], "missing": dead})
    return {"version": None, "timeouts": None, "communicators": communicators}


def _line(asked: socket.socket, command: str, end: float) -> str:
    asked.sendall(f"{command}\n".encode("ascii"))
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < 4096:
        asked.settimeout(max(0.01, end - time.monotonic()))
        piece = asked.recv(1)  # what follows the line belongs to the next answer
        if not piece:
            break
        answer += piece
    return answer.decode("utf-8", "replace")


def _rest(asked: socket.socket, end: float) -> bytes:
    pieces, size = [], 0
    while size < MOST_BYTES:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it takes too long")
        asked.settimeout(left)
        piece = asked.recv(1 << 16)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _objects(held: Mapping[str, Json], key: str) -> list[dict[str, Json]]:
    listed = held.get(key)
    kept = listed[:MOST_RANKS] if isinstance(listed, list) else []
    return [communicator for communicator in kept if isinstance(communicator, dict)]


def _text(value: object) -> str | None:
    return (clean(value, 255) or None) if isinstance(value, str) else None


def address_of(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """The address at which NCCL listens in a job with this environment; None: RAS is disabled."""
    if environ.get("NCCL_RAS_ENABLE") == "0":
        return None
    host, _, port = environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    if host and port.isdecimal() and 0 < int(port) < 1 << 16:
        return host.strip("[]"), int(port)
    return ADDRESS


def find_stuck_communicators(
    numbers: Mapping[int, int],
    address: tuple[str, int],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, Json], ...]:
    """A normalized dump for each rank of `numbers` (pid -> rank), with the communicators that make
    no progress; empty if RAS does not answer. Takes `APART` seconds if it answers."""
    try:
        began, first = time.time(), _counts(ask_ras(address), numbers)
        if not first:
            return ()
        sleep(APART)
        again, at = _counts(ask_ras(address), numbers), time.time()
    except NoRasError:
        return ()
    still = {group: held for group, held in again.items() if first.get(group) == held}
    return tuple(_normalized(rank, still, began, at) for rank in sorted({*numbers.values()}))


def _counts(events: Mapping[str, Json], numbers: Mapping[int, int]) -> dict[str, dict[int, int]]:
    """Communicator -> rank of the job -> operations launched. Only communicators that are wholly
    in these processes: NCCL numbers the ranks of each for itself."""
    counts: dict[str, dict[int, int]] = {}
    for communicator in events["communicators"]:
        known = {
            numbers[each["pid"]]: each["launched"]
            for each in communicator["ranks"]
            if each["pid"] in numbers and each["launched"] is not None
        }
        hosts = {each["host"] for each in communicator["ranks"]}
        whole = 1 < len(known) == len(communicator["ranks"]) and len(hosts) == 1
        if communicator["hash"] and whole and not communicator["missing"]:
            counts[communicator["hash"]] = known
    return counts


def _normalized(rank: int, still: Mapping[str, Mapping[int, int]], began: float, at: float) -> Json:
    mine = {group: held for group, held in still.items() if rank in held}
    return {
        "form": FORM,
        "rank": rank,
        "source": "NCCL RAS",
        "at": at,
        "slack": 0.0,
        "host": None,
        "pid": None,
        "version": None,
        "groups": {group: sorted(held) for group, held in mine.items()},
        "progress": {group: [held[rank], None, None] for group, held in mine.items()},
        "places": [],
        "collectives": [
            _entry(group, held[rank], began, waits=held[rank] > min(held.values()))
            for group, held in mine.items()
        ],
        "lost": 0,
        "unseen": 0,
    }


def _entry(group: str, launched: int, began: float, *, waits: bool) -> dict[str, Json]:
    return {
        "group": group,
        "backend": "nccl",
        "sequence": launched,
        "operation": OPERATION,
        "inputs": [],
        "outputs": [],
        "dtypes": [],
        "state": "started" if waits else "completed",
        "retired": not waits,
        "created": began,
        "started": began,
        "timeout": None,
        "p2p": False,
        "stack": [],
    }
