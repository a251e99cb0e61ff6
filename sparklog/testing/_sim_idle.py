"""Idle time of a simulated cluster: the cluster rests while the clocks go on, so that an hour takes a moment.

A cluster is idle if programs only sleep, and brokers only repeat their heartbeats, looks and empty fetches: no request
is on its way, no group has a member, no transaction is open, and the last fault was long ago. `IdleTime.rest` then lets
a step of time pass. Brokers run for a small part of the step and sleep for the rest of it, as machines do that are
suspended. Longer idle times have longer steps. The work that the clock makes due is done after each step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from sparklog_broker.broker import Broker

from sparklog.errors import SparklogError
from sparklog.replication.group_membership import STATE_EMPTY
from sparklog.testing._sim_loop import Simulation
from sparklog.testing._sim_node import Node

SETTLED_S = 20.0
"""Time after a fault, or a start, until the cluster can be idle: it includes the timeouts of brokers' sessions."""
ANSWERED_S = 2.0
"""Time after the last request of a program until the cluster can be idle."""
STEP_S_MIN = 10.0
"""Shortest step in s after which the due work is done, and longest step at the beginning of an idle time."""
GROWTH = 0.5
"""Length of a step as a share of the idle time before it."""
RUN_SHARE, RUN_S_MIN, RUN_S_MAX = 0.02, 1.0, 10.0
"""Part of a step in which brokers run, as a share and in s."""


class IdleTime:
    """Finds out if a cluster is idle, and lets its idle time pass."""

    def __init__(self, simulation: Simulation, nodes: Sequence[Node]) -> None:
        """Begin with a cluster that is not idle yet."""
        self._simulation = simulation
        self._nodes = nodes
        self._due: list[asyncio.Task[None]] = []
        """The tasks that were started last."""
        self._since_s = simulation.now_s
        """Start of the idle time; it may be in the future."""
        self._without_work_s = 0.0
        """Time in s that has passed since the due work was done."""
        self._requests = -1

    def disturb(self) -> None:
        """Note a fault, or the start of a process."""
        self._since_s = self._simulation.now_s + SETTLED_S

    def is_idle(self, requests: int) -> bool:
        """True if the cluster is idle. `requests`: the number of requests that programs have sent; none is open."""
        now_s = self._simulation.now_s
        if requests != self._requests:
            self._requests = requests
            self._since_s = max(self._since_s, now_s + ANSWERED_S)
        if now_s >= self._since_s and any(map(_has_work, self._nodes)):
            self._since_s = now_s + ANSWERED_S
        return now_s >= self._since_s

    def rest(self, end_s: float) -> None:
        """Let a step of time pass, until `end_s` at the latest. No program has an event within this time."""
        simulation = self._simulation
        now_s = simulation.now_s
        step_s = min(end_s - now_s, max(STEP_S_MIN, GROWTH * (now_s - self._since_s)))
        run_s = step_s * RUN_SHARE
        if step_s >= STEP_S_MIN:
            run_s = min(max(run_s, RUN_S_MIN), RUN_S_MAX)
        simulation.note("idle", step_s)
        simulation.skip(step_s - run_s)
        self._without_work_s += step_s
        if self._without_work_s >= STEP_S_MIN:
            self._without_work_s = 0.0
            self._due = [task for node in self._nodes for task in _start_due_work(node)]
        simulation.run(lambda: False, limit_s=now_s + step_s)


def _has_work(node: Node) -> bool:
    """True if the broker starts, or coordinates members of groups or open transactions."""
    broker = node.broker
    if not node.is_alive:
        return False
    return broker is None or not node.has_joined or _has_members(broker) or _has_transactions(broker)


def _has_members(broker: Broker) -> bool:
    groups = [c for partition in broker.groups.partitions if (c := partition.coordinator) is not None]
    return any(group.state != STATE_EMPTY for c in groups for group in c.list_groups())


def _has_transactions(broker: Broker) -> bool:
    return any(c.summary(i).started_ms >= 0 for c in broker.transactions.loaded_shards() for i in c.ids())


def _start_due_work(node: Node) -> Iterator[asyncio.Task[None]]:
    """Start the work that follows the wall clock, and that a broker repeats rarely."""
    if node.loop is not None and node.broker is not None:
        yield node.loop.create_task(_do_due_work(node.broker))


async def _do_due_work(broker: Broker) -> None:
    with contextlib.suppress(SparklogError):  # the broker repeats the work
        await broker.background.retention.run()
