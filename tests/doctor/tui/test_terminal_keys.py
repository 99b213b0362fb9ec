"""The thread for keys sleeps until there are keys or until it should end."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator

import pytest

from mgpu_doctor.tui import terminal_keys
from mgpu_doctor.tui.terminal_keys import KeysOver


@pytest.fixture
def keys() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_the_reader_is_answered_when_there_are_keys_or_it_should_end(
    keys: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_keys, "SOON", 0.0)
    over, answers = KeysOver(keys[0]), queue.Queue[bytes]()

    def read() -> None:
        over.reader = threading.get_ident()
        while not over.is_set():
            answers.put(os.read(keys[0], 1))

    for _ in range(2):  # again after the screen was suspended
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        for key in (b"a", b"b"):
            os.write(keys[1], key)
            assert answers.get(timeout=60) == key
        assert not over.is_set(), "others are answered at once"
        assert thread.is_alive()
        over.set()
        thread.join(60)
        assert not thread.is_alive()
        over.clear()


def test_the_reader_is_not_kept_waiting_soon_after_keys(keys: tuple[int, int]) -> None:
    over = KeysOver(keys[0])
    over.reader = threading.get_ident()
    os.write(keys[1], b"\x1b")
    assert not over.is_set()
    os.read(keys[0], 1)
    assert not over.is_set(), "an escape alone is decided without a further key"
