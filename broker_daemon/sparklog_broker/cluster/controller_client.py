"""Requests to the controller, on this broker or another.

ZooKeeper has the controller's id. While ZooKeeper is unreachable, requests go to the last known controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from sparklog.errors import (
    BrokerNotAvailableError,
    BrokerShuttingDownError,
    NotControllerError,
    SparklogError,
    error_from_code,
)
from sparklog.metadata import cluster_znodes as znodes
from sparklog.metadata.coordination import Coordination, CoordinationError
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.cluster_messages import ForwardRequest, ForwardResponse
from sparklog.protocol.codec import decode_response, encode
from sparklog.protocol.negotiation import SpokenVersions
from sparklog.replication.cluster_image import Version
from sparklog_broker.cluster.peer_connection import Connect, InSpoken
from sparklog_broker.cluster.peers import Peer

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
T = TypeVar("T")

FIND_S = 2.0
"""Longest wait for a read, in s. Without a reachable server, calls of ZooKeeper's client wait without limit."""
MOVES_S = 20.0
"""Longest wait for the successor of a lost controller, in s. Brokers elect it when the lost one's session has ended."""
AGAIN_S = 0.1
FORWARD_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 1.0
"""Interval, in s, at which a waiting request checks if another broker is the controller."""
MOVING = NotControllerError, BrokerNotAvailableError, BrokerShuttingDownError


async def done(future: Future[T]) -> T:
    """Return the result of a call of ZooKeeper's client. If the caller is cancelled, the call continues."""
    if future.done():  # reads of a store in memory are done at once
        return future.result()
    return await asyncio.shield(asyncio.wrap_future(future))


async def _soon(future: Future[T]) -> T:
    """Return the result of a read. Raises the read's error, and TimeoutError after FIND_S."""
    if future.done():
        return future.result()
    async with asyncio.timeout(FIND_S):
        return await done(future)


class ControllerClient:
    """Finds the controller and sends it requests. Event-loop thread only."""

    def __init__(self, coordination: Coordination, broker_id: int, connect: Connect) -> None:
        self._zk = coordination
        self._broker_id = broker_id
        self._connect = connect
        self._peers: dict[str, Peer] = {}
        self.controller_id = -1
        self._address = ""

    async def find(self) -> bool:
        """Return True if this broker is the controller, as far as it knows. Raises NotControllerError if no controller
        is known."""
        try:
            await self._find()
        except (CoordinationError, msgspec.DecodeError, TimeoutError) as e:
            log.debug("the controller's id cannot be read: %r", e)
        if self.controller_id == self._broker_id:
            return True
        if self.controller_id < 0 or not self._address:
            raise NotControllerError("no controller is known: the brokers elect one when they reach ZooKeeper")
        return False

    async def _find(self) -> None:
        node = await _soon(self._zk.get(znodes.CONTROLLER))
        if node is None:
            return
        broker_id = znodes.decode(node.data, znodes.ControllerNode).broker_id
        registered = await _soon(self._zk.get(f"{znodes.BROKER_IDS}/{broker_id}"))
        if registered is not None:
            endpoints = znodes.decode(registered.data, znodes.Registration).endpoints
            self.controller_id, self._address = broker_id, endpoints[0] if endpoints else ""

    async def request(
        self, purpose: str, api: Api, message: Message | InSpoken, response: type[M], *, timeout_s: float
    ) -> M:
        """Send a request to the controller that `find` has found, and return the reply. Requests of the same `purpose`
        are sent one after the other, on one connection. Raises the errors of `Peer.request`."""
        if not self._address:
            raise BrokerNotAvailableError("no controller is known")
        peer = self._peers.get(purpose)
        if peer is None or peer.address != self._address:
            if peer is not None:
                peer.close()
            peer = self._peers[purpose] = Peer(self._address, self._connect)
        return (await peer.request(api, message, response, timeout_s=timeout_s))[0]

    async def forward(self, forward: ForwardRequest, request: Message) -> tuple[Message | SparklogError, Version]:
        """Forward a client's request to the controller. Returns the response or error, and the version of the
        controller's image.

        `forward`: the request as the client sent it. Its `is_repeated` becomes True after it was sent once. `request`:
        the same request, decoded, for a controller that does not know the client's version. Raises SparklogError."""
        api = Api(forward.api)
        response = APIS[api].response

        def in_spoken(spoken: SpokenVersions) -> ForwardRequest:
            version, sent = spoken.version_of(api), replace(forward)
            if version.number < forward.version:
                sent = replace(forward, version=version.number, request=encode(request, version.older))
            forward.is_repeated = True  # from here on the request may have taken effect
            return sent

        answer = await self.request_unless_replaced(
            api.name, Api.FORWARD, in_spoken, ForwardResponse, timeout_s=FORWARD_TIMEOUT_S
        )
        reached = Version(answer.controller_epoch, answer.zxid)
        if answer.error_code:
            return error_from_code(answer.error_code, answer.message), reached
        return decode_response(api, answer.response, response), reached

    async def request_unless_replaced(
        self, purpose: str, api: Api, message: Message | InSpoken, response: type[M], *, timeout_s: float
    ) -> M:
        """Send a request as `request` does, but stop waiting when another broker becomes the controller: the earlier
        controller hangs or is unreachable. Then raises BrokerNotAvailableError; the request may have taken effect.
        """
        address = self._address
        sending = asyncio.ensure_future(self.request(purpose, api, message, response, timeout_s=timeout_s))
        try:
            while True:
                finished, _ = await asyncio.wait({sending}, timeout=POLL_INTERVAL_S)
                if finished:
                    return sending.result()
                await self.find()
                if self._address != address:
                    raise BrokerNotAvailableError(f"the controller at {address} was replaced before it answered")
        finally:
            sending.cancel()

    async def while_it_moves(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `ask`. While the controller is being replaced, `ask` is called again, for at most
        MOVES_S. A failed call may have taken effect. Raises the errors of `ask`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + MOVES_S
        while True:
            try:
                return await ask()
            except MOVING as e:
                if loop.time() >= until:
                    raise
                log.debug("retrying the request to the controller: %s", e)
            await asyncio.sleep(AGAIN_S)

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
