"""Stopping a job: it asks first; SIGTERM after a while; SIGKILL only if asked again."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from mgpu_doctor.tui.jobs.stopping import Aim, StopScreen, TargetProcess
from tests.support.screen_app import ScreenApp
from tests.support.screens import check_screen, screen_text, until

ALIVE = TargetProcess(1, 0)
"""The first process of this machine: it is alive, and nothing is sent to it."""
RUNS, OVER = Aim("20260917-101500-train-4711", (ALIVE,), (ALIVE,)), Aim("over", (), ())


@dataclass
class Sender:
    failure: str | None = None
    sent: list[str] = field(default_factory=list)

    def __call__(self, aim: Aim, number: signal.Signals) -> str | None:
        del aim
        self.sent.append(number.name)
        return self.failure


async def test_nothing_is_sent_before_yes() -> None:
    sender = Sender()
    app = ScreenApp(StopScreen(RUNS, sender=sender))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "SIGINT, as by Ctrl-C" in screen_text(app), "the question")
        await check_screen(pilot, "stop")
        await pilot.press("k", "enter")
        await pilot.pause()
        assert ["only after SIGTERM" in answer.message for answer in app._notifications] == [True]
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [False], "the way back")
    assert sender.sent == []


async def test_a_job_that_ends_closes_the_screen() -> None:
    sender = Sender()
    app = ScreenApp(StopScreen(OVER, sender=sender))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("y")
        await until(pilot, lambda: app.results == [True], "the end")
    assert sender.sent == ["SIGINT"]


async def test_the_wait_is_reported_and_leaving_sends_no_more() -> None:
    sender = Sender()
    app = ScreenApp(StopScreen(RUNS, after=3600.0, sender=sender))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("y")
        await until(pilot, lambda: "SIGTERM in 3" in screen_text(app), "the wait")
        await pilot.press("y", "k", "escape")
        await until(pilot, lambda: app.results == [False], "the way back")
    assert sender.sent == ["SIGINT"]


async def test_sigkill_is_asked_for_twice() -> None:
    sender = Sender()
    app = ScreenApp(StopScreen(RUNS, after=0.0, sender=sender))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("y")
        await until(pilot, lambda: "k: kill it with SIGKILL" in screen_text(app), "the offer")
        assert sender.sent == ["SIGINT", "SIGTERM"]
        await pilot.press("y")
        await pilot.press("k")
        await until(pilot, lambda: "can save its work" in screen_text(app), "the second question")
        await pilot.press("escape")
        await until(
            pilot, lambda: "k: kill it with SIGKILL" in screen_text(app), "the offer, again"
        )
        assert sender.sent == ["SIGINT", "SIGTERM"]
        await pilot.press("k", "y")
        await until(pilot, lambda: sender.sent[2:] == ["SIGKILL"], "SIGKILL")


async def test_a_signal_that_cannot_be_sent_is_reported() -> None:
    app = ScreenApp(StopScreen(RUNS, sender=Sender("SIGINT cannot be sent (not permitted).")))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("y")
        await until(pilot, lambda: "cannot be sent" in screen_text(app), "the reason")
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [False], "the way back")
