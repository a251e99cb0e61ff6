"""The TLS handshake of an accepted connection, off the event loop.

The loop only waits for the socket. Each step of OpenSSL, which signs and verifies, runs on a thread without blocking.
Until the end of the handshake a peer holds only a socket and OpenSSL's state, some tens of KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from enum import Enum
from typing import NamedTuple

log = logging.getLogger(__name__)

_NOT_TLS = {"HTTP_REQUEST", "WRONG_VERSION_NUMBER", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"}
ALERT_PROTOCOL_VERSION = bytes.fromhex("15030100020246")
"""A TLS alert for clients without TLS: their error message then names TLS."""
_REFUSED_US = "ALERT"
_DISCARDED_BYTES = 64 * 1024


class SecuredSocket(NamedTuple):
    """A socket after its handshake. `certificate`: the peer's verified certificate as DER; None without one."""

    sock: ssl.SSLSocket
    certificate: bytes | None


class _Step(Enum):
    READ = "read"
    WRITE = "write"


class TlsHandshake:
    """A handshake. It owns `sock` until it calls `done` on the event loop. `done` gets None after a failure."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        timeout_s: float,
        peer_name: str,
        done: Callable[[TlsHandshake, SecuredSocket | None], None],
        delay_s: float = 0.0,
    ) -> None:
        """`delay_s`: time before the first read, in s."""
        sock.setblocking(False)
        self.peer_name = peer_name
        self._loop = loop
        self._threads = threads
        self._on_done = done
        self._sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._fd = self._sock.fileno()
        self._watched: _Step | None = None
        self._thread_works = False
        self._has_ended = False
        self._timeout = loop.call_later(delay_s + timeout_s, self._end, f"no TLS handshake within {timeout_s:g} s")
        self._delay = loop.call_later(delay_s, self._wait_for, _Step.READ) if delay_s else None
        if not delay_s:
            self._wait_for(_Step.READ)

    def close(self) -> None:
        """End the handshake, and call `done` with None."""
        self._end("")

    def _wait_for(self, step: _Step) -> None:
        self._watched = step
        (self._loop.add_reader if step is _Step.READ else self._loop.add_writer)(self._fd, self._go_on)

    def _stop_waiting(self) -> None:
        if self._watched is not None:
            (self._loop.remove_reader if self._watched is _Step.READ else self._loop.remove_writer)(self._fd)
            self._watched = None

    def _go_on(self) -> None:
        self._stop_waiting()
        self._thread_works = True
        try:
            self._loop.run_in_executor(self._threads, _step, self._sock).add_done_callback(self._stepped)
        except RuntimeError:  # the threads have been stopped
            self._thread_works = False
            self._end("")

    def _stepped(self, future: asyncio.Future[_Step | SecuredSocket]) -> None:
        self._thread_works = False
        if self._has_ended:
            self._close()
            return
        try:
            outcome = future.result()
        except (OSError, asyncio.CancelledError) as e:
            if isinstance(e, ssl.SSLError) and e.reason in _NOT_TLS:
                with contextlib.suppress(OSError):  # OpenSSL sends these peers no alert
                    socket.socket.send(self._sock, ALERT_PROTOCOL_VERSION)
            self._end(failure_text(e))
        else:
            if isinstance(outcome, SecuredSocket):
                self._has_ended = True
                self._timeout.cancel()
                self._on_done(self, outcome)
            else:
                self._wait_for(outcome)

    def _end(self, why: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._timeout.cancel()
        if self._delay is not None:
            self._delay.cancel()
        self._stop_waiting()
        if why:
            log.info("%s: %s; disconnecting", self.peer_name, why)
        if not self._thread_works:
            self._close()
        self._on_done(self, None)

    def _close(self) -> None:
        """Close the socket. Received bytes are read first: otherwise the kernel would send a reset, which overtakes
        OpenSSL's last alert.
        """
        with contextlib.suppress(OSError, ValueError):
            socket.socket.recv(self._sock, _DISCARDED_BYTES, socket.MSG_DONTWAIT)
        self._sock.close()


def _step(sock: ssl.SSLSocket) -> _Step | SecuredSocket:
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return _Step.READ
    except ssl.SSLWantWriteError:
        return _Step.WRITE
    return SecuredSocket(sock, sock.getpeercert(binary_form=True))


def failure_text(error: BaseException) -> str:
    """Return the reason of a failed handshake for the log, with its likely cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    reason = (error.reason if isinstance(error, ssl.SSLError) else "") or ""
    if reason in _NOT_TLS:
        return "the client does not speak TLS: its security.protocol does not match this listener"
    if _REFUSED_US in reason:
        return f"the client has ended the TLS handshake ({reason}): does it trust this broker's certificate?"
    return f"the TLS handshake has failed: {reason or error or type(error).__name__}"
