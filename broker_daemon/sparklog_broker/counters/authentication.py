"""Counters of authentications."""

from __future__ import annotations

from collections import Counter


class AuthenticationCounters:
    """Counts since the broker's start. Event-loop thread only."""

    def __init__(self) -> None:
        self.succeeded: Counter[str] = Counter()
        """Successful authentications by mechanism."""
        self.repeated: Counter[str] = Counter()
        """Re-authentications (KIP-368) by mechanism."""
        self.failed: Counter[str] = Counter()
        """Failures by reason: credentials, mechanism, order, timeout, expired (the session), certificate,
        certificate-expired, tls (the TLS handshake), too-many (closed in favour of newer connections, see
        `connections.authenticating.max`)."""
