"""The keys that verify OAUTHBEARER tokens. The keys are read from a file or an https address, again at intervals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future

from sparklog.errors import InvalidConfigError, SaslAuthenticationFailedError
from sparklog.security.https import fetch
from sparklog.security.oauthbearer import JWKS_CHARS_MAX, TokenRules, TokenVerifier, UnknownKeyError
from sparklog.security.secrets import read_text_file

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 10.0
RETRY_S = 10.0
"""Time in s until the next attempt after a failed read."""
UNKNOWN_KEY_INTERVAL_S = 10.0
"""Shortest time, in s, between two reads that tokens with an unknown key cause: clients can invent such tokens."""
UNKNOWN_KEY_PATIENCE_S = 2.0
"""Longest wait, in s, of an authentication for such a read."""
_FILE = "file://"


class TokenKeys:
    """The verifier of a listener's tokens. `renew` blocks, and must be called on a separate thread."""

    def __init__(
        self,
        settings: Mapping[str, object],
        now_s: Callable[[], float],
        file_interval_s: float,
        threads: Executor,
        *,
        waits_max: int = 1,
        fetch: Callable[..., bytes] = fetch,
    ) -> None:
        """`settings`: the listener's settings. `threads`: run the reads of an https address. `waits_max`: number
        of authentications that can wait for a read at once; the others are refused, so that a slow server of keys does
        not hold all threads of authentications. `fetch`: reads an https address, like `security.https.fetch`. Raises
        InvalidConfigError, which names the wrong or missing setting.
        """
        self._threads = threads
        self._fetch = fetch
        self._reread_lock = threading.Lock()
        self._waits = threading.BoundedSemaphore(waits_max)
        self._first: Future[None] | None = None
        self._reading: Future[None] | None = None
        self._renewing: Future[None] | None = None
        self._last_reread_s = 0.0
        self._ca_location = str(settings["https.ca.location"])
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
        self._valid_s = int(str(settings["sasl.oauthbearer.jwks.endpoint.outage.ms"])) / 1_000
        refresh_s = int(str(settings["sasl.oauthbearer.jwks.endpoint.refresh.ms"])) / 1_000
        refresh_s = min(refresh_s, self._valid_s / 2)
        self._interval_s = file_interval_s if self._url.startswith(_FILE) else refresh_s
        self._now_s = now_s
        self._due_s = 0.0
        self._read_s = 0.0
        """Time in s of the last successful read."""
        self._text = ""
        self._verifier: TokenVerifier | None = None
        self._lock = threading.Lock()
        if self._url.startswith(_FILE):
            self._verifier, self._read_s = TokenVerifier(self._read(), self._rules), now_s()

    def verify(self, token: str, now_ms: int) -> tuple[str, int]:
        """Verify a token, as a TokenVerifier does. If the token's key is unknown, or the keys have not been read for
        the longest allowed time, read the keys again, unless such a read is recent. Blocks; called on the threads of
        authentications. Raises SaslAuthenticationFailedError if no keys are loaded yet or the keys are too old, and the
        errors of `TokenVerifier.verify`.
        """
        if self._verifier is None:
            self._wait_for(self._first_read())
        elif self._is_too_old:
            self._wait_for(self._reread_if_allowed())
        verifier = self._verifier
        if verifier is None:
            raise SaslAuthenticationFailedError("no keys are loaded yet")
        if self._is_too_old:
            raise SaslAuthenticationFailedError(
                f"the issuer's keys could not be read for {self._valid_s:.0f} s, so that no token is accepted: the "
                "broker's log has the reason"
            )
        try:
            return verifier.verify(token, now_ms)
        except UnknownKeyError:
            self._wait_for(self._reread_if_allowed())
            newer = self._verifier
            if newer is None or newer is verifier:
                raise
        return newer.verify(token, now_ms)

    @property
    def _is_too_old(self) -> bool:
        """True if the last successful read is longer ago than the keys may be used."""
        return self._now_s() - self._read_s >= self._valid_s

    def renew_soon(self) -> None:
        """Begin to read the keys on the thread of such reads if their interval has passed. Do nothing while the last
        such read runs: a server of keys that hangs must not make a queue of reads."""
        if self._renewing is None or self._renewing.done():
            self._renewing = self._threads.submit(self.renew)

    def _first_read(self) -> Future[None]:
        """Begin to read the keys, and return the read; return the running read if there is one."""
        with self._reread_lock:
            if self._first is None or self._first.done():
                self._first = self._threads.submit(self.renew)
            return self._first

    def _reread_if_allowed(self) -> Future[None]:
        """Begin to read the keys again, and return the read; return the last such read if it is recent."""
        with self._reread_lock:
            if self._reading is None or self._now_s() - self._last_reread_s >= UNKNOWN_KEY_INTERVAL_S:
                self._last_reread_s = self._now_s()
                self._reading = self._threads.submit(self._reread)
            return self._reading

    def _wait_for(self, reading: Future[None]) -> None:
        if reading.done() or not self._waits.acquire(blocking=False):
            return
        try:
            reading.result(UNKNOWN_KEY_PATIENCE_S)
        except (TimeoutError, CancelledError):
            log.warning("%s is slow: tokens with an unknown key are refused until it answers", self._url)
        finally:
            self._waits.release()

    def _reread(self) -> None:
        self.renew(whether_due_or_not=True)

    def renew(self, *, whether_due_or_not: bool = False) -> None:
        """Read the keys again if their interval has passed. A failure is logged, and the old keys stay.
        `whether_due_or_not`: True to read them in any case."""
        with self._lock:
            if self._now_s() < self._due_s and not whether_due_or_not:
                return
            try:
                text = self._read()
                if text != self._text:
                    self._verifier, self._text = TokenVerifier(text, self._rules), text
                self._read_s = self._now_s()
                self._due_s = self._read_s + self._interval_s
            except InvalidConfigError as e:
                self._due_s = self._now_s() + min(RETRY_S, self._interval_s)
                left_s = max(self._read_s + self._valid_s - self._now_s(), 0.0)
                log.error(  # noqa: TRY400
                    "the keys of tokens cannot be read: %s; %s", e,
                    "no token is accepted until they can" if self._verifier is None or not left_s
                    else f"the previous keys stay in use for {left_s:.0f} s more",
                )  # fmt: skip

    def _read(self) -> str:
        if self._url.startswith(_FILE):
            return read_text_file(self._url.removeprefix(_FILE))
        from http.client import HTTPException  # slow to import

        try:
            content = self._fetch(
                self._url, ca_location=self._ca_location, timeout_s=FETCH_TIMEOUT_S, bytes_max=JWKS_CHARS_MAX + 1
            )
        except (OSError, ValueError, HTTPException) as e:
            raise InvalidConfigError(f"{self._url}: {getattr(e, 'reason', None) or e}") from None
        return content.decode("utf-8", "replace")


def _parts(value: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(value).split(",") if part.strip())
