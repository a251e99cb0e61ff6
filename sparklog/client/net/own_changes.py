"""The newest change of this process in a cluster. Requests name it, so that a broker without the change waits for
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparklog.protocol.base import NO_VERSION, Message, MetadataVersion

NAMED_S = 10.0
"""Time in s for which requests name the newest change. A broker that lags further behind has other faults."""


class OwnChanges:
    """The metadata version of this process's newest change; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._newest, self._until = NO_VERSION, 0.0

    def note(self, answer: Message) -> None:
        """Note the metadata version in the answer to a change; a broker has the change from this version on. Other
        answers are ignored."""
        version: MetadataVersion = getattr(answer, "metadata_version", NO_VERSION)
        if version == NO_VERSION:
            return
        with self._lock:
            now = self._clock()
            if version >= self._newest or now >= self._until:
                self._newest, self._until = version, now + NAMED_S

    def name(self, request: Message) -> None:
        """Set the metadata version that a broker must have before it answers the request, if the request has such a
        field."""
        if hasattr(request, "at_least"):
            with self._lock:
                request.at_least = self._newest if self._clock() < self._until else NO_VERSION
