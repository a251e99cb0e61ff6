"""One connection: frames in, replies out, over a transport (`transport.py`) with a non-blocking socket.

Reading: first the 16 bytes of a prefix, then the body, straight into the frame's own buffer. Memory for the buffer is
reserved as bytes arrive, so that the announcement of a large frame costs no memory. One request is processed at a time.
During this, one more frame is read ahead; this also shows a disconnection of the peer, which cancels its waiting fetch.
Then reading stops, and TCP's window holds the peer back.

Writing: bytes and small slices of files are sent together; larger slices go through `os.sendfile`. If a file is shorter
than its announced slice, the connection is closed, because padding would be false data. `SendBacklog` counts the
bytes that the peer does not read, and closes connections if they hold too much.

Every failure, including a failed allocation, closes the connection: the rest of a partly read frame would be read as
requests.

States: open → draining (after `stop` or a protocol error): queued replies are sent, nothing is read → lingering: the
broker's side is shut down, and the peer's bytes are discarded for LINGER_S, because the kernel would answer them with a
reset, which overtakes the error frame → closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from msgspec import Struct

from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.partial_requests import PartialRequest
from sparklog.environment.send_backlog import SendBacklog
from sparklog.errors import FrameTooLargeError, InvalidRequestError, SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.frames import (
    PREFIX,
    PREFIX_BYTES,
    RequestPrefix,
    decode_request_prefix,
    foreign_answer,
    foreign_protocol,
)
from sparklog.security.handshake import Authentication
from sparklog.security.principals import ANONYMOUS, Principal
from sparklog_broker.counters.requests import RequestCounters, RequestTimes
from sparklog_broker.network.out_queue import OutQueue, ShortFileError
from sparklog_broker.network.receive_buffers import ReceiveBuffers
from sparklog_broker.network.reply import Reply, error_reply
from sparklog_broker.network.transport import Transport

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 1024 * 1024 + 64 * 1024
"""Memory reserved ahead of the received bytes: one batch of the default size with its header."""
READS_PER_EVENT = 4
PROGRESS_BYTES = 64 * 1024
"""Bytes by which an incomplete frame must grow per `request.read.timeout.ms`, so that single bytes do not count as
progress. The peer must also read this many bytes of a reply per `response.write.timeout.ms`.
"""
LINGER_S = 1.0
_DISCARD = bytearray(32 * 1024)


class ConnectionLimits(Struct):
    """Limits of all connections, which share this object; see the settings of the same names."""

    frame_bytes_max: int
    read_timeout_s: float
    idle_timeout_s: float
    write_timeout_s: float
    unknown_frame_bytes_max: int = 128 * 1024
    """Largest frame in bytes before the peer is authenticated. A larger frame closes the connection."""


class Answer(Protocol):
    """Handles one request. `body` is the header and payload, writable. Returns None if no reply is sent."""

    def __call__(
        self, prefix: RequestPrefix, body: memoryview, connection: Connection
    ) -> Coroutine[Any, Any, Reply | None]: ...


class Addresses(NamedTuple):
    """The broker's address as the peer sees it, the peer's host, and the peer's name in the log."""

    local: tuple[str, int]
    peer_host: str
    peer_name: str
    is_gateway: bool = False
    """True if a gateway has opened the connection for the peer."""


class State(Enum):
    OPEN = "open"
    DRAINING = "draining"
    LINGERING = "lingering"
    CLOSED = "closed"


class _Frame:
    """A request that is being received or processed. It owns its memory reservation."""

    __slots__ = ("begun_s", "buffer", "prefix", "received", "reserved", "times")

    def __init__(self, prefix: RequestPrefix, buffer: np.ndarray, begun_s: float) -> None:
        self.prefix = prefix
        self.begun_s = begun_s
        self.buffer: np.ndarray | None = buffer
        """Memory for the body; None after its release. The buffer can be larger than the body."""
        self.received = 0
        self.reserved = 0
        """Number of reserved bytes, up to which bytes are received into the buffer."""
        self.times = RequestTimes()

    def view(self, start: int, end: int) -> memoryview:
        return cast(np.ndarray, self.buffer).data[start:end]


