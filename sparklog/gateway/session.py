"""One client's connection: reads its requests and writes the answers in the order of the requests."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparklog.environment.memory_budget import SMALL_BYTES
from sparklog.environment.partial_requests import PartialRequest
from sparklog.errors import PolicyViolationError, SparklogError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.backend.fetch_sessions import FetchSession
from sparklog.gateway.backend.read_epochs import ReadEpochs
from sparklog.gateway.backend.topics import TopicNames
from sparklog.gateway.backend.write_permissions import WritePermissions
from sparklog.gateway.gateway import Gateway
from sparklog.gateway.memory import HeldRequest, Progress
from sparklog.gateway.stream import ClientStream
from sparklog.kafka.wire.apis import API_VERSIONS, PRODUCE, Api, RequestHead, frame, read_head
from sparklog.kafka.wire.codec import LongMessageError, MalformedMessageError, Part, counting_decoder, encoder
from sparklog.kafka.wire.error_answers import encoded_refusal, is_answerable, refusal_bytes, refused_entries
from sparklog.kafka.wire.errors import Kafka
from sparklog.kafka.wire.schema import REQUEST, RESPONSE
from sparklog.protocol.gateway import OnBehalf
from sparklog.security.client_ids import printable_client_id
from sparklog.security.listeners import Listener
from sparklog.settings import MIB

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
LARGE_PART_BYTES = 32 * 1024
WRITTEN_BYTES = 256 * 1024
SLICE_BYTES = 1024 * 1024
"""Size in bytes of the slices in which a large request is received."""
HELD_ANSWER_BYTES = 64 * 1024
"""Size in bytes from which an answer takes memory of the share `unread`."""
FIRST_ANSWER_BYTES = MIB
"""Largest size in bytes of a client's first answer to a fetch, beyond a single batch. The size doubles with each answer
that the client has read."""
INLINE_ENTRIES = 256
"""Largest number of entries of a request that is decoded on the event loop."""
FETCH = "Fetch"
ENDED_S = 1.0
"""Time in s for the current requests of a client that has ended its connection."""
_BEFORE_AUTHENTICATION = frozenset({API_VERSIONS, "SaslHandshake", "SaslAuthenticate"})

Handler = Callable[["Session", Any, int], Awaitable[Any]]
"""Answers a request in a version. The request and the answer have the types of `wire/requests.py` and
`wire/responses.py`; the answer is None if the request has none."""


class ServedApi(NamedTuple):
    """An API and its handler."""

    api: Api
    handler: Handler


class ConnectionEndError(Exception):
    """An error for which Kafka's protocol has no answer. The session closes the connection."""


