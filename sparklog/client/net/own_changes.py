"""The recent changes of this process in a cluster, which requests name so that brokers without them wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparklog.protocol.base import NO_VERSION, Message, MetadataVersion

NAMED_S = 10.0
"""Time in s for which requests name the newest change: a broker that is further behind has other faults."""


class OwnChanges:
    """The recent changes of this process; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest, self._until = NO_VERSION, 0.0

    def note(self, answer: Message) -> None:
        """Note a change: a broker has it if its metadata have at least the version in the answer to the change."""
        version: MetadataVersion = getattr(answer, "metadata_version", NO_VERSION)
        if version == NO_VERSION:
            return
        with self._lock:
            now = self._clock()
            if version >= self._newest or now >= self._until:
                self._newest, self._until = version, now + NAMED_S

    def name(self, request: Message) -> None:
        """Set the version that the answer to a request has to include, if the request has such a field."""
        if hasattr(request, "at_least"):
            with self._lock:
                request.at_least = self._newest if self._clock() < self._until else NO_VERSION
