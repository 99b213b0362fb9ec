"""Reads the texts of a black box: process metadata, last words, call sites."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.bounded_json import plain

from .boxheader import Geometry, read_at, word

_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Texts:
    birth: Mapping[str, Any]
    last_words: Mapping[str, Any]
    damage: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    raw: bytes
    value: Mapping[str, Any] | None
    """None: present, but unreadable."""


class TextReader:
    """Reads texts; parses one again only if it has changed."""

    def __init__(self, fd: int, at: Geometry) -> None:
        self._fd = fd
        self._at = at
        self._birth = _Held(b"", {})
        self._words = _Held(b"", {})
        self._site: tuple[int, str] | None = None

    def poll(self, header: bytes) -> Texts:
        """Returns the texts published by a header that was just read."""
        self._birth = self._fresh(header, self._birth, layout.BIRTH_SLOT, self._birth_place)
        self._words = self._fresh(header, self._words, layout.WORDS_USED, self._words_place)
        named = (("the process metadata", self._birth), ("the last words", self._words))
        return Texts(
            birth=self._birth.value or {},
            last_words=self._words.value or {},
            damage=tuple(f"{name} cannot be read" for name, known in named if known.value is None),
        )

    def site(self, published: int) -> str | None:
        """Returns the text that the word NOW_SITE refers to. A written text never changes."""
        if self._site is None or self._site[0] != published:
            text = self._read_site(published)
            if text is None:
                return None
            self._site = published, text
        return self._site[1]

    def _read_site(self, published: int) -> str | None:
        offset = published - 1
        used = min(word(read_at(self._fd, layout.STRINGS_USED, 8), 0), self._at.strings_size)
        if not 0 <= offset <= used - 2:
            return None
        at = self._at.strings + offset
        length = int.from_bytes(read_at(self._fd, at, 2), sys.byteorder)
        if offset + 2 + length > used:
            return None
        return read_at(self._fd, at + 2, length).decode("utf-8", "replace")

    def _fresh(
        self,
        header: bytes,
        known: _Held,
        word_at: int,
        place: Callable[[int], tuple[int, int] | None],
    ) -> _Held:
        published = header[word_at : word_at + 8]
        for _ in range(_ATTEMPTS):
            if not any(published):
                return known
            where = place(word(published, 0))
            if where is None:
                return _Held(published, None)
            raw = read_at(self._fd, *where)
            if raw == known.raw:
                return known
            known = _Held(raw, _object(raw))
            now = read_at(self._fd, word_at, 8)
            if known.value is not None and now == published:
                break
            published = now
        return known

    def _birth_place(self, published: int) -> tuple[int, int] | None:
        slot, length = published >> 32, published & 0xFFFFFFFF
        if slot > 1 or length > self._at.birth_slot:
            return None
        return self._at.birth + slot * self._at.birth_slot, length

    def _words_place(self, published: int) -> tuple[int, int] | None:
        return (self._at.words, published) if published <= self._at.words_size else None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)


def _object(raw: bytes) -> Mapping[str, Any] | None:
    """Returns a JSON object, cut to the writer's own depth and length; None if `raw` is not one.
    The parser raises RecursionError on thousands of nested brackets."""
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return {key: plain(item) for key, item in value.items()}
