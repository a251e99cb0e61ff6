"""What is counted of authentications."""

from __future__ import annotations

from collections import Counter


class AuthenticationCounters:
    """Since the broker's start. Event-loop thread."""

    def __init__(self) -> None:
        self.succeeded: Counter[str] = Counter()
        """By mechanism."""
        self.again: Counter[str] = Counter()
        """Authenticated again (KIP-368), by mechanism."""
        self.failed: Counter[str] = Counter()
        """By reason: credentials, mechanism, order, timeout, expired, certificate, tls (the handshake), too-many
        (closed for newer ones, `connections.authenticating.max`)."""
