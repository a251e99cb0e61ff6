"""Requests to other brokers by their ids, on pooled connections that are opened when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sparklog.errors import BrokerNotAvailableError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog_broker.cluster.peer_connection import Connect
from sparklog_broker.cluster.peers import Peer
from sparklog_broker.config import format_address

M = TypeVar("M", bound=Message)

IDLE_MAX = 8
"""Largest number of idle connections to one broker that are kept."""


class BrokerPeers:
    """Pools of connections to brokers. Event-loop thread only."""

    def __init__(self, endpoint_of: Callable[[int], tuple[str, int] | None], connect: Connect) -> None:
        """`endpoint_of`: returns the address of a broker; None if it is not registered."""
        self._endpoint_of = endpoint_of
        self._connect = connect
        self._idle: dict[int, list[Peer]] = {}
        self._busy: set[Peer] = set()

    async def request(self, broker_id: int, api: Api, message: Message, response: type[M], *, timeout_s: float) -> M:
        """Send a request to a broker, and return the reply. Raises BrokerNotAvailableError for a broker that is not
        registered, and the errors of `Peer.request`.
        """
        endpoint = self._endpoint_of(broker_id)
        if endpoint is None:
            raise BrokerNotAvailableError(f"broker {broker_id} is not registered")
        peer = self._take(broker_id, format_address(*endpoint))
        self._busy.add(peer)
        try:
            answer, _ = await peer.request(api, message, response, timeout_s=timeout_s)
        finally:
            self._busy.discard(peer)
            idle = self._idle.setdefault(broker_id, [])
            if len(idle) < IDLE_MAX:
                idle.append(peer)
            else:
                peer.close()
        return answer

    def _take(self, broker_id: int, address: str) -> Peer:
        idle = self._idle.get(broker_id, [])
        while idle:
            peer = idle.pop()
            if peer.address == address:
                return peer
            peer.close()  # the broker has another address now
        return Peer(address, self._connect)

    def close(self) -> None:
        """Close all connections. A second call has no effect."""
        for peer in [*self._busy, *(p for idle in self._idle.values() for p in idle)]:
            peer.close()
        self._idle.clear()
