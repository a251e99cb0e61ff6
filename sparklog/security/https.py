"""Requests to the https endpoints of OAUTHBEARER: the token endpoint, and the endpoint of the keys that verify tokens.

The endpoint's certificate is always verified. Redirects are not followed, because they could lead to a server without
encryption, to which the client's secret would be sent.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparklog.errors import InvalidConfigError
from sparklog.security.timed_sockets import TimedTlsSocket

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
    """Send a GET request, or with `data` a POST request, and return the answer's body. `ca_location`: PEM file of the
    trusted authorities; "": those of the system. `timeout_s`: longest time for the whole answer, even if bytes keep
    coming. `bytes_max`: largest part of the body that is returned; the rest is cut off. Raises InvalidConfigError: The
    URL is not https, or the file of authorities cannot be read; urllib.error.HTTPError; OSError: The endpoint does not
    answer, the answer is cut off, or the certificate is not valid."""
    import urllib.request  # slow to import

    if not url.startswith("https://"):
        raise InvalidConfigError(f"{url}: only https:// is allowed")
    try:
        context = ssl.create_default_context(cafile=ca_location or None)
    except OSError as e:  # ssl.SSLError is one
        raise InvalidConfigError(f"https.ca.location = {ca_location}: {e.strerror or 'no PEM certificates'}") from e
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = type("SocketUntil", (TimedTlsSocket,), {"end_s": time.monotonic() + timeout_s})
    opener = urllib.request.build_opener(_no_redirects(), urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url, data, dict(headers or {}))
    with opener.open(request, timeout=max(timeout_s, 0.001)) as answer:
        content: bytes = answer.read(bytes_max)
        if answer.length and len(content) < bytes_max:
            raise ConnectionError(f"the answer ends after {len(content)} bytes, {answer.length} before its end")
    return content


def _no_redirects() -> urllib.request.HTTPRedirectHandler:
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Return None, so that a redirect is not followed and counts as an error."""

    return NoRedirects()
