"""Requests to the https endpoints of OAUTHBEARER: those of tokens and of the keys that tokens are verified with.

The endpoint's certificate is always verified, and redirects are not followed: they could lead to plain text, and take
the client's secret with them.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparklog.errors import InvalidConfigError

if TYPE_CHECKING:
    import urllib.request


def fetch(
    url: str,
    *,
    ca_location: str,
    timeout_s: float,
    bytes_max: int,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the answer to a GET, with `data` to a POST; at most `bytes_max` of it. `ca_location`: PEM file of the
    authorities that are trusted; "": those of the system. `timeout_s`: for the whole answer, however slowly it comes.

    Raises InvalidConfigError (not https, or the file of authorities cannot be read), urllib.error.HTTPError (it
    refuses, or redirects), OSError (it does not answer, ends in the middle, or its certificate is not valid).
    """
    import urllib.request  # slow to import

    if not url.startswith("https://"):
        raise InvalidConfigError(f"{url}: only https:// is allowed")
    try:
        context = ssl.create_default_context(cafile=ca_location or None)
    except OSError as e:  # ssl.SSLError is one
        raise InvalidConfigError(f"https.ca.location = {ca_location}: {e.strerror or 'no PEM certificates'}") from e
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _socket_until(time.monotonic() + timeout_s)
    opener = urllib.request.build_opener(_no_redirects(), urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, data, dict(headers or {}))
    with opener.open(request, timeout=max(timeout_s, 0.001)) as answer:
        content: bytes = answer.read(bytes_max)
        if answer.length and len(content) < bytes_max:
            raise ConnectionError(f"the answer ends after {len(content)} bytes, {answer.length} before its end")
    return content


def _socket_until(end_s: float) -> type[ssl.SSLSocket]:
    """Return a class of sockets that receive nothing after `end_s` (monotonic time). Their own timeout begins again
    with each byte."""

    class SocketUntil(ssl.SSLSocket):
        def recv_into(self, *args: Any, **more: Any) -> int:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the answer is not complete in time")
            self.settimeout(left_s)
            return super().recv_into(*args, **more)

    return SocketUntil


def _no_redirects() -> urllib.request.HTTPRedirectHandler:
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Return None: a redirect is not followed, and counts as an error."""

    return NoRedirects()
