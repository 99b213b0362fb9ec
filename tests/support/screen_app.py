"""A minimal Textual app that shows one screen and keeps its results."""

from __future__ import annotations

from typing import Any

from textual.app import App
from textual.screen import Screen


class ScreenApp(App[None]):
    """`results`: what the screen was dismissed with; `copied`: texts copied to the clipboard."""

    def __init__(self, shown: Screen[Any]) -> None:
        super().__init__()
        self._shown = shown
        self.results: list[object] = []
        self.copied: list[str] = []

    def on_mount(self) -> None:
        self.push_screen(self._shown, self.results.append)

    def copy_to_clipboard(self, text: str) -> None:
        self.copied.append(text)