class Connection:
    """One connection. It owns `transport`. `on_close` is called once, after the release of all memory."""

    def __init__(
        self,
        transport: Transport,
        *,
        loop: asyncio.AbstractEventLoop,
        answer: Answer,
        limits: ConnectionLimits,
        budget: MemoryBudget,
        buffers: ReceiveBuffers,
        unread: SendBacklog,
        requests: RequestCounters,
        on_close: Callable[[Connection], None],
        addresses: Addresses | None = None,
        listener: str = "",
        local_socket: str = "",
    ) -> None:
        """`listener`: the name of the accepting listener, which offers `local_socket` to clients on this host."""
        self._transport = transport
        self._events = transport.events
        self._loop = loop
        self._answer = answer
        self._limits = limits
        self._budget = budget
        self._buffers = buffers
        self._unread = unread
        self._requests = requests
        self._on_close = on_close
        self._refusal: SparklogError | None = None
        self.listener = listener
        self.local_socket = local_socket
        self.authentication: Authentication | None = None
        """The peer's authentication, set by the code that accepts the connection. None if the listener needs none."""
        places = addresses or _addresses(transport.sock)
        self.local_address, self.peer_host, self.peer_name, self.is_gateway = places
        self.principal: Principal = ANONYMOUS
        """The peer's principal, which its authentication sets. It applies from the next request on."""
        self.client_id = ""
        """The name that the client gives itself in its requests."""
        self.gateway = ""
        """Name of the gateway that serves a Kafka client over the connection; "" for other clients."""
        self.counted_user: str | None = None
        """The user in whose limit the connection is counted; None if it is not counted yet."""
        self._mute_ms = 0
        self._muted: asyncio.TimerHandle | None = None
        self._prefix = bytearray(PREFIX_BYTES)
        self._prefix_received = 0
        self._frames_begun = 0
        self._reading: _Frame | None = None
        self._read_ahead: _Frame | None = None
        self._current: _Frame | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_foreign = False
        """True after a reply in a protocol other than sparklog's."""
        self._out = OutQueue()
        self._final_reply: Reply | None = None
        self._state = State.OPEN
        self._active_at = loop.time()
        self._progress_at = self._active_at
        self._progress_bytes = 0
        self._written_at = self._active_at
        self._written_bytes = 0
        self._sent_bytes = 0
        """Number of sent bytes of the reply to the present request."""
        self._events.start(self._on_readable, self._on_writable)
        self._resume_reading()

    @property
    def state(self) -> State:
        return self._state

    @property
    def busy(self) -> bool:
        """True while a request is being processed or its reply sent."""
        return self._current is not None

    @property
    def partial_request(self) -> PartialRequest | None:
        """The received part of a request that the peer can continue, or that waits for the peer's quota. None if the
        connection holds no memory, or waits for memory itself.
        """
        is_muted = self._muted is not None
        frame = self._read_ahead if is_muted and self._read_ahead is not None else self._reading
        if frame is None or not frame.reserved or not (self._events.is_reading or is_muted):
            return None
        return PartialRequest(frame.received, frame.reserved, frame.begun_s, self._progress_at)

    @property
    def is_identified(self) -> bool:
        """True if the peer's principal is known."""
        return self.authentication is None or self.authentication.principal is not None

    @property
    def times(self) -> RequestTimes:
        """Times of the present request."""
        return self._current.times if self._current is not None else RequestTimes()

    def mute(self, mute_ms: int) -> None:
        """Stop reading for `mute_ms` after the reply to the present request (KIP-219)."""
        self._mute_ms = max(self._mute_ms, mute_ms)

    @property
    def mute_ms(self) -> int:
        """Time in ms for which reading stops after the reply to the present request."""
        return self._mute_ms

    def mute_now(self, mute_ms: int) -> None:
        """Stop reading for `mute_ms`, from now on. No effect for 0, or if the connection is muted already."""
        if mute_ms and self._muted is None and self._state is State.OPEN:
            self._events.pause_reading()
            self._muted = self._loop.call_later(mute_ms / 1_000, self._unmute)

    def refuse(self, error: SparklogError) -> None:
        """Reply to the first request with `error`, then close the connection."""
        self._refusal = error

    # -- reading

    def _resume_reading(self) -> None:
        if not self._events.is_reading and self._muted is None and self._state in (State.OPEN, State.LINGERING):
            self._progress_at = self._loop.time()
            try:
                self._events.resume_reading()
            except Exception as e:  # noqa: BLE001 - an error must not reach the budget, which wakes other connections
                self._fail(e)

    def _on_readable(self) -> None:
        try:
            if self._state is State.LINGERING:
                if self._transport.recv_into(_DISCARD) == 0:
                    self.close()
            else:
                self._read()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset by the peer
            self.close()
        except Exception as e:  # noqa: BLE001 - else the loop would read the rest of the frame as requests
            self._fail(e)

    def _read(self) -> None:
        for _ in range(READS_PER_EVENT):
            frame = self._reading
            if frame is None:
                count = self._transport.recv_into(memoryview(self._prefix)[self._prefix_received :])
                self._prefix_received += count
                if count and self._prefix_received == PREFIX_BYTES and not self._begin_frame():
                    return
            else:
                if frame.received == frame.reserved and not self._grow(frame):
                    return
                with frame.view(frame.received, frame.reserved) as room:
                    count = self._transport.recv_into(room)
                frame.received += count
                if count and frame.received == frame.prefix.body_bytes:
                    self._end_frame(frame)
                    return
            if count == 0:
                self.close()
                return
            self._note_progress(count)

    def _note_progress(self, count: int) -> None:
        self._active_at = self._loop.time()
        self._progress_bytes += count
        if self._progress_bytes >= PROGRESS_BYTES:
            self._progress_bytes, self._progress_at = 0, self._active_at

    def _begin_frame(self) -> bool:
        """Begin the frame that the received prefix announces. Returns True if its body is to be read next."""
        self._progress_bytes, self._progress_at = 0, self._loop.time()
        self._prefix_received = 0
        self._frames_begun += 1
        if self._frames_begun == 1 and (foreign := foreign_protocol(self._prefix)):
            self._break_off(0, 0, InvalidRequestError(foreign), foreign_answer(self._prefix, foreign))
            return False
        try:
            prefix = decode_request_prefix(self._prefix, self._frame_bytes_max())
        except (FrameTooLargeError, InvalidRequestError) as e:
            _, api, _, correlation_id, _ = PREFIX.unpack(self._prefix)
            self._break_off(api, correlation_id, e)
            return False
        if self._refusal is not None:
            self._break_off(prefix.api, prefix.correlation_id, self._refusal)
            return False
        self._reading = _Frame(prefix, self._buffers.take(prefix.body_bytes), self._progress_at)
        if prefix.body_bytes == 0:
            self._end_frame(self._reading)
            return False
        return True

    def _frame_bytes_max(self) -> int:
        return self._limits.frame_bytes_max if self.is_identified else self._limits.unknown_frame_bytes_max

    def _grow(self, frame: _Frame) -> bool:
        """Reserve memory for more bytes of `frame`. If there is not enough, return False, and stop reading until memory
        is released."""
        ahead = min(frame.prefix.body_bytes - frame.received, max(READ_AHEAD_BYTES, frame.received))
        if not self._budget.reserve(frame, ahead, self._resume_reading):
            self._events.pause_reading()
            return False
        frame.reserved += ahead
        return True

    def _end_frame(self, frame: _Frame) -> None:
        self._active_at = frame.times.received_s = self._loop.time()
        self._requests.begin(frame.prefix.api, frame.prefix.body_bytes)
        self._reading = None
        if self._current is None and self._muted is None:
            self._process(frame)
        else:
            self._read_ahead = frame
            self._events.pause_reading()

    def _break_off(self, api: int, correlation_id: int, error: SparklogError, foreign: bytes = b"") -> None:
        """Reply with `error` in place of reading a request's body, and stop reading. `foreign`: the reply for a peer of
        another protocol, in that protocol; empty for an error frame."""
        log.info("%s: %s; disconnecting", self.peer_name, error)
        self._requests.failed(api, (error.code,))
        self._events.pause_reading()
        self._is_foreign = bool(foreign)
        reply = Reply([foreign], close=True) if foreign else error_reply(api, correlation_id, error, close=True)
        if self._current is None:
            self._send(reply)
        else:  # the reply to the present request goes first
            self._final_reply = reply

    # -- processing

    def _process(self, frame: _Frame) -> None:
        self._current = frame
        self._running = self._loop.create_task(self._serve(frame))

    async def _serve(self, frame: _Frame) -> None:
        """Process one request. The work begins in the loop's next turn, so that a peer with many received requests does
        not delay other peers.
        """
        try:
            frame.times.begun_s = self._loop.time()
            reply = await self._answer(frame.prefix, frame.view(0, frame.prefix.body_bytes), self)
            frame.times.answered_s = self._loop.time()
            self._running = None
            if self._state is not State.CLOSED:
                self._send(reply)
            elif reply is not None:
                reply.release()
        except asyncio.CancelledError:
            self.close()
            raise
        except Exception as e:  # noqa: BLE001 - `answer` replies to errors: this is a defect, or a lack of memory
            self._fail(e)

    def _send(self, reply: Reply | None) -> None:
        if reply is not None:
            self._out.extend(reply.parts)
            if reply.close:
                self._state = State.DRAINING
                self._events.pause_reading()
        self._on_writable()

    def _request_done(self) -> None:
        """Continue after the kernel has taken the whole reply."""
        frame, self._current = self._current, None
        self._active_at = self._loop.time()
        if frame is not None:
            sent_bytes, self._sent_bytes = self._sent_bytes, 0
            self._requests.done(frame.prefix.api, frame.times, self._active_at, sent_bytes, self.peer_name)
            self._release_frame(frame)
        if self._final_reply is not None:
            reply, self._final_reply = self._final_reply, None
            self._send(reply)
        elif self._state is State.DRAINING:
            self._linger()
        elif self._mute_ms:
            self._events.pause_reading()
            self._muted = self._loop.call_later(self._mute_ms / 1_000, self._unmute)
            self._mute_ms = 0
        else:
            self._process_next()

    def _unmute(self) -> None:
        self._muted = None
        self._active_at = self._loop.time()
        self._resume_reading()
        self._process_next()

    def _process_next(self) -> None:
        """Process the request that was read ahead."""
        if self._read_ahead is not None and self._state is State.OPEN:
            frame, self._read_ahead = self._read_ahead, None
            self._resume_reading()
            self._process(frame)

    def _release_frame(self, frame: _Frame) -> None:
        reserved, frame.reserved = frame.reserved, 0
        buffer, frame.buffer = frame.buffer, None
        if buffer is not None:
            self._buffers.give_back(buffer)
        self._budget.release(frame, reserved)

    # -- writing

    def _on_writable(self) -> None:
        try:
            self._write()
        except Exception as e:  # noqa: BLE001 - part of a reply may be sent already
            self._fail(e)

    def _write(self) -> None:
        try:
            count = self._transport.write(self._out)
        except BlockingIOError:  # the transport calls `_on_writable` later
            return
        except (ShortFileError, OSError) as e:
            self._write_failed(e)
        else:
            self._wrote(count)

    def _write_failed(self, error: ShortFileError | OSError) -> None:
        if isinstance(error, ShortFileError):
            log.error("%s: a segment file is shorter than the announced response; disconnecting", self.peer_name)
        elif error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN):
            log.warning("%s: sending failed: %s; disconnecting", self.peer_name, error)
        self.close()

    def _wrote(self, count: int) -> None:
        """Record that the transport has taken `count` bytes of replies."""
        if count:
            self._sent_bytes += count
            self._active_at = self._loop.time()
        if self._out:
            self._wait_until_writable(count)
            return
        if self._events.is_writing:
            self._events.pause_writing()
            self._unread.record(self, 0, 0)
        self._request_done()

    def _wait_until_writable(self, written_bytes: int) -> None:
        """Wait until the socket takes more bytes, and note the progress of `written_bytes`."""
        self._written_bytes += written_bytes
        if self._written_bytes >= PROGRESS_BYTES or not self._events.is_writing:
            self._written_bytes, self._written_at = 0, self._loop.time()
        if not self._events.is_writing:
            self._events.resume_writing()
            if self._current is not None:
                self._release_frame(self._current)  # a waiting reply does not need its request
        self._unread.record(self, self._out.held_bytes, self._out.held_files)

    # -- ending

    def check_deadlines(self, now: float) -> None:
        """Close the connection if it has stalled or been idle for too long. Called a few times per timeout."""
        if self._events.is_writing and now - self._written_at > self._answer_timeout_s():
            log.info("%s: the client does not read its response; disconnecting", self.peer_name)
            self.close()
        elif self._state is State.LINGERING:
            if now - self._active_at > LINGER_S:
                self.close()
        elif self._events.is_reading and (self._reading is not None or self._prefix_received):
            if now - self._progress_at > self._limits.read_timeout_s:
                log.info("%s: stalled in the middle of a frame; disconnecting", self.peer_name)
                self.close()
        elif (
            (self._current is None or self._out)
            and self._muted is None
            and self._reading is None
            and now - self._active_at > self._limits.idle_timeout_s
        ):
            log.debug("%s: idle; disconnecting", self.peer_name)
            self.close()

    def _answer_timeout_s(self) -> float:
        """Return the longest time without progress of an unread reply, in s. A consumer is allowed to leave prefetched
        records unread for as long as a connection is allowed to be idle."""
        fetched = self._current is not None and self._current.prefix.api == Api.FETCH
        return self._limits.idle_timeout_s if fetched else self._limits.write_timeout_s

    def stop(self) -> None:
        """Stop reading, and close after the present request. Without a request, close at once."""
        if self._state is not State.OPEN:
            return
        if self._current is None:
            self.close()
            return
        self._state = State.DRAINING
        self._events.pause_reading()

    def _linger(self) -> None:
        self._state = State.LINGERING
        self._active_at = self._loop.time()
        try:
            if not self._is_foreign:  # a Kafka client would take an early end for a lost connection, and retry
                self._transport.shutdown()
        except OSError:
            self.close()
            return
        self._resume_reading()

    def _fail(self, error: Exception) -> None:
        """Close the connection after an unexpected error, or for lack of memory."""
        if self._state is State.CLOSED:
            return
        try:
            if isinstance(error, MemoryError):
                log.error("%s: out of memory; disconnecting", self.peer_name)
            else:
                log.error("%s: the connection has failed; disconnecting", self.peer_name, exc_info=error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection now: cancel the present request, and release slices and memory."""
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        try:
            self._events.pause_reading()
            self._events.pause_writing()
            if self._muted is not None:
                self._muted.cancel()
            if self._running is not None:
                self._running.cancel()
            self._unread.record(self, 0, 0)
        finally:
            self._transport.when_idle(self._release)

    def _release(self) -> None:
        """Release all memory and slices."""
        try:
            for frame in (self._reading, self._read_ahead, self._current):
                if frame is not None:
                    self._budget.forget(frame)
                    self._release_frame(frame)
            self._reading = self._read_ahead = self._current = None
            self._out.clear()
        finally:
            self._transport.close()
            self._on_close(self)


def _addresses(sock: socket.socket) -> Addresses:
    unknown = Addresses(("", 0), "", "unknown peer")
    try:
        local, peer = sock.getsockname(), sock.getpeername()
    except OSError:  # disconnected already
        return unknown
    if not isinstance(local, tuple) or not isinstance(peer, tuple):  # a socket pair
        return unknown
    return Addresses((str(local[0]), int(local[1])), str(peer[0]), f"{peer[0]}:{peer[1]}")
