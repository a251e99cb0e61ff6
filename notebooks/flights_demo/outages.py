"""What happens to the cluster while the flights stream: brokers and ZooKeeper die, one after the other, and come back.

A thread of its own, which tells what it does as `events`; the main thread shows them. Before each step it waits until
rows have been acknowledged since the last one, so that every outage meets a stream that flows.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sparklog
from sparklog import SparklogError

from .feed import FLIGHTS, Feeder

REPLICAS = 3
SETTINGS = {"zookeeper.session.timeout.ms": 2_000, "replica.lag.time.max.ms": 5_000}
"""Shorter than by default, as the year is."""
ZOOKEEPER_AWAY_S = 6.0
PATIENCE_S = 90.0
LOOK_S = 0.1


class OutageError(Exception):
    """The cluster has not done what it has to do in time."""


class StoppedError(Exception):
    """The demo ends."""


@dataclass(frozen=True)
class PartitionLine:
    """One partition of the flights; `leader` -1: none."""

    partition: int
    leader: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class ClusterView:
    """What the cluster says of itself. `controller` -1: there is none just now."""

    controller: int
    brokers: tuple[int, ...]
    partitions: tuple[PartitionLine, ...]

    @property
    def all_in_sync(self) -> bool:
        return all(len(p.isr) == len(p.replicas) and p.leader >= 0 for p in self.partitions)


def look(bootstrap_servers: str) -> ClusterView:
    """Asks whoever answers. Raises SparklogError."""
    with sparklog.Admin(bootstrap_servers, request_timeout_ms=5_000) as admin:
        cluster = admin.describe_cluster()
        found = admin.describe_topic(FLIGHTS).partition_details
    lines = tuple(PartitionLine(p.partition, p.leader, tuple(p.isr), tuple(p.replicas)) for p in found)
    return ClusterView(cluster.controller_id, tuple(b.broker_id for b in cluster.brokers), lines)


class Watcher(threading.Thread):
    """Looks at the cluster several times a second; `view` is the newest it has seen."""

    def __init__(self, bootstrap_servers: str, stop: threading.Event) -> None:
        super().__init__(name="cluster-watcher", daemon=True)
        self._bootstrap_servers = bootstrap_servers
        self._stopping = stop
        self.view: ClusterView | None = None

    def run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            with contextlib.suppress(SparklogError):  # somebody has just died: the next look is soon
                self.view = look(self._bootstrap_servers)


class Outages(threading.Thread):
    """The story. `cluster` is what `sparklog.start_local(brokers=3)` gives; `error` is what went wrong."""

    def __init__(self, cluster: Any, feeder: Feeder, stop: threading.Event) -> None:
        super().__init__(name="outages", daemon=True)
        self._cluster = cluster
        self._feeder = feeder
        self._stopping = stop
        self.watcher = Watcher(cluster.bootstrap_servers, stop)
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.done = threading.Event()
        self.error: BaseException | None = None

    @property
    def alive(self) -> dict[int, bool]:
        """Which brokers run, by id."""
        return {b.broker_id: b.running for b in self._cluster.brokers}

    @property
    def has_zookeeper(self) -> bool:
        return bool(self._cluster.zookeeper.pid >= 0)

    def run(self) -> None:
        try:
            self.watcher.start()
            self._until(self._feeder.go.is_set, "Spark to begin")
            self._flow()
            self._leader_dies()
            controller = self._controller_dies()
            self._zookeeper_goes()
            self._comes_back(controller)
        except StoppedError:
            pass
        except Exception as e:  # noqa: BLE001 - handed to the main thread, which raises it
            self.error = e
        finally:
            self.done.set()

    def _leader_dies(self) -> None:
        view = self._until_in_sync()
        led = [p for p in view.partitions if p.leader != view.controller] or list(view.partitions)
        victim = led[0].leader
        partitions = ", ".join(f"{FLIGHTS}-{p.partition}" for p in view.partitions if p.leader == victim)
        self._broker(victim).kill()
        killed_at = time.monotonic()
        self.events.put(f"[red]broker {victim}[/], which leads {partitions}, is killed (SIGKILL)")
        self._until(lambda: self._led_without(victim), "other leaders")
        self.events.put(f"others lead its partitions after {time.monotonic() - killed_at:.1f} s")
        self._flow()
        self._comes_back(victim)

    def _led_without(self, victim: int) -> bool:
        view = self.watcher.view
        return view is not None and all(p.leader not in (-1, victim) for p in view.partitions)

    def _controller_dies(self) -> int:
        victim = self._until_in_sync().controller
        self._broker(victim).kill()
        killed_at = time.monotonic()
        self.events.put(f"[red]broker {victim}[/], the controller, is killed (SIGKILL)")

        def is_replaced() -> bool:
            view = self.watcher.view
            return view is not None and view.controller not in (-1, victim) and self._led_without(victim)

        self._until(is_replaced, "another controller")
        view = self.watcher.view
        now = "?" if view is None else view.controller
        self.events.put(f"broker {now} is the controller after {time.monotonic() - killed_at:.1f} s")
        self._flow()
        return victim

    def _zookeeper_goes(self) -> None:
        before = self._feeder.rows_sent
        self._cluster.zookeeper.kill()
        self.events.put("[red]ZooKeeper[/] is killed; two brokers go on with what has been decided")
        if self._stopping.wait(ZOOKEEPER_AWAY_S):
            raise StoppedError
        self._flow()
        rows = self._feeder.rows_sent - before
        self._cluster.zookeeper.start()
        self.events.put(f"[green]ZooKeeper[/] is back; {rows:,} rows were acknowledged without it")

    def _comes_back(self, broker: int) -> None:
        self._broker(broker).start()
        started_at = time.monotonic()
        self._until_in_sync()
        self.events.put(f"[green]broker {broker}[/] is back, and in sync after {time.monotonic() - started_at:.1f} s")
        self._flow()

    # --- waiting

    def _broker(self, broker_id: int) -> Any:
        return next(b for b in self._cluster.brokers if b.broker_id == broker_id)

    def _flow(self) -> None:
        """Until rows have been acknowledged since now, or all have."""
        before = self._feeder.rows_sent
        self._until(lambda: self._feeder.rows_sent > before or self._feeder.done.is_set(), "rows to be acknowledged")

    def _until_in_sync(self) -> ClusterView:
        found: list[ClusterView] = []

        def in_sync() -> bool:
            with contextlib.suppress(SparklogError):
                found[:] = [look(self._cluster.bootstrap_servers)]
            return bool(found) and found[0].all_in_sync and found[0].controller >= 0

        self._until(in_sync, "all replicas to be in sync")
        return found[0]

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises StoppedError, OutageError."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._stopping.wait(LOOK_S):
                raise StoppedError
            if time.monotonic() > deadline and self._feeder.go.is_set():
                raise OutageError(f"waited {PATIENCE_S:.0f} s for {what}, in vain: {self.watcher.view}")
