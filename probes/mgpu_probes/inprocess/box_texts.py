"""Writes the texts of a black box: process metadata, call sites, last words.

Any function may raise; `blackbox.Writer` calls them under its lock and catches.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from mmap import mmap
from typing import Any

from . import layout
from .bounded_json import fitted, utf8

_LONGEST_SITE = 1024
"""Bytes of a call site's text."""


class Texts:
    """Process metadata, call sites and last words of one box."""

    def __init__(self, box: mmap, words: memoryview) -> None:
        self._box = box
        self._words = words
        self._at = layout.areas()
        self._birth: dict[str, Any] = {}
        self._last_words: dict[str, Any] = {}
        self._strings_used = 0
        self.sites: dict[str, int] = {}
        """Call site -> the number that stands for it in the now cell."""

    def birth(self, facts: Mapping[str, Any]) -> None:
        """Merges `facts` into the process metadata: writes them to the slot that is not in use,
        then switches to it, so that a reader always finds one complete slot."""
        self._birth.update(facts)
        raw = fitted(self._birth, layout.BIRTH_SLOT_SIZE)
        slot = 1 - (self._words[layout.BIRTH_SLOT // 8] >> 32)
        self._put(self._at["birth"] + slot * layout.BIRTH_SLOT_SIZE, raw)
        self._words[layout.BIRTH_SLOT // 8] = slot << 32 | len(raw)

    def site(self, text: str) -> int:
        """The number that stands for a call site, which is added if new; 0 if there is no room."""
        if text in self.sites:
            return self.sites[text]
        used = self._strings_used
        raw = utf8(text, _LONGEST_SITE)
        if used + 2 + len(raw) > layout.STRINGS_SIZE:
            return 0
        self._put(self._at["strings"] + used, struct.pack("=H", len(raw)) + raw)
        self._strings_used = used + 2 + len(raw)
        self._words[layout.STRINGS_USED // 8] = self._strings_used
        self.sites[text] = used + 1
        return used + 1

    def last_words(self, facts: Mapping[str, Any]) -> None:
        """Merges `facts` into the last words and rewrites them."""
        self._last_words.update(facts)
        raw = fitted(self._last_words, layout.WORDS_SIZE)
        self._words[layout.WORDS_USED // 8] = 0
        self._put(self._at["words"], raw)
        self._words[layout.WORDS_USED // 8] = len(raw)

    def _put(self, offset: int, raw: bytes) -> None:
        self._box[offset : offset + len(raw)] = raw
