"""Sources of a client's tokens (OAUTHBEARER): a file, an endpoint that issues tokens for the client's id and secret
(RFC 6749, section 4.4), or a given token. The functions block, so they must not run on an event loop."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable

from sparklog.errors import BrokerNotAvailableError, InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.client_security import TokenEndpoint
from sparklog.security.https import fetch
from sparklog.security.sasl import TOKEN_BYTES_MAX
from sparklog.security.secrets import Secret, read_text_file

_FILE = "file://"
USED_PART = 0.8
"""Part of a token's lifetime for which it is reused; after it, the next call requests a new token."""
KEPT_MAX = 64


class TokenSource:
    """The tokens of one endpoint. Thread-safe."""

    def __init__(self, endpoint: TokenEndpoint, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._lock = threading.Lock()
        self._cached_token: tuple[Secret, float] | None = None
        """The last token, and the monotonic time in s until which it is reused."""

    def token(self, timeout_s: float) -> Secret:
        """Return the given token, the present token in the file, or a token of the endpoint, which is reused for a part
        of its lifetime. `timeout_s`: longest time for a request to the endpoint. Raises InvalidConfigError: The file
        with the token, or that of the authorities, cannot be read; BrokerNotAvailableError;
        SaslAuthenticationFailedError: The endpoint refuses the request, or its answer has no token."""
        if not self._endpoint.url:
            return self._endpoint.client_secret
        if self._endpoint.url.startswith(_FILE):
            return Secret(read_text_file(self._endpoint.url.removeprefix(_FILE)).strip())
        with self._lock:
            if self._cached_token is None or self._clock() >= self._cached_token[1]:
                begun = self._clock()
                token, lifetime_s = self._ask(timeout_s)
                self._cached_token = token, begun + lifetime_s * USED_PART
            return self._cached_token[0]

    def forget(self) -> None:
        """Remove the token from the cache, because the broker has refused it. The next call of `token` requests a new
        one."""
        with self._lock:
            self._cached_token = None

    def _ask(self, timeout_s: float) -> tuple[Secret, float]:
        import urllib.error  # slow to import
        import urllib.parse
        from http.client import HTTPException

        one = self._endpoint
        quote = urllib.parse.quote_plus
        login = f"{quote(one.client_id)}:{quote(one.client_secret.reveal())}"
        fields = {"grant_type": "client_credentials"} | ({"scope": one.scope} if one.scope else {})
        try:
            answer = fetch(
                one.url,
                ca_location=one.ca_location,
                timeout_s=timeout_s,
                bytes_max=2 * TOKEN_BYTES_MAX,
                data=urllib.parse.urlencode(fields).encode(),
                headers={
                    "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
                    "Accept": "application/json",
                },
            )
            token_fields = json.loads(answer)
            token = token_fields["access_token"]
            lifetime_s = float(token_fields.get("expires_in", 0))
            if not isinstance(token, str) or token_fields.get("token_type", "bearer").lower() != "bearer":
                raise TypeError
        except urllib.error.HTTPError as e:
            raise SaslAuthenticationFailedError(f"the token endpoint {one.url} refuses: HTTP {e.code}") from None
        except (OSError, HTTPException) as e:
            reason = getattr(e, "reason", None) or e
            raise BrokerNotAvailableError(f"the token endpoint {one.url} does not answer: {reason}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SaslAuthenticationFailedError(f"the response of the token endpoint {one.url} has no token") from None
        return Secret(token), lifetime_s


_sources: dict[TokenEndpoint, TokenSource] = {}
_lock = threading.Lock()


def token_source(endpoint: TokenEndpoint | None) -> TokenSource:
    """Return the process's token source for an endpoint, so that all its connections share tokens. Raises
    InvalidConfigError if `endpoint` is None."""
    if endpoint is None:
        raise InvalidConfigError("OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url")
    with _lock:
        if len(_sources) >= KEPT_MAX:
            _sources.clear()
        return _sources.setdefault(endpoint, TokenSource(endpoint))
