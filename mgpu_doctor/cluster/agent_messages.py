"""What an agent says, parsed: nothing that arrives is used before it is one of these types."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from mgpu_probes.outside.node.channel_frames import BadStream, RawFrame
from mgpu_probes.outside.stacks.rank_replies import NoReply
from msgspec import Meta, Struct

Number = Annotated[int, Meta(ge=0, lt=1 << 20)]
"""What the agent calls a job or a box."""
Whole = Annotated[int, Meta(ge=0, lt=1 << 62)]
Pid = Annotated[int, Meta(ge=1, lt=1 << 31)]
Moment = Annotated[float, Meta(ge=0, lt=1e11)]
"""Seconds since the epoch."""
Text = Annotated[str, Meta(max_length=500)]
HostName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
BoxPath = Annotated[
    str, Meta(max_length=4096, pattern=r"^(/|.*/)[^./\x00-\x1f][^/\x00-\x1f]{0,200}\.box$")
]
RingName: TypeAlias = Literal["steps", "events", "device"]
FileName = Annotated[
    str,
    Meta(
        pattern=r"^((exits|host|devices|looks)\.jsonl|flight/[0-9]{1,10}\.json|(tasks/[0-9]{1,4}/)?"
        r"((recording|end|ending)\.json|console/(console|stdout|stderr)\.log(\.1)?))\Z"
    ),
]


class _Message(Struct, tag_field="kind", frozen=True):
    pass


class Hello(_Message, tag="hello", frozen=True):
    """The first message. `host`: its own name; `at`: its clock."""

    host: HostName
    boot: Text | None
    pid: Pid
    python: Text
    user: Text
    at: Moment


class JobChanged(_Message, tag="job", frozen=True):
    """The body describes the job: `JobFacts`."""


class BoxFound(_Message, tag="box", frozen=True):
    """A box of a job; the body is its header at some moment. Of its path on the host only the name
    is used here."""

    box: Number
    job: Number
    path: BoxPath
    identity: Text


class NewRecords(_Message, tag="records", frozen=True):
    """Records of a ring, from the sequence number `first` on without a gap."""

    box: Number
    ring: RingName
    first: Annotated[int, Meta(ge=1, lt=1 << 62)]


class NewChunk(_Message, tag="chunk", frozen=True):
    """A part of another area of a box, compressed. `at`: its offset in the box."""

    box: Number
    at: Annotated[int, Meta(ge=0, lt=1 << 32)]


class NewHeader(_Message, tag="header", frozen=True):
    """The header of a box, compressed, after all to which it refers."""

    box: Number


class RecordingFound(_Message, tag="recording", frozen=True):
    """The job is recorded on its host. The path only identifies the recording."""

    job: Number
    path: Annotated[str, Meta(max_length=4096)]


class NewPart(_Message, tag="file", frozen=True):
    """A part of a file of that recording. `mark`: differs after the file was replaced."""

    job: Number
    name: FileName
    mark: Text
    at: Annotated[int, Meta(ge=0, lt=1 << 32)]


class ExitLine(Struct, frozen=True):
    """A line of exits.jsonl."""

    pid: Pid
    start_ticks: Whole
    at: Moment
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None
    signal: Annotated[int, Meta(ge=1, le=64)] | None
    how: Literal["gone", "zombie"]


class RankEnded(_Message, tag="exit", frozen=True):
    job: Number
    line: ExitLine


class NewHostSample(_Message, tag="host", frozen=True):
    """The body is a line of host.jsonl, of these jobs."""

    jobs: Annotated[tuple[Number, ...], Meta(max_length=256)]


class NewSnapshot(_Message, tag="stacks", frozen=True):
    """The body is a line of looks.jsonl: stacks that were asked for."""

    job: Number


class RankReplied(_Message, tag="reply", frozen=True):
    """The body is a part of what a rank replied to the request `id`, or of its trace. `last`: there
    is no more."""

    id: Whole
    box: Number
    failure: NoReply | None
    why: Text
    last: bool


class ClockTold(_Message, tag="clock", frozen=True):
    """The answer to a question about the clock. `asked`: as in the question; `arrived`: when that
    came, and `at`: when this went, by the host's clock."""

    asked: Moment
    arrived: Moment
    at: Moment


class Tick(_Message, tag="tick", frozen=True):
    """All that was new has been sent. `cpu`: processor seconds that the agent has used."""

    at: Moment
    cpu: Annotated[float, Meta(ge=0)]


Message: TypeAlias = (
    Hello
    | JobChanged
    | BoxFound
    | NewRecords
    | NewChunk
    | NewHeader
    | RecordingFound
    | NewPart
    | RankEnded
    | NewHostSample
    | NewSnapshot
    | RankReplied
    | ClockTold
    | Tick
)


class JobFacts(Struct, frozen=True):
    """A job on one host."""

    job: Number
    over: bool
    rendezvous: Annotated[tuple[Text, ...], Meta(max_length=8)]
    """Equal on all of its hosts; empty: unknown, or it has one host."""
    launcher: Text | None
    pid: Pid | None
    world_size: Whole | None
    command: Annotated[tuple[Text, ...], Meta(max_length=64)]
    ranks: Annotated[tuple[tuple[Whole | None, Pid], ...], Meta(max_length=4096)]
    """Rank (None: unknown) and pid."""
    boxes: Whole
    refused: Annotated[tuple[Text, ...], Meta(max_length=8)]
    """Why some boxes could not be read."""


_decode_message = msgspec.json.Decoder(Message).decode
_decode_job = msgspec.json.Decoder(JobFacts).decode


def parse_message(frame: RawFrame) -> Message:
    """The message of a frame. Raises BadStream."""
    try:
        message: Message = _decode_message(frame.head)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadStream(f"it sends what no agent of this version sends ({error})") from None
    return message


def parse_job(body: bytes) -> JobFacts:
    """The job that a body describes. Raises BadStream."""
    try:
        return _decode_job(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadStream(f"it sends a job that cannot be read ({error})") from None
