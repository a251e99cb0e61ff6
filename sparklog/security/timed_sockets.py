"""Sockets that receive nothing after the end of a request, because a socket's own timeout starts again with each
received byte."""

from __future__ import annotations

import math
import socket
import ssl
import time
from typing import Any


class _Timed:
    """The end of the present request, and the receiving of a socket until then."""

    end_s = math.inf
    """End of the request on the monotonic clock."""

    def recv_into(self: Any, *args: Any, **more: Any) -> int:
        remaining_s = self.end_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("the answer is not complete in time")
        self.settimeout(remaining_s)
        count: int = super().recv_into(*args, **more)  # type: ignore[misc]
        return count


class TimedSocket(_Timed, socket.socket):
    """A socket without TLS."""


class TimedTlsSocket(_Timed, ssl.SSLSocket):
    """A socket with TLS, for `sslsocket_class` of a context."""
