"""The parts of a broker that its metrics read."""

from __future__ import annotations

from typing import NamedTuple

from sparklog.environment.clock import MachineClock
from sparklog.environment.memory_budget import MemoryBudget
from sparklog_broker.background.background import Background
from sparklog_broker.children.children import Children
from sparklog_broker.cluster.cluster_member import ClusterMember
from sparklog_broker.config import BrokerConfig
from sparklog_broker.coordinators.groups import Groups
from sparklog_broker.coordinators.transactions import TransactionCoordinator
from sparklog_broker.counters.authentication import AuthenticationCounters
from sparklog_broker.counters.requests import RequestCounters
from sparklog_broker.network.server import Server
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.lakes import Lakes
from sparklog_broker.partitions.mirrors import Mirrors
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage
from sparklog_broker.security.throttling import Throttling


class MetricSources(NamedTuple):
    """The parts of a broker that its metrics read. The scrape's thread reads only numbers, and atomic copies of dicts
    and lists.
    """

    config: BrokerConfig
    clock: MachineClock
    address: str
    server: Server
    throttling: Throttling
    requests: RequestCounters
    memory: MemoryBudget
    storage: Storage
    io: IoThreads
    partitions: Partitions
    background: Background
    groups: Groups
    transactions: TransactionCoordinator
    lakes: Lakes
    mirrors: Mirrors
    cluster: ClusterMember
    authentication: AuthenticationCounters = AuthenticationCounters()
    children: Children = Children()
