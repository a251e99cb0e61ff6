"""A server of sparklog as the rows use it: its processes, addresses and topics. `KafkaServer` has the same members."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.local_cluster import LocalCluster
from sparklog.errors import SparklogError
from tests.support.processes import MeasurementError, directory_bytes

ADMIN_TIMEOUT_MS = 300_000
WAIT_S = 120.0
REPLICAS = 3
TOPIC_PREFIX = "t"


class SparklogServer:
    """One broker, or three with three replicas of each topic, min.insync.replicas=2."""

    def __init__(
        self,
        local: LocalBroker | LocalCluster,
        *,
        addresses: Mapping[str, str] | None = None,
        security: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Wrap a running server.

        Args:
            addresses: Addresses of named listeners; None: the server has one listener.
            security: Settings of a client, by listener.
        """
        self.local = local
        self.brokers: list[Any] = list(local.brokers) if isinstance(local, LocalCluster) else [local]
        self._addresses = addresses or {}
        self._security = security or {}
        self.bootstrap_servers = next(iter(self._addresses.values()), local.bootstrap_servers)

    def stop(self) -> None:
        """End the broker or the cluster."""
        self.local.stop()

    @property
    def pids(self) -> list[int]:
        """Process ids of the brokers."""
        return [broker.pid for broker in self.brokers]

    def address(self, listener: str) -> str:
        """Bootstrap servers at a listener; the first listener's for a name that is not one."""
        return self._addresses.get(listener, self.bootstrap_servers)

    def client(self, listener: str) -> dict[str, Any]:
        """Arguments of a `Producer` or `Consumer` at a listener, without its addresses."""
        return {"security": dict(self._security[listener])} if listener in self._security else {}

    def admin(self, bootstrap_servers: str | None = None) -> sparklog.Admin:
        """A new admin client, which waits for large topics; by default it may ask all brokers."""
        return sparklog.Admin(bootstrap_servers or self.bootstrap_servers, request_timeout_ms=ADMIN_TIMEOUT_MS)

    def create_topic(self, partitions: int, schema: Any = None, configs: Mapping[str, object] | None = None) -> str:
        """Create a topic, in a cluster with all replicas in sync; returns its name."""
        name = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:12]}"
        settings: dict[str, Any] = {"partitions": partitions, "schema": schema, "configs": configs}
        with self.admin() as admin:
            if len(self.brokers) == 1:
                admin.create_topic(name, **settings)
                return name
            until(lambda: len(admin.describe_cluster().brokers) == len(self.brokers))
            settings |= {"replication_factor": REPLICAS, "configs": {"min.insync.replicas": 2, **(configs or {})}}
            admin.create_topic(name, **settings)
            until(lambda: all(len(p.isr) == REPLICAS for p in admin.describe_topic(name).partition_details))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        with self.admin() as admin:
            admin.delete_topic(name)

    @contextlib.contextmanager
    def topic(self, partitions: int, schema: Any = None, configs: Mapping[str, object] | None = None) -> Iterator[str]:
        """Create a topic for the time of the block."""
        name = self.create_topic(partitions, schema=schema, configs=configs)
        try:
            yield name
        finally:
            # A broker of a cluster may be missing at the end of a row, and the cluster ends with the row.
            with contextlib.suppress(*([SparklogError] if len(self.brokers) > 1 else [])):
                self.delete_topic(name)

    def topic_bytes(self, topic: str) -> float:
        """Size of a topic's segments on one broker's disk, without indexes."""
        found = [d for broker in self.brokers for d in broker.data_dir.glob(f"{topic}-[0-9]*")]
        return sum(directory_bytes(d, "*.arrow") for d in found) / len(self.brokers)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition of the cluster holds. Raises MeasurementError after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(SparklogError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise MeasurementError(f"the cluster did not come to rest within {WAIT_S:.0f} s")
        time.sleep(0.02)
