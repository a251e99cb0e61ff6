"""The keys that tokens (OAUTHBEARER) are verified with: read from a file or from an address, and again when due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.oauthbearer import JWKS_CHARS_MAX, TokenRules, TokenVerifier
from sparklog.security.sasl import CREDENTIALS_WRONG
from sparklog.security.secrets import read_text_file

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 10.0
RETRY_S = 10.0
"""After a failure."""
_FILE = "file://"


class TokenKeys:
    """The verifier of a listener's tokens. `renew` blocks: on a thread of its own."""

    def __init__(self, settings: Mapping[str, object], now_s: Callable[[], float], file_interval_s: float) -> None:
        """`settings`: as the listener has them. Raises InvalidConfigError that names what is wrong or missing."""
        self._url = str(settings["sasl.oauthbearer.jwks.endpoint.url"])
        if not self._url.startswith((_FILE + "/", "https://")):
            raise InvalidConfigError("OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url: https://…, or file:///path")
        self._rules = TokenRules(
            _parts(settings["sasl.oauthbearer.expected.audience"]),
            str(settings["sasl.oauthbearer.expected.issuer"]),
            _parts(settings["sasl.oauthbearer.signature.algorithms"]),
            int(str(settings["sasl.oauthbearer.clock.skew.seconds"])) * 1_000,
            str(settings["sasl.oauthbearer.sub.claim.name"]),
        )
        refresh_s = int(str(settings["sasl.oauthbearer.jwks.endpoint.refresh.ms"])) / 1_000
        self._interval_s = file_interval_s if self._url.startswith(_FILE) else refresh_s
        self._now_s = now_s
        self._due_s = 0.0
        self._text = ""
        self._verifier: TokenVerifier | None = None
        self._lock = threading.Lock()
        if self._url.startswith(_FILE):
            self._verifier = TokenVerifier(self._read(), self._rules)

    def current(self) -> TokenVerifier:
        """Raises SaslAuthenticationFailedError while there are no keys."""
        if self._verifier is None:
            raise SaslAuthenticationFailedError(CREDENTIALS_WRONG)
        return self._verifier

    def renew(self) -> None:
        """Reads the keys if they are due; a failure is logged, and the old keys stay."""
        with self._lock:
            if self._now_s() < self._due_s:
                return
            try:
                text = self._read()
                if text != self._text:
                    self._verifier, self._text = TokenVerifier(text, self._rules), text
                self._due_s = self._now_s() + self._interval_s
            except InvalidConfigError as e:
                self._due_s = self._now_s() + min(RETRY_S, self._interval_s)
                log.error("the keys of tokens cannot be read, the old ones stay: %s", e)  # noqa: TRY400

    def _read(self) -> str:
        if self._url.startswith(_FILE):
            return read_text_file(self._url.removeprefix(_FILE))
        import urllib.request  # slow to import

        try:
            with urllib.request.urlopen(self._url, timeout=FETCH_TIMEOUT_S) as answer:
                content: bytes = answer.read(JWKS_CHARS_MAX + 1)
        except (OSError, ValueError) as e:
            raise InvalidConfigError(f"{self._url}: {getattr(e, 'reason', None) or e}") from None
        return content.decode("utf-8", "replace")


def _parts(value: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(value).split(",") if part.strip())
