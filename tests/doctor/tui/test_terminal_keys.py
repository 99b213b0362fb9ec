"""The thread for keys sleeps until there are keys or until it should end."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key, Paste
from textual.message import Message

from mgpu_doctor.tui import terminal_keys
from mgpu_doctor.tui.terminal_keys import KeysOver, read_keys

ENDED = None


class Reader:
    """A thread that reads keys from a pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self.over = KeysOver()
        self.events = queue.Queue[Message | None]()

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        for event in read_keys(self.read, self.over, XTermParser()):
            self.events.put(event)
        self.events.put(ENDED)

    def send(self, data: bytes) -> None:
        os.write(self.write, data)

    def key(self) -> str:
        event = self.events.get(timeout=60)
        assert isinstance(event, Key)
        return event.key


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.over.set()
    os.close(reader.write)


@pytest.mark.parametrize("soon", [0.0, 1.0])
def test_keys_come_at_once_and_the_thread_ends_when_it_should(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, soon: float
) -> None:
    monkeypatch.setattr(terminal_keys, "SOON", soon)
    for _ in range(2):  # again after the screen was suspended
        thread = reader.start()
        for key in "ab":
            reader.send(key.encode())
            assert reader.key() == key
        reader.over.set()
        assert reader.events.get(timeout=60) is ENDED
        thread.join(60)
        reader.over.clear()


def test_an_escape_alone_is_decided_without_a_further_key(reader: Reader) -> None:
    reader.start()
    reader.send(b"\x1b")
    assert reader.key() == "escape"


def test_a_paste_that_is_not_utf_8_is_a_paste_to_its_end(reader: Reader) -> None:
    """Its rest must not be taken for keys: `x` `y` stops the job."""
    reader.start()
    for part in (b"\x1b[200~a\xff\xc3", b"\x28x", b"\xe2\x82", b"\xac\x1b[201~", b"q\xffr"):
        reader.send(part)
    pasted = reader.events.get(timeout=60)
    assert isinstance(pasted, Paste)
    assert pasted.text == "a\ufffd\ufffd(x€"
    assert [reader.key() for _ in range(3)][::2] == ["q", "r"]
