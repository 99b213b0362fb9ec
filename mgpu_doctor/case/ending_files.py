"""`ending.json` to typed facts. The file is a stranger's until it is parsed here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

from mgpu_doctor.case.endings import (
    Counters,
    Ending,
    Kill,
    LimitedProcess,
    MemoryGroup,
    Place,
    Room,
)
from mgpu_doctor.case.files import Json, moment, read_object, text, whole
from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.case.model import Gap, Unexamined
from mgpu_doctor.recording import layout

MOST_KILLS = 256
MOST_GROUPS = 256
MOST_PROCESSES = 4096
MOST_PLACES = 64
MOST_NAMES = 32
LONGEST_NAME = 600
KERNEL_LOG = "kernel log"


def read_endings(
    hosts: Iterable[Path], until: float | None = None, *, root: Path
) -> tuple[tuple[Ending, ...], tuple[Unexamined, ...]]:
    """What the recorded hosts tell of deaths, and what could not be seen. A host without the file
    (an older recording) tells nothing. `until`: a tale written later is left out (replay)."""
    found: list[Ending] = []
    untold: dict[str, Unexamined] = {}
    for host in hosts:
        try:
            told = ending_of(host.name, read_object(host / layout.ENDING, root=root))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            reason = f"{host.name}: {error.strerror if isinstance(error, OSError) else error}"
            remedy = "record the job again; deaths were judged without it"
            untold.setdefault("file", Unexamined(layout.ENDING, reason, remedy))
            continue
        if until is not None and (told.at is None or told.at > until):
            continue
        found.append(told)
        if told.log_trouble is not None:
            untold.setdefault("log", _no_log(told.log_trouble))
    return tuple(found), tuple(untold.values())


def ending_of(host: str, content: Mapping[str, Json]) -> Ending:
    """One host's file. What is not as it should be is left out."""
    log, machine = _object(content.get("kernel_log")), _object(content.get("machine_kills"))
    groups = tuple(
        _group(known, one)
        for name, one in _items(content.get("groups"), MOST_GROUPS)
        if (known := text(name, LONGEST_NAME)) is not None
    )
    before, now = whole(machine.get("before")), whole(machine.get("now"))
    return Ending(
        host=text(content.get("host"), 64) or host,
        since=moment(content.get("since")),
        at=moment(content.get("at")),
        log_trouble=text(log.get("trouble"), 200) if log else "it was not recorded",
        own_pids=log.get("own_pids") is True,
        kills=tuple(
            kill
            for one in _list(content.get("kills"), MOST_KILLS)
            if (kill := _kill(one)) is not None
        ),
        machine_kills=None if before is None or now is None else max(0, now - before),
        machine_at=moment(machine.get("at")),
        groups=groups,
        processes={
            int(pid): _process(int(pid), one, groups)
            for pid, one in _items(content.get("processes"), MOST_PROCESSES)
            if len(pid) < 12 and pid.isascii() and pid.isdigit()
        },
        places=tuple(
            place
            for one in _list(content.get("places"), MOST_PLACES)
            if (place := _place(one)) is not None
        ),
    )


def _no_log(trouble: str) -> Unexamined:
    return Unexamined(
        KERNEL_LOG,
        trouble,
        "`sudo sysctl kernel.dmesg_restrict=0` or CAP_SYSLOG (in a container also /dev/kmsg), or "
        "look yourself: `dmesg -T | grep -i 'killed process'` on the host",
        Gap.KERNEL_LOG,
    )


def _kill(one: Mapping[str, Json]) -> Kill | None:
    pid, constraint = whole(one.get("pid"), 1), text(one.get("constraint"), 40)
    if pid is None:
        return None
    return Kill(
        pid=pid,
        at=moment(one.get("at")),
        name=text(one.get("name"), 64),
        resident=whole(one.get("resident")),
        limited=text(one.get("limited"), 300),
        by_group=None if constraint is None else constraint == "CONSTRAINT_MEMCG",
    )


def _group(name: str, one: Mapping[str, Json]) -> MemoryGroup:
    before, now = _counters(one.get("before")), _counters(one.get("now"))
    return MemoryGroup(name, before, now, moment(one.get("at")))


def _counters(value: Json) -> Counters:
    one = _object(value)
    names = ("limit", "used", "peak", "killed", "refused")
    return Counters(**{name: whole(one.get(name)) for name in names})


def _process(pid: int, one: Mapping[str, Json], groups: Iterable[MemoryGroup]) -> LimitedProcess:
    limits: dict[str, tuple[int | None, int | None]] = {}
    for name, pair in _object(one.get("limits")).items():
        known = text(name, 40)
        if known and len(limits) < MOST_NAMES and isinstance(pair, list) and len(pair) == 2:
            limits[known] = (whole(pair[0]), whole(pair[1]))
    group = text(one.get("group"), LONGEST_NAME)
    above = [known.name for known in groups if f"{group}/".startswith(f"{known.name}/")]
    return LimitedProcess(
        pid=pid,
        parent=whole(one.get("parent")),
        files=whole(one.get("files")),
        most_files=whole(one.get("most_files")),
        limits=limits,
        groups=tuple(sorted(above, key=len, reverse=True)),
    )


def _place(one: Mapping[str, Json]) -> Place | None:
    path, now = text(one.get("path"), 500), _room(one.get("now"))
    before, least = _room(one.get("before")), _room(one.get("least"))
    roles = one.get("roles")
    if path is None or now is None:
        return None
    known = roles[:MOST_NAMES] if isinstance(roles, list) else []
    names = tuple(name for role in known if (name := text(role, 20)) is not None)
    return Place(path, names, before or now, now, least or now)


def _room(value: Json) -> Room | None:
    one = _object(value)
    size, free = whole(one.get("size")), whole(one.get("free"))
    if size is None or free is None:
        return None
    inodes, left = whole(one.get("inodes")), whole(one.get("inodes_free"))
    return Room(size, free, inodes, left, moment(one.get("at")))


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _list(value: Json, most: int) -> Iterator[Mapping[str, Json]]:
    for one in value[:most] if isinstance(value, list) else ():
        yield _object(one)


def _items(value: Json, most: int) -> Iterator[tuple[str, Mapping[str, Json]]]:
    for _, (name, one) in zip(range(most), _object(value).items(), strict=False):
        yield name, _object(one)


def unread_log(samples: Iterable[DeviceSample], gaps: Container[Gap | None]) -> list[Unexamined]:
    """Where the kernel's log could not be read for XIDs, once for all hosts, and not at all where
    it is among `gaps` already."""
    newest = {sample.host: sample for sample in samples if sample.devices}
    deaf = [one for one in newest.values() if one.kernel_log_trouble is not None]
    if not deaf or Gap.KERNEL_LOG in gaps:
        return []
    reason = deaf[0].kernel_log_trouble or ""
    unheard = next((one.events_trouble for one in deaf if one.events_trouble), None)
    left = f"nor from the driver: {unheard}" if unheard else "only those the driver reports (NVML)"
    return [
        Unexamined(
            KERNEL_LOG,
            f"{reason}; so XIDs of GPUs are not known from there, {left}",
            "`sudo sysctl kernel.dmesg_restrict=0` or CAP_SYSLOG (in a container also /dev/kmsg), "
            "or look yourself: `dmesg -T | grep NVRM` on the host",
            Gap.KERNEL_LOG,
        )
    ]
