"""The producers of a Python worker. The tasks that a worker runs one after another share connections and threads."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark_sparklog.options.cluster_address import ClusterAddress
from sparklog.errors import SparklogError
from sparklog.settings import Scope, settings_of

if TYPE_CHECKING:
    from sparklog.client.producer.producer import Producer

log = logging.getLogger("pyspark_sparklog")

PRODUCERS_MAX = 8


class ProducerPool:
    """The open producers of this process by address and settings. Above PRODUCERS_MAX the least recently used one is
    closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[Any, ...], Producer] = OrderedDict()
        self._pid = os.getpid()

    def take(self, address: ClusterAddress, settings: Mapping[str, object]) -> Producer:
        """Return the producer for `settings` (by their Kafka names), which is created if necessary. It writes with
        acks=all."""
        from sparklog.client.producer.producer import Producer

        security = address.security.resolve()
        key = (address.bootstrap_servers, security, tuple(sorted(settings.items())))
        dropped = []
        with self._lock:
            if self._pid != os.getpid():  # a forked child must not use its parent's
                self._open.clear()
                self._pid = os.getpid()
            producer = self._open.get(key)
            if producer is None:
                names = settings_of(Scope.PRODUCER)
                parameters: dict[str, Any] = {names[n].parameter: v for n, v in settings.items()}
                producer = self._open[key] = Producer(
                    address.bootstrap_servers, security=security, acks="all", **parameters
                )
            self._open.move_to_end(key)
            while len(self._open) > PRODUCERS_MAX:
                dropped.append(self._open.popitem(last=False)[1])
        for old in dropped:
            old.close()
        return producer

    def discard(self, producer: Producer) -> None:
        """Close a producer that failed: the next task gets a new one."""
        with self._lock:
            for key in [k for k, p in self._open.items() if p is producer]:
                del self._open[key]
        try:
            producer.close()
        except SparklogError as e:
            log.warning("while closing a producer that had failed: %s", e)

    def close(self) -> None:
        with self._lock:
            producers = list(self._open.values()) if self._pid == os.getpid() else []
            self._open.clear()
        for producer in producers:
            producer.close()


producers = ProducerPool()
atexit.register(producers.close)