class Session:
    """The session of one connection; `run` serves it to its end. Event-loop thread only."""

    def __init__(
        self,
        gateway: Gateway,
        listener: Listener,
        apis: dict[int, ServedApi],
        stream: ClientStream,
    ) -> None:
        self.gateway = gateway
        self.listener = listener
        self.apis = apis
        self.is_identified = not listener.protocol.sasl
        """True if the broker has authenticated the client, or the listener is without SASL."""
        self.client_id = ""
        self.ends_after_answer = False
        """True if the session ends after the current answer."""
        self.order = asyncio.Lock()
        """Lock for converting and sending a PRODUCE request, so that the requests reach the broker in their order."""
        self.check_key = object()
        """The session in the keys of `Gateway.checks`."""
        self.write_permissions = WritePermissions(gateway.checks, self.check_key)
        self.read_epochs = ReadEpochs()
        self.topic_names = TopicNames()
        self.fetch_session: FetchSession | None = None
        self.answer_bytes = 0
        """Bytes of the share `unread` that the answer to the current request holds until the client has read it."""
        self.request = HeldRequest()
        """The current request, except for PRODUCE."""
        self._stream = stream
        self._size = memoryview(bytearray(_SIZE.size))
        self._broker: BrokerConnection | None = None
        self._connecting = asyncio.Lock()
        peer, own = stream.get_extra_info("peername"), stream.get_extra_info("sockname")
        self.peer_host = str(peer[0]) if peer else ""
        self.local = (str(own[0]), int(own[1])) if own else ("localhost", listener.port)
        self._since_s = gateway.clock_s()
        port = int(peer[1]) if peer else 0
        tls = stream.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        self._client = OnBehalf(self.peer_host[:255], port, self.local[0][:255], self.local[1], certificate or b"")
        self._in_work: list[asyncio.Task[None]] = []
        self._is_answering = False
        """True while a request other than PRODUCE is processed."""
        self._receiving: Progress | None = None
        self._received_bytes = 0
        self._passing: Progress | None = None
        """Progress of the bytes that the broker has not taken yet."""
        self._sending: Progress | None = None
        self._sent_bytes = 0
        self._next_answer_bytes = FIRST_ANSWER_BYTES
        """Largest size of the next answer to a fetch in bytes, by the answers that the client has read."""

    @property
    def peer_name(self) -> str:
        """The client's address, for the log."""
        return self.peer_host

    @property
    def partial_request(self) -> PartialRequest | None:
        """The incomplete request, or the request that the broker does not take now, because of the client's quota."""
        now_s = self.gateway.clock_s()
        if self._receiving is not None:
            half = self._receiving.state(self._received_bytes + self._stream.pending_bytes, now_s)
            if half is not None:
                return half
        if self._broker is None or not self._broker.is_paused:
            self._passing = None
            return None
        if self._passing is None:
            self._passing = Progress(now_s)
            self._passing.held_bytes = self._broker.unsent_bytes
        return self._passing.state(self._broker.written_bytes - self._broker.unsent_bytes, now_s)

    @property
    def half_answer(self) -> PartialRequest | None:
        """The answer that the client has not read completely."""
        return None if self._sending is None else self._sending.state(self._sent_bytes, self.gateway.clock_s())

    @property
    def authenticated_connection(self) -> BrokerConnection | None:
        """The open connection to the broker of a client that has authenticated, or need not; None if there is none."""
        is_open = self._broker is not None and not self._broker.closed
        return self._broker if is_open and self.is_identified else None

    def look_for_end(self) -> None:
        """End the session soon if its request waits, and the client has ended the connection unnoticed."""
        if self._is_answering:
            self._stream.look_for_end()

    async def broker(self) -> BrokerConnection:
        """Return the client's connection to the broker; open it if necessary. Raises BrokerNotAvailableError and the
        broker's errors; ConnectionEndError if the lost connection had authenticated the client."""
        if self._broker is None or self._broker.closed:
            async with self._connecting:
                if self._broker is not None and self._broker.closed:
                    if self.listener.protocol.sasl and self.is_identified:
                        # the broker knew the client through the connection that is gone
                        raise ConnectionEndError
                    self._broker = None
                if self._broker is None:
                    try:
                        name = printable_client_id(self.client_id)
                        self._broker = await self.gateway.connect(name, self.listener.name, self._client)
                    except PolicyViolationError as e:  # another gateway serves the broker's clients
                        raise ConnectionEndError(str(e)) from e
                    self._broker.ended.add_done_callback(self._on_broker_ended)
        return self._broker

    def _on_broker_ended(self, _: asyncio.Future[None]) -> None:
        """End the session with the broker's connection, if that has authenticated the client: the broker ends it with
        the lifetime of the client's credentials or certificate."""
        if self._client.certificate or (self.listener.protocol.sasl and self.is_identified):
            self._stream.close()

    def refuse_authentication(self) -> None:
        """Treat the client as unknown, and end the session after the current answer."""
        self.is_identified = False
        self.ends_after_answer = True

    async def run(self) -> None:
        """Serve the client until the client, the gateway or an error ends the connection. A request that waits then,
        such as a FETCH, is cancelled after ENDED_S."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        ends: list[asyncio.TimerHandle] = []
        self._stream.on_ended = lambda: ends.append(loop.call_later(ENDED_S, task.cancel))
        try:
            while await self._serve_one():
                pass
        except (ConnectionEndError, SparklogError) as e:
            log.info("%s: %s; disconnecting", self.peer_host, e or "the connection to the broker is lost")
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            self._stream.on_ended = None
            for end in ends:
                end.cancel()
            await self._end_work()
            self._release_answer()
            self.gateway.fetch_sessions.end(self.fetch_session)
            if self._broker is not None:
                self._broker.close()
            self._stream.close()

    async def _end_work(self) -> None:
        """Let the PRODUCE requests that have arrived reach the broker, for ENDED_S at most; then cancel them."""
        if self._in_work:
            await asyncio.wait(self._in_work, timeout=ENDED_S)
        for task in self._in_work:
            task.cancel()
        await asyncio.gather(*self._in_work, return_exceptions=True)

    async def _serve_one(self) -> bool:
        """Read one request and answer it. A PRODUCE request is answered by a task, while the next request is read."""
        limits = self.gateway.limits
        async with asyncio.timeout(limits.idle_s if self.is_identified else self._time_to_authenticate_s()):
            await self._stream.read_into(self._size)
            (size,) = _SIZE.unpack(self._size)
        request = HeldRequest(self.gateway.memory.requests)
        try:
            await self._receive(size, request)
            head = read_head(request.data)
            self.client_id = self.client_id or head.client_id
            served = self.apis.get(head.api_key)
            name = served.api.name if served is not None else ""
            if name != PRODUCE and size > limits.other_request_bytes:
                request.is_cut = True
            if not self.is_identified and name not in _BEFORE_AUTHENTICATION:
                raise ConnectionEndError(f"API {head.api_key} before the authentication")
        except BaseException:
            request.release()
            raise
        before = self._in_work[-1] if self._in_work else None
        if name == PRODUCE:
            task = asyncio.get_running_loop().create_task(self._answer_in_turn(served, head, request, before))
            task.add_done_callback(lambda _: request.release())
            self._in_work = [t for t in self._in_work if not t.done()]
            self._in_work.append(task)
            if len(self._in_work) >= limits.pipelined:
                await self._in_work[0]
            return True
        self.request, self._is_answering = request, True
        try:
            if before is not None:
                await before
            await self._answer(served, head, request, None)
        except OSError:
            if not self._stream.has_pending_requests:  # as in Kafka, a request takes effect when it has arrived
                raise
        finally:
            self._is_answering = False
            request.release()
        return not self.ends_after_answer

    async def _receive(self, size: int, request: HeldRequest) -> None:
        """Receive a request of `size` bytes; of a request that is too large, its beginning, and pass over the rest.
        Raises ConnectionEndError for a size that no request can have, and for a client that has not authenticated."""
        limit = self.request_bytes_max(self.gateway.limits.request_bytes)
        if size <= 0 or (size > limit and not self.is_identified):
            raise ConnectionEndError(f"a request of {size} bytes; at most {limit} are allowed")
        if size <= limit:
            await self._read(size, request)
            return
        request.is_cut = True
        await self._read(min(limit, SMALL_BYTES), request)
        rest, part = size - len(request.data), memoryview(bytearray(SMALL_BYTES))
        async with asyncio.timeout(self.gateway.limits.read_s):
            while rest:
                await self._stream.read_into(part[: min(rest, len(part))])
                rest -= min(rest, len(part))

    async def _read(self, size: int, request: HeldRequest) -> None:
        """Receive a request of `size` bytes. A slice is as large as the bytes before it, and its memory is reserved
        before it is received. So an announced size alone takes no memory. The wait for memory does not count as the
        client's time."""
        clock_s = self.gateway.clock_s
        first = min(size, SMALL_BYTES)
        data, taken, rest_s = np.empty(first, np.uint8).data, 0, self.gateway.limits.read_s
        progress = self._receiving = Progress(clock_s())
        try:
            while taken < size:
                part = min(size - taken, max(taken, SMALL_BYTES), SLICE_BYTES)
                if taken == first:
                    data, beginning = np.empty(size, np.uint8).data, data  # the system gives memory to written pages
                    data[:first] = beginning
                begun_s = clock_s()
                progress.wait()
                await request.add(part)
                progress.held_bytes = request.size_bytes
                progress.go_on(clock_s() - begun_s, clock_s())
                begun_s = clock_s()
                async with asyncio.timeout(max(rest_s, 0.0)):
                    await self._stream.read_into(data[taken : taken + part])
                rest_s -= clock_s() - begun_s
                taken += part
                self._received_bytes = taken
        finally:
            self._receiving, self._received_bytes = None, 0
        request.data = data

    def _time_to_authenticate_s(self) -> float:
        return max(self.gateway.limits.authentication_s - (self.gateway.clock_s() - self._since_s), 0.0)

    def request_bytes_max(self, size_max: int) -> int:
        """Return the largest size of a request in bytes: `size_max`, or less if the client has not authenticated."""
        return size_max if self.is_identified else min(size_max, self.gateway.limits.unknown_request_bytes)

    async def _answer_in_turn(
        self, served: ServedApi | None, head: RequestHead, received: HeldRequest, before: asyncio.Task[None] | None
    ) -> None:
        try:
            await self._answer(served, head, received, before)
        except (ConnectionEndError, SparklogError) as e:
            log.info("%s: %s; disconnecting", self.peer_host, e or "the connection to the broker is lost")
            self._stream.close()
        except (OSError, TimeoutError):
            self._stream.close()
        except Exception:  # a client without an answer would wait until its own timeout
            log.exception("%s: the gateway failed at a PRODUCE request; disconnecting", self.peer_host)
            self._stream.close()

    async def _answer(
        self, served: ServedApi | None, head: RequestHead, received: HeldRequest, before: asyncio.Task[None] | None
    ) -> None:
        """Answer a request. `before`: the task of the preceding PRODUCE request, whose answer has to be sent first;
        None: no such answer is due."""
        if served is None:
            raise ConnectionEndError(f"API {head.api_key} is not served")
        api = served.api
        is_served = api.first <= head.version <= api.last
        if not is_served and api.name == API_VERSIONS:
            body = await served.handler(self, {}, -1)
            assert body is not None
            await self._write(frame(head, api.name, encoder(RESPONSE, api.name, 0)(body), version=0))
            return
        if not is_served:
            reason = f"{api.name} version {head.version}; served are {api.first} to {api.last}"
            parts: list[Part] | None = await self._refuse(api, head, received, Kafka.UNSUPPORTED_VERSION, reason)
        elif received.is_cut:
            reason = f"the request is too large: send requests of at most {self.gateway.limits.request_bytes} bytes"
            parts = await self._refuse(api, head, received, Kafka.MESSAGE_TOO_LARGE, reason)
        else:
            parts = await self._handle(served, head, received)
        if before is not None:
            await asyncio.wait([before])
        if parts is not None:
            await self._write(frame(head, api.name, parts))

    async def _refuse(self, api: Api, head: RequestHead, received: HeldRequest, code: Kafka, reason: str) -> list[Part]:
        """Return the encoded answer that refuses a request, with the error for each of its entries. Raises
        ConnectionEndError if no answer is possible."""
        log.debug("%s, client id %r: %s is refused: %s", self.peer_host, self.client_id, api.name, reason)
        data = received.data[head.body_from :]
        if not is_answerable(api.name, head.version):
            raise ConnectionEndError(reason)
        size = refusal_bytes(len(data))
        if size > HELD_ANSWER_BYTES:
            await self.hold_answer(size)
        refuse = partial(encoded_refusal, api.name, head.version, data, code, reason)
        parts = await self.gateway.long_requests.refused(refuse, refused_entries(len(data)))
        if parts is None:
            raise ConnectionEndError(reason)
        return parts

    async def _handle(self, served: ServedApi, head: RequestHead, received: HeldRequest) -> list[Part] | None:
        """Return the encoded answer to a request; None if the request has no answer. A request with many entries is
        decoded and encoded on a thread: each takes a part of a second."""
        api = served.api
        decode, encode = counting_decoder(REQUEST, api.name, head.version), encoder(RESPONSE, api.name, head.version)
        try:
            try:
                request, _ = decode(received.data[head.body_from :], INLINE_ENTRIES)
            except LongMessageError:
                return await self._handle_long(served, head, received)
            except MalformedMessageError as e:
                return await self._refuse(api, head, received, Kafka.INVALID_REQUEST, str(e))
            body = await served.handler(self, request, head.version)
            if body is None:
                return None
            is_long = self._broker is not None and self._broker.held_bytes and api.name != FETCH
            return await self.gateway.long_requests.run(partial(encode, body)) if is_long else encode(body)
        finally:
            if self._broker is not None:
                self._broker.release()

    async def _handle_long(self, served: ServedApi, head: RequestHead, received: HeldRequest) -> list[Part] | None:
        api, long_requests = served.api, self.gateway.long_requests
        decode = counting_decoder(REQUEST, api.name, head.version)
        try:
            async with long_requests.decoded(partial(decode, received.data[head.body_from :])) as request:
                body = await served.handler(self, request, head.version)
                if body is None:
                    return None
                return await long_requests.run(partial(encoder(RESPONSE, api.name, head.version), body))
        except MalformedMessageError as e:  # of the decoder: handlers decode nothing
            return await self._refuse(api, head, received, Kafka.INVALID_REQUEST, str(e))

    @property
    def answer_bytes_max(self) -> int:
        """Largest size in bytes of the answer to a fetch, beyond a single batch."""
        return min(self.gateway.limits.fetch_bytes, self.gateway.memory.answer_bytes_max, self._next_answer_bytes)

    async def hold_answer(self, size_bytes: int) -> None:
        """Wait until there is memory for an answer of `size_bytes`, unless the session holds as much already. While
        others wait, the gateway disconnects clients that do not read."""
        more = size_bytes - self.answer_bytes
        if more > 0:
            await self.gateway.memory.unread.acquire(self, more)
            self.answer_bytes += more

    async def _write(self, parts: list[Part]) -> None:
        """Send small parts joined, and large parts in slices, because the transport copies all bytes that the socket
        does not accept at once."""
        size = sum(map(len, parts))
        if size > HELD_ANSWER_BYTES or self.answer_bytes:
            await self.hold_answer(size)
            self._release_answer(size)
        clock_s = self.gateway.clock_s
        progress = self._sending = Progress(clock_s())
        progress.held_bytes = self.answer_bytes
        try:
            async with asyncio.timeout(self.gateway.limits.write_s):
                small: list[Part] = []
                for part in parts:
                    if len(part) < LARGE_PART_BYTES:
                        small.append(part)
                        continue
                    self._stream.write(b"".join(small))
                    small.clear()
                    view = memoryview(part)
                    for start in range(0, len(view), WRITTEN_BYTES):
                        self._stream.write(view[start : start + WRITTEN_BYTES])
                        await self._stream.drain()
                        self._sent_bytes += WRITTEN_BYTES
                self._stream.write(b"".join(small))
                await self._stream.drain()
            if size > HELD_ANSWER_BYTES:
                self._next_answer_bytes = min(2 * self._next_answer_bytes, self.gateway.limits.fetch_bytes)
        finally:
            self._sending, self._sent_bytes = None, 0
            self._release_answer()

    def _release_answer(self, kept_bytes: int = 0) -> None:
        """Give back the memory of the answer beyond `kept_bytes`."""
        surplus = self.answer_bytes - kept_bytes
        if surplus > 0:
            self.answer_bytes = kept_bytes
            self.gateway.memory.unread.release(self, surplus, is_done=not kept_bytes)

    def close(self) -> None:
        """End the connection at once, without the data that the client has not read."""
        self._stream.abort()

    def end(self) -> None:
        """Close the connection; its session then ends."""
        self._stream.close()

    def __repr__(self) -> str:
        return f"<Session {self.peer_host} {self.client_id}>"
