"""The console's measurements in the background, and its addresses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparklog.console.app import _lifespan
from sparklog.console.server import parse_listen
from sparklog.environment import real_environment
from sparklog.errors import InvalidConfigError


def test_a_measurement_that_fails_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    async def run() -> None:
        rounds = 0
        measured_twice = asyncio.Event()
        loop = asyncio.get_running_loop()

        def fail() -> None:
            raise ZeroDivisionError("a defect")

        def count() -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 2:
                loop.call_soon_threadsafe(measured_twice.set)

        async def close_statements() -> None:
            closed.append("statements")

        console = SimpleNamespace(
            brokers=SimpleNamespace(measure=fail),
            groups=SimpleNamespace(measure=count),
            statements=SimpleNamespace(close=close_statements),
            work=SimpleNamespace(close=lambda: closed.append("work")),
            admin=SimpleNamespace(close=lambda: closed.append("admin")),
        )
        lifespan = _lifespan(cast("Any", console), None, real_environment(), round_s=0.0)
        async with lifespan(cast("Any", None)):
            await measured_twice.wait()

    asyncio.run(run())
    assert closed == ["statements", "work", "admin"]
    assert "a measurement of the cluster failed" in caplog.text


def test_a_port_is_a_number_in_ascii() -> None:
    assert parse_listen("[::1]:8080") == ("::1", 8080)
    for listen in ("localhost:²", "localhost:", "localhost:65536", "localhost"):
        with pytest.raises(InvalidConfigError, match="HOST:PORT"):
            parse_listen(listen)
