"""Server in this process for the orders of a suite's stand-ins."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """A handler without a log."""

    def log_message(self, *_: object) -> None:
        """Write no line for a request."""


@contextlib.contextmanager
def serving(handler: type[QuietHandler]) -> Iterator[str]:
    """Serve requests on a thread, and yield the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
