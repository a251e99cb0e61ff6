"""One connection: frames in, replies out, over a transport (`transport.py`) whose socket does not block.

Reading: 16 bytes of prefix, then the body straight into the frame's own buffer, whose memory is reserved, and taken
from the system, as bytes arrive, so that announcing a large frame costs the broker nothing. One request is processed
at a time; meanwhile one more frame is read ahead and then the socket is left alone (TCP's window tells the peer), so a
peer that goes away is noticed and its waiting fetch cancelled. Writing: bytes are sent, and with them slices of a few
KiB; larger slices of files go through `os.sendfile`. A slice whose file is shorter than announced ends the connection,
for nothing may be padded. What the peer does not read is counted in `UnreadAnswers`, which may close the connection.

Whatever fails here, an allocation included, ends the connection: after half a frame the rest would be read as requests.

States: open → (stop, a broken protocol) draining: what is queued is sent, nothing more is read → lingering: our side is
shut down and what the peer still sends is thrown away for a moment, else the kernel would answer it with a reset that
overtakes the error frame → closed.
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

from sparklog.errors import FrameTooLargeError, InvalidRequestError, SparklogError
from sparklog.protocol.frames import PREFIX, PREFIX_BYTES, RequestPrefix, decode_request_prefix, foreign_protocol
from sparklog.protocol.messages import Api
from sparklog.security.handshake import Authentication
from sparklog.security.principals import ANONYMOUS, Principal
from sparklog_broker.counters.requests import RequestCounters, RequestTimes
from sparklog_broker.network.half_requests import HalfRequest
from sparklog_broker.network.memory import MemoryBudget
from sparklog_broker.network.out_queue import OutQueue, ShortFileError
from sparklog_broker.network.receive_buffers import ReceiveBuffers
from sparklog_broker.network.reply import Reply, error_reply
from sparklog_broker.network.transport import Transport
from sparklog_broker.network.unread_answers import UnreadAnswers

log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 1024 * 1024 + 64 * 1024
"""Buffer taken ahead of what has arrived: one batch of the default size and its header in one piece."""
READS_PER_EVENT = 4
PROGRESS_BYTES = 64 * 1024
"""A frame must get on by this much, or be complete, per `request.read.timeout.ms`: one byte now and then is a stall. So
must an answer that is read, per `response.write.timeout.ms`."""
LINGER_S = 1.0
_DISCARD = bytearray(32 * 1024)


class ConnectionLimits(Struct):
    """Limits of all connections, which share this object; see the settings of the same names."""

    frame_bytes_max: int
    read_timeout_s: float
    idle_timeout_s: float
    write_timeout_s: float
    unknown_frame_bytes_max: int = 128 * 1024
    """As long as it is not known who the peer is; a frame larger than this by then ends the connection."""


class Answer(Protocol):
    """Processes one request. `body` is header and payload, writable. None: there is no answer to send."""

    def __call__(
        self, prefix: RequestPrefix, body: memoryview, connection: Connection
    ) -> Coroutine[Any, Any, Reply | None]: ...


class Addresses(NamedTuple):
    """Our own address as the peer sees it, the peer's host, and the peer's name for the log."""

    local: tuple[str, int]
    peer_host: str
    peer_name: str


class State(Enum):
    OPEN = "open"
    DRAINING = "draining"
    LINGERING = "lingering"
    CLOSED = "closed"


class _Frame:
    """A request being read or processed; the owner of its reservation."""

    __slots__ = ("begun_s", "buffer", "prefix", "received", "reserved", "times")

    def __init__(self, prefix: RequestPrefix, buffer: np.ndarray, begun_s: float) -> None:
        self.prefix = prefix
        self.begun_s = begun_s
        self.buffer: np.ndarray | None = buffer
        """May be larger than the frame."""
        self.received = 0
        self.reserved = 0
        """Of the buffer, this much may be filled."""
        self.times = RequestTimes()

    def view(self, start: int, end: int) -> memoryview:
        return cast(np.ndarray, self.buffer).data[start:end]


class Connection:
    """Drives `transport`, which it owns from now on. `on_close` is called once, when all is released."""

    def __init__(
        self,
        transport: Transport,
        *,
        loop: asyncio.AbstractEventLoop,
        answer: Answer,
        limits: ConnectionLimits,
        budget: MemoryBudget,
        buffers: ReceiveBuffers,
        unread: UnreadAnswers,
        requests: RequestCounters,
        on_close: Callable[[Connection], None],
        addresses: Addresses | None = None,
        listener: str = "",
        local_socket: str = "",
    ) -> None:
        """`listener`: the name of the one that it came through, which offers `local_socket` to clients on this host."""
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
        """None: who the peer is was known from the beginning. Whoever accepts the connection sets it."""
        self.local_address, self.peer_host, self.peer_name = addresses or _addresses(transport.sock)
        self.principal: Principal = ANONYMOUS
        """Who the peer is; whoever authenticates it says so here. Counts from the next request on."""
        self.client_id = ""
        """What the client calls itself."""
        self.counted_user: str | None = None
        """As whose it has been counted; None: as nobody's yet."""
        self._mute_ms = 0
        self._muted: asyncio.TimerHandle | None = None
        self._prefix = bytearray(PREFIX_BYTES)
        self._prefix_received = 0
        self._frames_begun = 0
        self._reading: _Frame | None = None
        self._ready: _Frame | None = None
        self._current: _Frame | None = None
        self._running: asyncio.Task[None] | None = None
        self._out = OutQueue()
        self._last_words: Reply | None = None
        self._state = State.OPEN
        self._active_at = loop.time()
        self._progress_at = self._active_at
        self._progress_bytes = 0
        self._written_at = self._active_at
        self._written_bytes = 0
        self._sent_bytes = 0
        """Of the answer to the request that is being processed."""
        self._events.start(self._on_readable, self._on_writable)
        self._resume_reading()

    @property
    def state(self) -> State:
        return self._state

    @property
    def busy(self) -> bool:
        """Whether a request is being processed or answered."""
        return self._current is not None

    @property
    def half_request(self) -> HalfRequest | None:
        """What is there of a request that the peer could go on with, or of one that its quota keeps waiting; None:
        nothing that holds memory."""
        is_muted = self._muted is not None
        frame = self._ready if is_muted and self._ready is not None else self._reading
        if frame is None or not frame.reserved or not (self._events.is_reading or is_muted):
            return None
        return HalfRequest(frame.received, frame.reserved, frame.begun_s, self._progress_at)

    @property
    def is_known(self) -> bool:
        """Whether it is known who the peer is."""
        return self.authentication is None or self.authentication.principal is not None

    @property
    def times(self) -> RequestTimes:
        """Of the request that is being processed."""
        return self._current.times if self._current is not None else RequestTimes()

    def mute(self, mute_ms: int) -> None:
        """When the request that is being processed has been answered, nothing is read for so long (KIP-219)."""
        self._mute_ms = max(self._mute_ms, mute_ms)

    @property
    def mute_ms(self) -> int:
        """For how long nothing will be read when the request that is being processed has been answered."""
        return self._mute_ms

    def mute_now(self, mute_ms: int) -> None:
        """From now on nothing is read for so long; 0: nothing changes."""
        if mute_ms and self._muted is None and self._state is State.OPEN:
            self._events.pause_reading()
            self._muted = self._loop.call_later(mute_ms / 1_000, self._unmute)

    def refuse(self, error: SparklogError) -> None:
        """The first request is answered with `error`, then the connection is closed."""
        self._refusal = error

    # -- reading

    def _resume_reading(self) -> None:
        if not self._events.is_reading and self._muted is None and self._state in (State.OPEN, State.LINGERING):
            self._progress_at = self._loop.time()
            try:
                self._events.resume_reading()
            except Exception as e:  # noqa: BLE001 - others wait for memory behind this one
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
        except Exception as e:  # noqa: BLE001 - the loop would log it and go on with the rest of the frame
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
        """Whether the frame whose prefix is there may be read on."""
        self._progress_bytes, self._progress_at = 0, self._loop.time()
        self._prefix_received = 0
        self._frames_begun += 1
        if self._frames_begun == 1 and (foreign := foreign_protocol(self._prefix)):
            self._break_off(0, 0, InvalidRequestError(foreign))
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
        return self._limits.frame_bytes_max if self.is_known else self._limits.unknown_frame_bytes_max

    def _grow(self, frame: _Frame) -> bool:
        """Makes room for more of `frame`; False: there is no memory now, reading is paused."""
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
            self._ready = frame
            self._events.pause_reading()

    def _break_off(self, api: int, correlation_id: int, error: SparklogError) -> None:
        """Answers bytes that are no request; nothing more is read."""
        log.info("%s: %s; disconnecting", self.peer_name, error)
        self._requests.failed(api, (error.code,))
        self._events.pause_reading()
        reply = error_reply(api, correlation_id, error, close=True)
        if self._current is None:
            self._send(reply)
        else:  # the request before it is answered first
            self._last_words = reply

    # -- processing

    def _process(self, frame: _Frame) -> None:
        self._current = frame
        self._running = self._loop.create_task(self._serve(frame))

    async def _serve(self, frame: _Frame) -> None:
        """One request. It begins in the loop's next turn: a peer that has a hundred requests in its buffer does not
        keep the loop to itself."""
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
        except Exception as e:  # noqa: BLE001 - `answer` turns errors into replies, so this is a defect or no memory
            self._fail(e)

    def _send(self, reply: Reply | None) -> None:
        if reply is not None:
            self._out.extend(reply.parts)
            if reply.close:
                self._state = State.DRAINING
                self._events.pause_reading()
        self._on_writable()

    def _request_done(self) -> None:
        """All of the reply is in the kernel's hands."""
        frame, self._current = self._current, None
        self._active_at = self._loop.time()
        if frame is not None:
            sent_bytes, self._sent_bytes = self._sent_bytes, 0
            self._requests.done(frame.prefix.api, frame.times, self._active_at, sent_bytes, self.peer_name)
            self._give_back(frame)
        if self._last_words is not None:
            reply, self._last_words = self._last_words, None
            self._send(reply)
        elif self._state is State.DRAINING:
            self._linger()
        elif self._mute_ms:
            self._events.pause_reading()
            self._muted = self._loop.call_later(self._mute_ms / 1_000, self._unmute)
            self._mute_ms = 0
        else:
            self._go_on()

    def _unmute(self) -> None:
        self._muted = None
        self._active_at = self._loop.time()
        self._resume_reading()
        self._go_on()

    def _go_on(self) -> None:
        """With the request that has been read ahead."""
        if self._ready is not None and self._state is State.OPEN:
            frame, self._ready = self._ready, None
            self._resume_reading()
            self._process(frame)

    def _give_back(self, frame: _Frame) -> None:
        reserved, frame.reserved = frame.reserved, 0
        buffer, frame.buffer = frame.buffer, None
        if buffer is not None:
            self._buffers.give_back(buffer)
        self._budget.release(frame, reserved)

    # -- writing

    def _on_writable(self) -> None:
        try:
            self._write()
        except Exception as e:  # noqa: BLE001 - part of an answer may be out
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
            log.error("%s: a file is shorter than announced; disconnecting", self.peer_name)
        elif error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN):
            log.warning("%s: sending failed: %s; disconnecting", self.peer_name, error)
        self.close()

    def _wrote(self, count: int) -> None:
        """So many bytes of the answers have been taken."""
        if count:
            self._sent_bytes += count
            self._active_at = self._loop.time()
        if self._out:
            self._wait_until_writable(count)
            return
        if self._events.is_writing:
            self._events.pause_writing()
            self._unread.note(self, 0, 0)
        self._request_done()

    def _wait_until_writable(self, written_bytes: int) -> None:
        """The peer has not read all."""
        self._written_bytes += written_bytes
        if self._written_bytes >= PROGRESS_BYTES or not self._events.is_writing:
            self._written_bytes, self._written_at = 0, self._loop.time()
        if not self._events.is_writing:
            self._events.resume_writing()
            if self._current is not None:
                self._give_back(self._current)  # an answer that waits need not keep its request
        self._unread.note(self, self._out.held_bytes, self._out.held_files)

    # -- ending

    def check_deadlines(self, now: float) -> None:
        """Closes the connection if it has stalled or been idle for too long. Called a few times per timeout."""
        if self._events.is_writing and now - self._written_at > self._answer_timeout_s():
            log.info("%s: does not read its answer; disconnecting", self.peer_name)
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
        """A consumer may leave what it has fetched ahead unread for as long as it may be idle."""
        fetched = self._current is not None and self._current.prefix.api == Api.FETCH
        return self._limits.idle_timeout_s if fetched else self._limits.write_timeout_s

    def stop(self) -> None:
        """Finishes the request that is being processed, then closes; at once when there is none."""
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
            self._transport.shutdown()
        except OSError:
            self.close()
            return
        self._resume_reading()

    def _fail(self, error: Exception) -> None:
        """Ends it because of an error that nobody has expected, or because there is no memory."""
        if self._state is State.CLOSED:
            return
        try:
            if isinstance(error, MemoryError):
                log.error("%s: out of memory; disconnecting", self.peer_name)
            else:
                log.error("%s: its connection has failed; disconnecting", self.peer_name, exc_info=error)
        finally:
            self.close()

    def close(self) -> None:
        """Ends it now: cancels the running request, releases slices and memory."""
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
            self._unread.note(self, 0, 0)
        finally:
            self._transport.when_idle(self._release)

    def _release(self) -> None:
        """Gives back all that it holds."""
        try:
            for frame in (self._reading, self._ready, self._current):
                if frame is not None:
                    self._budget.forget(frame)
                    self._give_back(frame)
            self._reading = self._ready = self._current = None
            self._out.clear()
        finally:
            self._transport.close()
            self._on_close(self)


def _addresses(sock: socket.socket) -> Addresses:
    unknown = Addresses(("", 0), "", "unknown peer")
    try:
        local, peer = sock.getsockname(), sock.getpeername()
    except OSError:  # gone already
        return unknown
    if not isinstance(local, tuple) or not isinstance(peer, tuple):  # a socket pair
        return unknown
    return Addresses((str(local[0]), int(local[1])), str(peer[0]), f"{peer[0]}:{peer[1]}")
