"""The console's measurements in the background, and its addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparklog.console.app import _lifespan
from sparklog.console.server import parse_listen
from sparklog.environment import real_environment
from sparklog.errors import InvalidConfigError


def run_console(brokers: Callable[[], None], groups: Callable[[], None], until: threading.Event) -> list[str]:
    """Run a console with these measurements until an event, and return the parts that were closed, in order."""
    closed: list[str] = []

    async def close_statements() -> None:
        closed.append("statements")

    async def run() -> None:
        console = SimpleNamespace(
            brokers=SimpleNamespace(measure=brokers),
            groups=SimpleNamespace(measure=groups),
            statements=SimpleNamespace(close=close_statements),
            work=SimpleNamespace(close=lambda: closed.append("work")),
            registry_work=SimpleNamespace(close=lambda: closed.append("registry")),
            admin=SimpleNamespace(close=lambda: closed.append("admin")),
        )
        lifespan = _lifespan(cast("Any", console), None, real_environment(), round_s=0.0)
        async with lifespan(cast("Any", None)):
            assert await asyncio.to_thread(until.wait, 20.0)

    asyncio.run(run())
    return closed


def test_a_measurement_that_fails_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    rounds, measured_twice = iter(range(2)), threading.Event()

    def fail() -> None:
        raise ZeroDivisionError("a defect")

    def count() -> None:
        if next(rounds, 1) == 1:
            measured_twice.set()

    assert run_console(fail, count, measured_twice) == ["statements", "work", "registry", "admin"]
    assert "a measurement of the cluster failed" in caplog.text


def test_groups_that_take_long_do_not_delay_the_news_of_brokers() -> None:
    """The coordinator of a group is down then, too."""
    rounds, groups_asked, measured = iter(range(2)), threading.Event(), threading.Event()

    def brokers() -> None:
        if next(rounds, 1) == 1 and groups_asked.is_set():
            measured.set()

    def groups() -> None:
        groups_asked.set()
        measured.wait(30)

    assert run_console(brokers, groups, measured)


def test_a_port_is_a_number_in_ascii() -> None:
    assert parse_listen("[::1]:8080") == ("::1", 8080)
    for listen in ("localhost:²", "localhost:", "localhost:65536", "localhost"):
        with pytest.raises(InvalidConfigError, match="HOST:PORT"):
            parse_listen(listen)
