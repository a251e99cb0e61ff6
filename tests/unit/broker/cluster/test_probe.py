"""Probes of other brokers: refused and unanswered connections count, slow processes do not."""

from __future__ import annotations

import asyncio
import socket

import pytest
from sparklog_broker.cluster.peer_connection import PeerConnection, PlainConnect
from sparklog_broker.cluster.probe import ATTEMPTS, is_reachable

from tests.support.ports import free_port


def probe(address: str) -> bool:
    return asyncio.run(is_reachable(PlainConnect(), address))


def test_a_stopped_process_is_reachable() -> None:
    """The kernel accepts connections for it; nothing here reads them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert probe(f"127.0.0.1:{server.getsockname()[1]}")


def test_a_process_that_has_ended_is_not_reachable() -> None:
    assert not probe(f"127.0.0.1:{free_port()}")


class Attempts:
    """Attempts to connect, which end as the list says; None: never."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = list(ends)
        self.count = 0

    async def connect(self, host: str, port: int) -> PeerConnection:
        end = self.ends[self.count]
        self.count += 1
        if end is None:
            await asyncio.Event().wait()
        assert end is not None
        raise end


@pytest.mark.parametrize(
    ("ends", "is_reached"),
    [
        ([None] * ATTEMPTS, False),
        ([None, ConnectionRefusedError()], False),
        ([OSError(113, "no route to host")], False),
        ([socket.gaierror(-3, "temporary failure in name resolution")], True),
        ([ConnectionResetError()], True),
        ([OSError(24, "too many open files")], True),
    ],
)
def test_only_refusals_and_silence_show_that_a_broker_is_gone(
    ends: list[BaseException | None], is_reached: bool
) -> None:
    attempts = Attempts(*ends)
    assert asyncio.run(is_reachable(attempts.connect, "host:1")) is is_reached
    assert attempts.count == len(ends)
