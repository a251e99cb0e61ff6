"""The state that all connections of one gateway share: the broker's address, known topics, groups and limits."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

from sparklog.client.net.addresses import Endpoint
from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import BrokerNotAvailableError, PolicyViolationError, SparklogError
from sparklog.gateway.backend.connection import BrokerConnection, BrokerPlace
from sparklog.gateway.backend.fetch_sessions import FetchSessions
from sparklog.gateway.backend.recent_checks import RecentChecks
from sparklog.gateway.backend.topics import Topics
from sparklog.gateway.groups.runtime import Groups
from sparklog.gateway.limits import Limits
from sparklog.gateway.memory import ENTRY_BYTES, GatewayMemory, SlowClients
from sparklog.gateway.refusals import Refusals
from sparklog.gateway.schemas.loaded_schemas import LoadedSchemas
from sparklog.gateway.schemas.outside_registry import OutsideRegistry
from sparklog.gateway.schemas.own_registry import OwnRegistry
from sparklog.gateway.schemas.registry_log import RegistryLog
from sparklog.kafka.wire.codec import Body
from sparklog.protocol.apis import Api
from sparklog.protocol.gateway import CLAIM_SESSION_S, OnBehalf
from sparklog.protocol.topic_messages import BrokerEndpoint, MetadataRequest, MetadataResponse
from sparklog.security.listeners import Listener

log = logging.getLogger(__name__)

NO_NODE = -1
CONVERTING_THREADS = 2

T = TypeVar("T")


class Address(NamedTuple):
    """The address of a gateway in answers to Kafka's clients. `node_id` is the id of the broker beside the gateway."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Conversions:
    """Threads for the conversion of batches. Event-loop thread only.

    Batches of a few kilobytes can become hundreds of megabytes. So CONVERTING_THREADS requests at once are converted on
    threads, and their batches hold `inflated` during the decompression and conversion. Callers reserve memory for the
    results before `turn`, so that a wait for memory does not take the turns of others.
    """

    def __init__(self, memory: GatewayMemory) -> None:
        self.inflated = memory.inflated
        self.converted = memory.converted
        self._turns = asyncio.Semaphore(CONVERTING_THREADS)
        self._threads = ThreadPoolExecutor(CONVERTING_THREADS, thread_name_prefix="kafka-convert")

    def turn(self) -> asyncio.Semaphore:
        """Return the context of the turn of one request. The caller converts inside, and waits for nothing else
        there."""
        return self._turns

    async def run(self, convert: Callable[[], T]) -> T:
        """Call `convert` on a thread. A cancelled caller waits for the end of a running conversion, so that its memory
        stays counted. Raises the errors of `convert`."""
        job = self._threads.submit(convert)
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not job.cancel():
                await asyncio.wait([done])
            raise

    def close(self) -> None:
        """Stop the threads after their running conversions."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class LongRequests:
    """A thread for requests with many entries, one at a time. Event-loop thread only."""

    def __init__(self, memory: GatewayMemory, time_slices: LoopTimeSlices) -> None:
        self._memory = memory.lists
        self._time_slices = time_slices
        self._decoding = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-lists")

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work` on the thread. Raises its errors."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @asynccontextmanager
    async def decoded(self, decode: Callable[[], tuple[Body, int]]) -> AsyncIterator[Body]:
        """Decode a request on the thread. Inside the context the request holds memory for its entries and their
        results. No further request is decoded before there is memory for this one. Raises the errors of `decode`."""
        owner, size = object(), 0
        try:
            async with self._decoding:
                request, entries = await self.run(decode)
                del decode  # it refers to the received bytes
                await self._memory.acquire(owner, entries * ENTRY_BYTES)
                size = entries * ENTRY_BYTES
            await self._time_slices.begin()
            yield request
        finally:
            self._memory.release(owner, size)

    async def refused(self, refuse: Callable[[], T], entries: int) -> T:
        """Call `refuse` on the thread, to make the answer to a request that is refused, with memory for `entries`
        entries. One request is refused at a time, and none is decoded meanwhile. Raises the errors of `refuse`."""
        async with self._memory.held(object(), entries * ENTRY_BYTES), self._decoding:
            return await self.run(refuse)

    def close(self) -> None:
        """Stop the thread after its present work."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Gateway:
    """The shared state of one gateway. Event-loop thread only."""

    def __init__(
        self,
        bootstrap: Sequence[Endpoint] = (),
        *,
        local_sockets: Mapping[str, str] | None = None,
        advertised: Mapping[str, tuple[str, int]] | None = None,
        limits: Limits | None = None,
        context: ssl.SSLContext | None = None,
        name: str = "",
        creates_typed_topics: bool = False,
        schema_registry_url: str = "",
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bootstrap`: addresses of the broker. The gateway uses the first address that answers. `local_sockets`: unix
        sockets of the broker that has started this gateway, by the listeners' names. With them `bootstrap` is not used.
        `advertised`: host and port in answers to clients, by the listener's name. For a listener without an entry, they
        are the address to which the client has connected. `limits`: the limits for clients; None for the defaults of
        `Limits`. `context`: TLS towards the broker; None if the broker's listener does not encrypt. `name`: name of a
        gateway that was started by hand, for the broker and its error texts; "" for the broker's own gateway.
        `creates_typed_topics`: the broker's setting `auto.create.typed.topics`. `schema_registry_url`: address of an
        outside registry; "": the cluster's own. `clock_s`: a monotonic clock in s."""
        self.creates_typed_topics = creates_typed_topics
        self.limits = limits or Limits()
        self.memory = GatewayMemory(self.limits)
        self.slow_clients = SlowClients(self.memory, self.limits.stall_s)
        self.time_slices = LoopTimeSlices(asyncio.get_running_loop(), clock=clock_s)
        self.topics = Topics(clock_s)
        self.registry = RegistryLog()
        self._outside = OutsideRegistry(schema_registry_url) if schema_registry_url else None
        self.schemas = LoadedSchemas(self._outside or OwnRegistry(self.registry), clock_s)
        self.checks = RecentChecks(clock_s)
        self.groups = Groups(clock_s, self.memory.groups, self.limits.group_members)
        self.fetch_sessions = FetchSessions(self.memory.fetch_sessions, self.limits.fetch_sessions)
        self.conversions = Conversions(self.memory)
        self.long_requests = LongRequests(self.memory, self.time_slices)
        self.refusals = Refusals(clock_s)
        self.clock_s = clock_s
        self.broker_id = NO_NODE
        self.cluster_id = ""
        self._bootstrap = tuple(bootstrap)
        self._local = {
            name: BrokerPlace("localhost", 0, local, takes_preamble=True)
            for name, local in (local_sockets or {}).items()
        }
        self._advertised = dict(advertised or {})
        self._context = context
        self._name = name
        self._first: BrokerConnection | None = None
        """The connection of `start`. It shows the broker that the gateway lives, before the first client comes."""
        self._has_claim = True
        """False while another gateway serves the broker's clients, by the broker's last answer to `keep_claim`."""
        self._place: BrokerPlace | None = None

    async def start(self, *, stays_connected: bool = False) -> None:
        """Connect to the broker, to learn its id. `stays_connected`: keep the connection until the end. Raises
        BrokerNotAvailableError, PolicyViolationError (another gateway serves the broker's Kafka clients), and the
        broker's other errors."""
        connection = await self.connect("", next(iter(self._local), ""), None)
        if stays_connected:
            self._first = connection
        else:
            connection.close()

    @property
    def is_started_by_hand(self) -> bool:
        """True if the broker has not started the gateway, so that the gateway has to claim the broker."""
        return bool(self._name)

    async def keep_claim(self, connections: Iterable[BrokerConnection]) -> None:
        """Show the broker that the gateway lives, by a request on the gateway's own connection, or else on one of
        `connections`, whose clients have authenticated. If another gateway serves the broker's clients now, this
        gateway forgets its groups."""
        if self._first is not None and self._first.closed:
            with suppress(SparklogError):  # the next call tries again
                await self.start(stays_connected=True)
        connection = self._first or next(iter(connections), None)
        if connection is None:
            return
        nothing = MetadataRequest([], paged=True, with_schemas=False, with_partitions=False)
        try:
            async with asyncio.timeout(CLAIM_SESSION_S):
                await connection.ask(Api.METADATA, nothing, MetadataResponse)
        except PolicyViolationError as e:
            if self._has_claim:
                log.warning("this gateway serves no clients any more: %s", e)
                self.groups.close()
            self._has_claim = False
        except (SparklogError, TimeoutError) as e:
            log.debug("the claim on the broker was not renewed: %s", e)
        else:
            self._has_claim = True

    async def connect(self, client_id: str, listener: str, client: OnBehalf | None) -> BrokerConnection:
        """Open a connection to the gateway's broker, for a client of a listener. `client`: the client's addresses and
        certificate; only the Unix sockets of `local_sockets` pass them on. Raises BrokerNotAvailableError and the
        broker's errors."""
        if listener in self._local:
            connection = await BrokerConnection.connect(self._local[listener], self.memory.answers, client_id, client)
            self.broker_id, self.cluster_id = connection.broker.broker_id, connection.broker.cluster_id
            return connection
        if self._place is not None:
            try:
                return await BrokerConnection.connect(self._place, self.memory.answers, client_id, gateway=self._name)
            except BrokerNotAvailableError:
                self._place = None  # a restarted broker has another Unix socket
        failure: SparklogError = BrokerNotAvailableError("no bootstrap server is given: name one as HOST:PORT")
        for endpoint in self._bootstrap:
            place = BrokerPlace(endpoint.host, endpoint.port, context=self._context)
            try:
                connection = await BrokerConnection.connect(place, self.memory.answers, client_id, gateway=self._name)
            except BrokerNotAvailableError as e:
                failure = e
                continue
            self._note_broker(connection, place)
            return connection
        raise failure

    def _note_broker(self, connection: BrokerConnection, place: BrokerPlace) -> None:
        broker = connection.broker
        if self.broker_id not in (NO_NODE, broker.broker_id):
            log.warning("the broker at %s has the id %d, it was %d", place, broker.broker_id, self.broker_id)
        self.broker_id, self.cluster_id = broker.broker_id, broker.cluster_id
        self._place = place._replace(local_socket=broker.local_socket)

    def own_address(self, listener: Listener, local: tuple[str, int]) -> Address:
        """Return the address of this gateway for the clients of a listener. `local`: the address to which the client
        has connected."""
        host, port = self._advertised.get(listener.name, local)
        return Address(self.broker_id, host, port)

    def addresses(
        self, brokers: Sequence[BrokerEndpoint], listener: Listener, local: tuple[str, int]
    ) -> dict[int, Address]:
        """Return the addresses of the gateways of all brokers, by the brokers' ids. With `local_sockets`, `brokers`
        already has these addresses. Otherwise the gateway of another broker is expected on that broker's host and on
        this gateway's port."""
        if self._local:  # the broker knows the gateways of the others
            return {b.broker_id: Address(b.broker_id, b.host, b.port, b.rack or None) for b in brokers}
        own = self.own_address(listener, local)
        addresses = {b.broker_id: Address(b.broker_id, b.host, own.port, b.rack or None) for b in brokers}
        rack = addresses[self.broker_id].rack if self.broker_id in addresses else None
        addresses[self.broker_id] = own._replace(rack=rack)
        return addresses

    async def leave_groups(self) -> None:
        """Refuse the requests that wait in groups, because the gateway stops."""
        self.groups.close()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Stop the threads and close the gateway's own connection. All sessions must have ended: they convert batches
        on the threads."""
        if self._first is not None:
            self._first.close()
        self.conversions.close()
        self.registry.close()
        if self._outside is not None:
            self._outside.close()
        self.long_requests.close()
