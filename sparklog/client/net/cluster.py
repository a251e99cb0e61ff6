"""The shared state of one process's clients: idle connections, and knowledge of topics.

`cluster(bootstrap_servers, security)` returns the same `Cluster` for the same addresses and the same security: clients
of the same user share connections. A forked child starts with empty state, because two processes must never use the
same sockets.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from sparklog.client.net.addresses import Endpoint, parse_bootstrap, resolve_bootstrap
from sparklog.client.net.avoided_brokers import AvoidedBrokers
from sparklog.client.net.broker_liveness import Membership
from sparklog.client.net.client_defaults import resolve_client
from sparklog.client.net.connection import Connection, connect_for_data
from sparklog.client.net.connection_pool import ConnectionPool
from sparklog.client.net.coordinator_key import CoordinatorKey
from sparklog.client.net.coordinators import Coordinators
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.metadata_pages import whole_metadata
from sparklog.client.net.newest_leaders import Leader, NewestLeaders
from sparklog.client.net.own_changes import OwnChanges
from sparklog.client.net.topic_info import TopicInfo, topic_error, topic_info
from sparklog.errors import (
    BrokerNotAvailableError,
    BrokerShuttingDownError,
    RequestTimedOutError,
    SparklogError,
    UnknownTopicOrPartitionError,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.base import Message
from sparklog.protocol.topic_messages import BrokerEndpoint, MetadataRequest, MetadataResponse
from sparklog.security.client_ids import check_client_id
from sparklog.security.client_security import PLAINTEXT, ClientSecurity, Security
from sparklog.types import TopicPartition

METADATA_MAX_AGE_S = 300.0
HINTS_MAX = 100
"""Largest number of unknown topics for which the nearest name is kept."""
METADATA_RETRY_S = 1.0
TOPICS_CACHED_MAX = 10_000
CLUSTERS_MAX = 64
SUSPECT_FOR_S = 30.0
"""Time in s for which a broker without an answer is asked last."""
HUNG_MS = 3_000
"""Longest time in ms that a broker has for its answer before the next broker is asked, for information that any broker
has."""
ANY_BROKER_KNOWS = (
    Api.METADATA,
    Api.FIND_COORDINATOR,
    Api.DESCRIBE_CLUSTER,
    Api.LIST_PARTITION_REASSIGNMENTS,
    Api.DESCRIBE_ACLS,
    Api.DESCRIBE_CLIENT_QUOTAS,
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS,
)

M = TypeVar("M", bound=Message)


class Cluster:
    """Connections and metadata of one cluster; thread-safe. Use `cluster(bootstrap_servers, security)` to get one."""

    def __init__(self, bootstrap_servers: str, security: ClientSecurity = PLAINTEXT, client_id: str = "") -> None:
        self.bootstrap_servers = bootstrap_servers
        self.security = security
        self.client_id = client_id
        self._bootstrap = parse_bootstrap(bootstrap_servers)
        self._lock = threading.Lock()
        self._pool = ConnectionPool()
        self._topics: OrderedDict[str, tuple[TopicInfo, float]] = OrderedDict()
        self._hints: dict[str, str] = {}
        """The hint at the nearest name for each unknown topic."""
        self._brokers: dict[int, Endpoint] = {}
        self._leaders = NewestLeaders()
        self._coordinators = Coordinators()
        self._membership = Membership(self)
        self._failed_at: dict[Endpoint, float] = {}
        self.own_changes = OwnChanges()
        self.local_reads = AvoidedBrokers()
        """Reads of a broker's files."""
        self.remote_reads = AvoidedBrokers()
        """Reads of a broker's object store without the broker."""

    # -- metadata

    def metadata(
        self, topics: Sequence[str] | None = None, *, to_write: bool = False, timeout_ms: int = 30_000
    ) -> MetadataResponse:
        """Ask the cluster for topics and keep the answer. `topics` None: all topics.

        `to_write`: the broker is allowed to create topics that do not exist. Raises BrokerNotAvailableError and other
        errors.
        """
        response = self._ask_metadata(topics, to_write=to_write, timeout_ms=timeout_ms)
        self._remember(response)
        return response

    def topic_infos(self, topics: Sequence[str] | None = None, *, timeout_ms: int = 30_000) -> dict[str, TopicInfo]:
        """Return the topics that exist, by name, from a new answer of the cluster. `topics` None: all. Raises as
        `metadata`."""
        return self._remember(self._ask_metadata(topics, timeout_ms=timeout_ms))

    def _remember(self, response: MetadataResponse) -> dict[str, TopicInfo]:
        """Keep an answer, and return its topics by name. Raises InvalidRequestError."""
        now = time.monotonic()
        for b in response.brokers:
            self._membership.remember(b.broker_id, Endpoint(b.host, b.port))
        infos = [topic_info(t) for t in response.topics if t.error_code == 0]
        with self._lock:
            self._brokers = {b.broker_id: Endpoint(b.host, b.port) for b in response.brokers}
            for info in infos:
                before = self._topics.get(info.name)
                self._leaders.keep_newer(None if before is None else before[0], info)
                self._topics[info.name] = (info, now)
                self._topics.move_to_end(info.name)
            while len(self._topics) > TOPICS_CACHED_MAX:
                self._topics.popitem(last=False)
        return {info.name: info for info in infos}

    def partition_counts(self, *, timeout_ms: int = 30_000) -> dict[str, int]:
        """Return all topics with their numbers of partitions, without the large parts of the metadata. Raises as
        `metadata`."""
        response = self._ask_metadata(None, details=False, timeout_ms=timeout_ms)
        return {t.name: t.partition_count for t in response.topics if t.error_code == 0}

    def _ask_metadata(
        self, topics: Sequence[str] | None, *, details: bool = True, to_write: bool = False, timeout_ms: int
    ) -> MetadataResponse:
        deadline = Deadline(timeout_ms)

        def ask(page: MetadataRequest) -> MetadataResponse:
            return self.request(Api.METADATA, page, MetadataResponse, timeout_ms=deadline.left_ms())

        return whole_metadata(ask, topics, details=details, to_write=to_write)

    def is_current(self, info: TopicInfo) -> bool:
        """True if the process knows no newer metadata of the topic than `info`, also while no broker answers. Takes no
        lock."""
        cached = self._topics.get(info.name)
        return cached is None or cached[0] is info

    def _fresh(self, name: str) -> TopicInfo | None:
        """Return the topic's metadata if they are not too old, else None; with the lock held."""
        cached = self._topics.get(name)
        return cached[0] if cached is not None and time.monotonic() - cached[1] < METADATA_MAX_AGE_S else None

    def cached_topic(self, name: str) -> TopicInfo | None:
        """Return the topic from the cache; None if its metadata are missing there, or older than 5 minutes."""
        with self._lock:
            return self._fresh(name)

    def topic(self, name: str, *, refresh: bool = False, to_write: bool = False, timeout_ms: int = 30_000) -> TopicInfo:
        """Return the topic, from the cache if its metadata are not older than 5 minutes, or older ones if no broker
        answers.

        `refresh` ignores the cache. `to_write`: the broker is allowed to create the topic if it does not exist. Raises
        UnknownTopicOrPartitionError, BrokerNotAvailableError and other errors.
        """
        with self._lock:
            fresh, cached = (None, None) if refresh else (self._fresh(name), self._topics.get(name))
        if fresh is not None:
            return fresh
        try:
            response = self.metadata([name], to_write=to_write, timeout_ms=timeout_ms)
        except SparklogError as e:
            if cached is None or not e.retriable:
                raise
            with self._lock:  # old knowledge is better than none while the broker is away
                self._topics[name] = (cached[0], time.monotonic() - METADATA_MAX_AGE_S + METADATA_RETRY_S)
            return cached[0]
        described = next((state for state in response.topics if state.name == name and state.error_code == 0), None)
        if described is not None:
            with self._lock:  # another thread may have forgotten the topic meanwhile
                return self._topics[name][0] if name in self._topics else topic_info(described)
        self.invalidate(name)
        code = next((t.error_code for t in response.topics if t.name == name), UnknownTopicOrPartitionError.code)
        if code == UnknownTopicOrPartitionError.code:
            raise UnknownTopicOrPartitionError(
                f"no topic {name!r} at {self.bootstrap_servers}{self.nearest_topic(name, timeout_ms)}: create it with "
                f"`sparklog topic create {shlex.quote(name)}` or Admin.create_topic"
            )
        raise topic_error(code, name)

    def nearest_topic(self, name: str, timeout_ms: int) -> str:
        """Return a hint at the topic with the nearest name; empty if there is none. The topics are listed only once for
        the same `name`."""
        if name not in self._hints:
            if len(self._hints) >= HINTS_MAX:
                self._hints.clear()
            self._hints[name] = ""
            from difflib import get_close_matches  # for mistakes only

            with contextlib.suppress(SparklogError):
                near = get_close_matches(name, self.partition_counts(timeout_ms=timeout_ms), n=1)
                self._hints[name] = f" (did you mean {near[0]!r}?)" if near else ""
        return self._hints[name]

    def remember(self, info: TopicInfo) -> None:
        """Keep a topic's metadata from another answer."""
        with self._lock:
            self._topics[info.name] = (info, time.monotonic())

    def note_schema(self, name: str, newest_schema_id: int, topic_id: str | None = None) -> None:
        """Note that the topic's newest schema has this id, as a broker says. Metadata with an older schema are
        forgotten, and those of a deleted topic: one with another id than `topic_id` (None: unknown)."""
        with self._lock:
            cached = self._topics.get(name)
            if cached is not None and (
                cached[0].schema_id < newest_schema_id or topic_id not in (None, cached[0].topic_id)
            ):
                self._forget_topic(name)

    def invalidate(self, name: str) -> None:
        """Forget a topic: the next use asks the broker."""
        with self._lock:
            self._forget_topic(name)

    def _forget_topic(self, name: str) -> None:
        """Forget the topic; with the lock held."""
        forgotten = self._topics.pop(name, None)
        if forgotten is not None and forgotten[0].partition_states:
            self._leaders.keep(forgotten[0])

    def expire(self, name: str) -> None:
        """Mark the topic's metadata as old: the next use asks the broker, and keeps the old metadata if none
        answers."""
        with self._lock:
            cached = self._topics.get(name)
            if cached is not None:
                self._topics[name] = (cached[0], time.monotonic() - METADATA_MAX_AGE_S)

    def leader(self, tp: TopicPartition, *, timeout_ms: int = 30_000) -> Endpoint:
        """Return the broker that leads the partition. Raises UnknownTopicOrPartitionError, BrokerNotAvailableError."""
        cached = self.cached_leader(tp)
        if cached is not None:
            return cached
        looked_up = self.leaders([tp], timeout_ms=timeout_ms)[tp]
        if isinstance(looked_up, SparklogError):
            raise looked_up
        return looked_up.endpoint

    def leaders(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, Leader | SparklogError]:
        """Return the leader of each partition, or the error of the look-up: UnknownTopicOrPartitionError,
        BrokerNotAvailableError and others. The cluster is asked for a topic twice at most."""
        deadline = Deadline(timeout_ms)
        by_topic: dict[str, list[TopicPartition]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp)
        leaders: dict[TopicPartition, Leader | SparklogError] = {}
        for topic, tps in by_topic.items():
            try:
                leaders |= self._leaders_in(topic, tps, deadline)
            except SparklogError as e:
                leaders |= dict.fromkeys(tps, e)
        return leaders

    def _leaders_in(
        self, topic: str, tps: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, Leader | SparklogError]:
        led: dict[TopicPartition, Leader | SparklogError] = {}
        missing = tps
        for refresh in (False, True):  # there may be more partitions since, and other leaders
            info = self.topic(topic, refresh=refresh, timeout_ms=deadline.left_ms())
            with self._lock:
                here = {tp: self._leader(info, tp.partition) for tp in tps if 0 <= tp.partition < info.partitions}
            led = {tp: leader for tp, leader in here.items() if leader is not None}
            missing = [tp for tp in tps if tp not in led]
            if not missing:
                return led
        for tp in missing:
            if tp in here:
                self.invalidate(topic)
                led[tp] = BrokerNotAvailableError(f"{tp} has no leader now")
            else:
                led[tp] = UnknownTopicOrPartitionError(
                    f"topic {topic!r} has partitions 0 to {info.partitions - 1}, and no partition {tp.partition}"
                )
        return led

    def look_again(self, topics: Iterable[str], endpoint: Endpoint | None) -> None:
        """Note that the broker at `endpoint` (None: unknown) was the wrong leader for partitions of these topics. The
        next use asks the cluster for the leaders, and this broker last."""
        for topic in topics:
            self.expire(topic)
        if endpoint is not None:
            self.doubt(endpoint)

    def cached_leader(self, tp: TopicPartition) -> Endpoint | None:
        """Return the leader if it is known without a request, or None."""
        with self._lock:
            info = self._fresh(tp.topic)
            if info is None or not 0 <= tp.partition < info.partitions:
                return None
            leader = self._leader(info, tp.partition)
            return None if leader is None else leader.endpoint

    def last_leader(self, tp: TopicPartition) -> Leader | None:
        """Return the last known leader of the partition, however old the knowledge is. Sends no request."""
        with self._lock:
            cached = self._topics.get(tp.topic)
            if cached is None or not 0 <= tp.partition < cached[0].partitions:
                return None
            return self._leader(cached[0], tp.partition)

    def last_topic_id(self, topic: str) -> str | None:
        """Return the last known id of the topic, however old the knowledge is. Sends no request."""
        cached = self._topics.get(topic)
        return None if cached is None else cached[0].topic_id

    def _leader(self, info: TopicInfo, partition: int) -> Leader | None:
        """Return the known leader of a partition; with the lock held."""
        broker_id, epoch = self._leaders.of(info, partition)
        endpoint = self._brokers.get(broker_id)
        return None if endpoint is None else Leader(endpoint, broker_id, epoch)

    def note_leader(self, tp: TopicPartition, broker_id: int, epoch: int, brokers: Sequence[BrokerEndpoint]) -> bool:
        """Note a partition's leader and its address from an answer (KIP-951). Returns True if the leader is new."""
        where = next((Endpoint(b.host, b.port) for b in brokers if b.broker_id == broker_id), None)
        with self._lock:
            cached = self._topics.get(tp.topic)
            if where is None or cached is None or not 0 <= tp.partition < cached[0].partitions:
                return False
            is_news = self._leaders.remember(cached[0], tp.partition, broker_id, epoch)
            if is_news:
                self._brokers[broker_id] = where
            return is_news

    def note_broker(self, broker_id: int, brokers: Sequence[BrokerEndpoint]) -> None:
        """Note a broker's address from an answer."""
        where = next((Endpoint(b.host, b.port) for b in brokers if b.broker_id == broker_id), None)
        if where is not None:
            with self._lock:
                self._brokers[broker_id] = where

    def broker(self, broker_id: int) -> Endpoint | None:
        """Return the last known address of a broker; None if it is not known."""
        with self._lock:
            return self._brokers.get(broker_id)

    # -- coordinators

    def coordinator_request(
        self, key: CoordinatorKey, api: Api, message: Message, response: type[M], *, timeout_ms: int = 30_000
    ) -> M:
        """Send a request to a coordinator; see `Coordinators.request`."""
        return self._coordinators.request(self, key, api, message, response, timeout_ms=timeout_ms)

    def doubt(self, endpoint: Endpoint) -> None:
        """Ask this broker last for SUSPECT_FOR_S, because it has failed: it can be cut off and not know that it has
        been replaced."""
        self._failed_at[endpoint] = time.monotonic()

    def brokers(self, *, timeout_ms: int = 30_000) -> list[Endpoint | None]:
        """Return the brokers to ask for information of which each broker has only a part. A single broker is returned
        as None: it is asked at any of its addresses.

        Raises BrokerNotAvailableError.
        """
        brokers = self.metadata([], timeout_ms=timeout_ms).brokers
        return [Endpoint(b.host, b.port) for b in brokers] if len(brokers) > 1 else [None]

    # -- connections

    def connect(
        self, endpoint: Endpoint | None = None, *, timeout_ms: int = 30_000, for_data: bool = False
    ) -> Connection:
        """Return a new connection that belongs to the caller: to `endpoint`, or if that is None to the first of
        `candidates` that answers. `for_data`: see `connect_for_data`. Raises BrokerNotAvailableError,
        RequestTimedOutError, and other errors of `Connection` at once."""
        candidates = [endpoint] if endpoint else self.candidates()
        deadline = Deadline(timeout_ms)
        failures: list[SparklogError] = []
        for number, candidate in enumerate(candidates):
            share_ms = max(1, deadline.left_ms() // (len(candidates) - number))  # so that all are tried
            try:
                open_one = connect_for_data if for_data else Connection
                connection = open_one(
                    candidate,
                    timeout_ms=share_ms,
                    security=self.security,
                    client_id=self.client_id,
                    liveness=self._membership.liveness_of(candidate),
                )
            except (BrokerNotAvailableError, RequestTimedOutError) as e:
                self.doubt(candidate)
                failures.append(e)
            else:
                connection.timeout_ms = timeout_ms
                return connection
        if len(failures) == 1:
            raise failures[0]
        raise BrokerNotAvailableError("; ".join(str(f) for f in failures))

    def candidates(self) -> list[Endpoint]:
        """Return the brokers to ask for information that any broker has: the bootstrap servers and the cluster's
        brokers. Brokers that have not answered lately come last."""
        with self._lock:
            others = list(self._brokers.values()) if len(self._brokers) > 1 else []
        ordered = list(dict.fromkeys([*self._bootstrap, *others]))
        since = time.monotonic() - SUSPECT_FOR_S
        self._failed_at = {e: at for e, at in self._failed_at.items() if at > since}
        return sorted(ordered, key=self._failed_at.__contains__)

    def reach(self, *, timeout_ms: int = 30_000) -> str:
        """Connect to any broker; return the client's principal ("": no SASL). Raises
        BrokerNotAvailableError or RequestTimedOutError if none can be reached."""
        with self.connection(timeout_ms=timeout_ms) as connection:
            return connection.principal

    @contextlib.contextmanager
    def connection(
        self, endpoint: Endpoint | None = None, *, purpose: str = "", timeout_ms: int = 30_000
    ) -> Iterator[Connection]:
        """Yield a connection from the pool, or a new one. It goes back if nothing is in flight on it at the end."""
        idle = self._pool.take([endpoint] if endpoint else self._bootstrap, purpose)
        connection = idle or self.connect(endpoint, timeout_ms=timeout_ms)
        connection.timeout_ms = timeout_ms
        try:
            yield connection
        finally:
            self._pool.give_back(connection, purpose)

    def request(
        self,
        api: Api,
        message: Message,
        response: type[M],
        *,
        endpoint: Endpoint | None = None,
        timeout_ms: int = 30_000,
    ) -> M:
        """Send one request on a pooled connection.

        A dead idle connection is replaced once, except for requests that must not take effect twice. If a broker does
        not answer, other brokers are asked for information that any broker has. The whole call takes `timeout_ms` at
        most.
        """
        if endpoint is None:
            self.own_changes.name(message)
        if endpoint is None and api in ANY_BROKER_KNOWS and len(candidates := self.candidates()) > 1:
            return self.ask_any(candidates, api, message, response, timeout_ms=timeout_ms)[0]
        repeatable = api not in (Api.PRODUCE, Api.CREATE_TOPIC, Api.DELETE_TOPIC)
        deadline = Deadline(timeout_ms)
        for attempt in (1, 2):
            fresh = attempt == 2 or not self._pool.has([endpoint] if endpoint else self._bootstrap, "")
            try:
                with self.connection(endpoint, timeout_ms=deadline.left_ms()) as connection:
                    return connection.request(api, message, response, timeout_ms=deadline.left_ms())[0]
            except BrokerNotAvailableError:
                if fresh or not repeatable:
                    raise
        raise AssertionError("unreachable")

    def ask_any(
        self,
        candidates: Sequence[Endpoint],
        api: Api,
        message: Message,
        response: type[M],
        *,
        timeout_ms: int,
        refused: Callable[[Endpoint, SparklogError], None] = lambda endpoint, error: None,
    ) -> tuple[M, Endpoint]:
        """Return the first answer, and the broker that gave it. A broker that does not answer is passed over; the last
        candidate has all the time that is left. Any other error of a broker ends the search: `refused` gets it, and it
        is raised."""
        deadline = Deadline(timeout_ms)
        failures: list[SparklogError] = []
        for number, candidate in enumerate(candidates):
            others = len(candidates) - number - 1
            share_ms = min(max(1, deadline.left_ms() // (others + 1)), HUNG_MS) if others else deadline.left_ms()
            try:
                return self.request(api, message, response, endpoint=candidate, timeout_ms=share_ms), candidate
            except (BrokerNotAvailableError, RequestTimedOutError, BrokerShuttingDownError) as e:
                self.doubt(candidate)
                failures.append(e)
            except SparklogError as e:
                refused(candidate, e)
                raise
        if len(failures) == 1:
            raise failures[0]
        is_late = all(isinstance(f, RequestTimedOutError) for f in failures)
        raise (RequestTimedOutError if is_late else BrokerNotAvailableError)("; ".join(map(str, failures)))

    def close(self) -> None:
        """Close the idle connections and forget the metadata."""
        with self._lock:
            self._topics.clear()
            self._brokers.clear()
            self._leaders = NewestLeaders()
            self._coordinators.clear()
        self._pool.close()


_clusters: OrderedDict[tuple[str, ClientSecurity, str], Cluster] = OrderedDict()
_clusters_lock = threading.Lock()


def cluster(
    bootstrap_servers: str | Sequence[str] | None = None, security: Security = None, client_id: str = ""
) -> Cluster:
    """Return the process's `Cluster` for the addresses, the security and the client id.

    Brokers account a connection to its client id, so clients with different ids share none.
    `client_defaults.resolve_client` has the defaults. The call does not connect. Raises InvalidConfigError.
    """
    key = (*resolve_client(bootstrap_servers, security), check_client_id(client_id))
    dropped: list[Cluster] = []
    with _clusters_lock:
        shared = _clusters.get(key)
        if shared is None:
            shared = _clusters[key] = Cluster(*key)
        _clusters.move_to_end(key)
        while len(_clusters) > CLUSTERS_MAX:
            dropped.append(_clusters.popitem(last=False)[1])
    for c in dropped:
        c.close()
    return shared


def forget(bootstrap_servers: str) -> None:
    """Drop the shared state for these addresses and close its connections, because the cluster is gone."""
    address = resolve_bootstrap(bootstrap_servers)
    with _clusters_lock:
        forgotten = [_clusters.pop(key) for key in list(_clusters) if key[0] == address]
    for c in forgotten:
        c.close()


def _close_all() -> None:
    with _clusters_lock:
        clusters = list(_clusters.values())
        _clusters.clear()
    for c in clusters:
        c.close()


def _drop_after_fork() -> None:
    # the sockets are dropped by the connection module; locks may be held by threads that the child does not have
    global _clusters_lock
    _clusters_lock = threading.Lock()
    for c in _clusters.values():
        c._lock = threading.Lock()
        c._pool = ConnectionPool()
        c._topics = OrderedDict()
        c._brokers = {}
        c._leaders = NewestLeaders()
        c._coordinators = Coordinators()
        c._membership = Membership(c)
        c.own_changes = OwnChanges()
    _clusters.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)
