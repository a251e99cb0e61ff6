"""The HTTP door of a broker under test: hostile requests get an answer, and have no effect."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from sparklog_broker.testing import control

from tests.support.cases import for_each


@pytest.fixture
def address() -> Iterator[str]:
    """Address of a server whose broker must not be reached."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    orders = control.Control(control.Testing.create(""), cast(Any, None))
    server = control.ControlServer("127.0.0.1:0", control._handler(orders, loop), ThreadPoolExecutor(1))
    server.start()
    yield server.address
    server.stop()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def ask(address: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path, body or None, dict(headers))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


BODIES = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"fault": "\xff"}',
    b'{"fault": "earthquake"}',
    b'{"fault": "refuse", "api": "PRODUCE", "error": "NOT_LEADER", "surprise": 1}',
    b'{"fault": "refuse", "api": "PRODUCE", "error": "NOT_LEADER", "times": -1}',
    b'{"fault": "refuse", "api": "\xff", "error": "NOT_LEADER"}',
    b'{"fault": "slow", "api": "FETCH", "seconds": 1e999}',
    b'{"fault": "slow", "api": "FETCH", "seconds": -1}',
    b'{"fault": "disconnect", "after_bytes": "many"}',
    b'{"fault": "lose_response", "api": "HANDSHAKE"}',
    b"[" * 50_000,
)
CLOCKS = (b"{}", b'{"advance_ms": -1}', b'{"advance_ms": 1e30}', b'{"advance_ms": "\xff"}', b'{"advance_ms": NaN}')


def test_hostile_bodies_are_refused(address: str) -> None:
    for path, bodies in (("/faults", BODIES), ("/clock", CLOCKS)):
        for body in bodies:
            status, answer = ask(address, "POST", path, body)
            assert status == 400, (body, answer)
            assert answer["error"], body
    assert ask(address, "GET", "/faults") == (200, [])


@for_each(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Content-Length": "-1"},
        {"Content-Length": "9" * 5_000},
        {"Content-Length": str(control.BODY_BYTES_MAX + 1)},
        {"Content-Length": "ten"},
    ],
)
def test_web_pages_and_long_bodies_are_refused(headers: Mapping[str, str], address: str) -> None:
    assert ask(address, "POST", "/faults", headers=headers)[0] == 403


def test_other_orders_are_refused(address: str) -> None:
    for method, path in (("POST", "/"), ("DELETE", "/clock"), ("GET", "/clock"), ("POST", "/faults/../clock")):
        assert ask(address, method, path)[0] == 400
