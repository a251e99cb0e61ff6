"""A client's side of a simulated connection: requests as coroutines, with time-outs and retries.

Messages, and the rules for sequences, transactions, membership and aborted batches, are the product's own; only sockets
and threads are replaced.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TypeVar

from sparklog.errors import BrokerNotAvailableError, SparklogError, error_from_code
from sparklog.protocol.apis import APIS, Api
from sparklog.protocol.base import Message
from sparklog.protocol.codec import decode_error, decode_response, encode
from sparklog.protocol.frames import PREFIX_BYTES, decode_response_prefix, encode_request
from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_net import SimConnection, SimNet

R = TypeVar("R", bound=Message)

FRAME_BYTES_MAX = 64 * 1024 * 1024
REQUEST_TIMEOUT_S = 10.0
BACKOFF_S, BACKOFF_S_MAX = 0.05, 1.0


class SimClient:
    """One connection to a broker, opened again after a loss. Belongs to the process of `loop`."""

    def __init__(self, loop: SimLoop, net: SimNet, host: str, broker_host: str) -> None:
        self.loop = loop
        self.net = net
        self._host = host
        self.broker_host = broker_host
        self._ids = itertools.count(1)
        self._connection: SimConnection | None = None
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()

    async def ask(
        self,
        api: Api,
        request: Message,
        response: type[R],
        payload: bytes = b"",
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> tuple[R, memoryview]:
        """Return the answer's header and payload. Raises the broker's error, and BrokerNotAvailableError without an
        answer: the request may have had an effect.
        """
        answer = self.send(api, request, payload)
        try:
            async with asyncio.timeout(timeout_s):
                frame = await answer
        except TimeoutError as e:
            self.disconnect()
            raise BrokerNotAvailableError(f"no answer to {api.name} within {timeout_s} s") from e
        return self.decode(api, frame, response)

    def send(self, api: Api, request: Message, payload: bytes = b"") -> asyncio.Future[bytes]:
        """Send a request without waiting; answers come in the order of requests. Raises BrokerNotAvailableError, as the
        future does.
        """
        connection = self._connect()
        future: asyncio.Future[bytes] = self.loop.create_future()
        correlation_id = next(self._ids)
        connection.send(
            encode_request(api, APIS[api].version_max, correlation_id, encode(request), len(payload)) + payload
        )
        self._waiting.append((correlation_id, future))
        return future

    @staticmethod
    def decode(api: Api, frame: bytes, response: type[R]) -> tuple[R, memoryview]:
        prefix = decode_response_prefix(frame, FRAME_BYTES_MAX)
        header = memoryview(frame)[PREFIX_BYTES : PREFIX_BYTES + prefix.header_bytes]
        if prefix.error_code:
            raise error_from_code(prefix.error_code, decode_error(header))
        return decode_response(api, header, response), memoryview(frame)[PREFIX_BYTES + prefix.header_bytes :]

    def _connect(self) -> SimConnection:
        if self._connection is None:
            try:
                self._connection = self.net.connect(self.loop, self._host, self.broker_host)
            except ConnectionRefusedError as e:
                raise BrokerNotAvailableError(str(e)) from e
            self._connection.on_message = self._on_message
            self._connection.on_lost = self._on_lost
        return self._connection

    def _on_message(self, frame: bytes) -> None:
        correlation_id, future = self._waiting.popleft()
        assert decode_response_prefix(frame, FRAME_BYTES_MAX).correlation_id == correlation_id
        if not future.done():
            future.set_result(frame)

    def _on_lost(self) -> None:
        self._connection = None
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(BrokerNotAvailableError("the connection was lost"))
                future.exception()  # the waiting task may have ended

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._on_lost()

    async def ask_until(
        self, api: Api, request: Message, response: type[R], payload: bytes = b"", *, deadline_s: float = 60.0
    ) -> R:
        """Repeat `ask` after retriable errors, for at most `deadline_s`. Raises the last error."""
        end, backoff_s = self.loop.time() + deadline_s, BACKOFF_S
        while True:
            try:
                return (await self.ask(api, request, response, payload))[0]
            except SparklogError as e:
                if not e.retriable or self.loop.time() > end:
                    raise
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
