"""Brokers whose data this process does not try to reach in one way, each until a time."""

from __future__ import annotations

import time

from sparklog.client.net.addresses import Endpoint


class AvoidedBrokers:
    """For one way to read: the brokers with which it has failed, and until when."""

    def __init__(self) -> None:
        self._until: dict[Endpoint, float] = {}

    def is_worth_trying(self, endpoint: Endpoint) -> bool:
        """True if the way has not failed with this broker a short time ago."""
        return time.monotonic() >= self._until.get(endpoint, 0.0)

    def avoid(self, endpoint: Endpoint, seconds: float) -> None:
        """Note that the way has failed with this broker: do not try it again for `seconds`."""
        self._until[endpoint] = time.monotonic() + seconds
