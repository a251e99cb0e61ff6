"""Asking the controller, wherever it is: on this broker, or on another one.

Who it is stands in ZooKeeper; while that cannot be reached the last one known is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from sparklog.errors import BrokerNotAvailableError, BrokerShuttingDownError, NotControllerError, SparklogError
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import Coordination, CoordinationError
from sparklog.protocol import frames
from sparklog.protocol.base import Message
from sparklog.protocol.messages import Api
from sparklog_broker.cluster.peers import Connect, Peer

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
T = TypeVar("T")

FIND_S = 2.0
MOVES_S = 20.0
"""How long a request waits for the successor of a controller that is gone: its session ends first."""
AGAIN_S = 0.1
LOOK_S = 1.0
"""How often who waits for the controller's answer looks whether there is another one."""
MOVING = NotControllerError, BrokerNotAvailableError, BrokerShuttingDownError
ANSWER_BYTES_MAX = frames.HEADER_BYTES_MAX + frames.PREFIX_BYTES


async def done(future: Future[T]) -> T:
    """What ZooKeeper's client answers. Who waits may be cancelled; the call itself cannot be taken back."""
    if future.done():  # as reads of a store in memory are
        return future.result()
    return await asyncio.shield(asyncio.wrap_future(future))


class ControllerClient:
    """Event-loop thread only."""

    def __init__(self, coordination: Coordination, broker_id: int, connect: Connect) -> None:
        self._zk = coordination
        self._broker_id = broker_id
        self._connect = connect
        self._peers: dict[str, Peer] = {}
        self.controller_id = -1
        self._address = ""

    async def find(self) -> bool:
        """Whether the controller is this broker, as far as can be told. Raises NotControllerError if nobody knows of
        one."""
        try:
            async with asyncio.timeout(FIND_S):  # calls wait in ZooKeeper's client for as long as none can be reached
                await self._find()
        except (CoordinationError, msgspec.DecodeError, TimeoutError) as e:
            log.debug("who the controller is cannot be read: %r", e)
        if self.controller_id == self._broker_id:
            return True
        if self.controller_id < 0 or not self._address:
            raise NotControllerError("no controller is known; it is elected when ZooKeeper can be reached")
        return False

    async def _find(self) -> None:
        node = await done(self._zk.get(znodes.CONTROLLER))
        if node is None:
            return
        found = znodes.decode(node.data, znodes.ControllerNode).broker_id
        registered = await done(self._zk.get(f"{znodes.BROKER_IDS}/{found}"))
        if registered is not None:
            endpoints = znodes.decode(registered.data, znodes.Registration).endpoints
            self.controller_id, self._address = found, endpoints[0] if endpoints else ""

    async def request(self, purpose: str, api: Api, message: Message, response: type[M], *, timeout_s: float) -> M:
        """Asks the controller that `find` has found. `purpose`: requests of one purpose go one after the other, those
        of others beside them. Raises as `Peer.request`."""
        if not self._address:
            raise BrokerNotAvailableError("no controller is known")
        peer = self._peers.get(purpose)
        if peer is None or peer.address != self._address:
            if peer is not None:
                peer.close()
            peer = self._peers[purpose] = Peer(self._address, self._connect, answer_bytes_max=ANSWER_BYTES_MAX)
        return (await peer.request(api, message, response, timeout_s=timeout_s))[0]

    async def request_unless_replaced(
        self, purpose: str, api: Api, message: Message, response: type[M], *, timeout_s: float
    ) -> M:
        """`request`; given up when another broker has become the controller: this one hangs, or cannot be reached.
        Raises BrokerNotAvailableError then: it may have taken effect."""
        address = self._address
        asked = asyncio.ensure_future(self.request(purpose, api, message, response, timeout_s=timeout_s))
        try:
            while True:
                answered, _ = await asyncio.wait({asked}, timeout=LOOK_S)
                if answered:
                    return asked.result()
                await self.find()
                if self._address != address:
                    raise BrokerNotAvailableError(
                        f"the controller at {address} has been replaced, and has not answered"
                    )
        finally:
            asked.cancel()

    async def while_it_moves(
        self, ask: Callable[[], Awaitable[T]], taken: Callable[[], Awaitable[T | None]] | None = None
    ) -> T:
        """What `ask` returns, which is called again while the controller is being replaced, for MOVES_S at most.

        A call that failed may have taken effect all the same. If a later one is refused, `taken` says what to return
        then; None: it has not. Raises what `ask` does.
        """
        loop = asyncio.get_running_loop()
        until, is_again = loop.time() + MOVES_S, False
        while True:
            try:
                return await ask()
            except MOVING as e:
                if loop.time() >= until:
                    raise
                log.debug("asking the controller again: %s", e)
            except SparklogError:
                found = await taken() if is_again and taken is not None else None
                if found is None:
                    raise
                return found
            is_again = True
            await asyncio.sleep(AGAIN_S)

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
