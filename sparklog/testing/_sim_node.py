"""One real broker on a machine of its own, as in the main module, but for sockets: from `Pipeline.answer` down."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace
from sparklog_broker.broker import Broker
from sparklog_broker.cluster.cluster_member import ClusterMember
from sparklog_broker.cluster.cluster_store import ZooKeeperStore
from sparklog_broker.config import make_config
from sparklog_broker.counters.requests import RequestTimes
from sparklog_broker.network.reply import Reply
from sparklog_broker.pipeline import Pipeline
from sparklog_broker.registry import HANDLERS

from sparklog.errors import LogCorruptError, SparklogError, StorageError
from sparklog.log.tools.repair import repair
from sparklog.protocol.frames import PREFIX_BYTES, RequestPrefix, decode_request_prefix
from sparklog.replication.cluster_image import ClusterImage
from sparklog.security.principals import ANONYMOUS
from sparklog.testing._sim_files import PowerCut
from sparklog.testing._sim_loop import SimLoop
from sparklog.testing._sim_machine import SimMachine
from sparklog.testing._sim_net import SimConnection, SimNet
from sparklog.testing._sim_peers import connection_opener
from sparklog.testing._sim_zookeeper import SimClient, SimZooKeeper
from sparklog.types import TopicPartition

PORT = 9292
FRAME_BYTES_MAX = 64 * 1024 * 1024
OnLeads = Callable[["Node", TopicPartition], None]


class Node:
    """A broker that can be started, killed, stopped and replaced repeatedly, reachable as `host`. Without ZooKeeper it
    is a cluster of its own, whose store is in its data directory. `on_leads(node, partition)` is called whenever it
    begins to lead.
    """

    def __init__(
        self,
        broker_id: int,
        host: str,
        machine: SimMachine,
        net: SimNet,
        zookeeper: SimZooKeeper | None,
        settings: Mapping[str, object],
    ) -> None:
        self.id = broker_id
        self.machine = machine
        self.host = host
        self._net = net
        self._zookeeper = zookeeper
        topic = {k.removeprefix("topic."): v for k, v in settings.items() if k.startswith("topic.")}
        given = {k: v for k, v in settings.items() if not k.startswith("topic.")}
        self._config = make_config(
            {
                "data.dir": "/data",
                "listen": f"{self.host}:{PORT}",
                "broker.id": broker_id,
                **({} if zookeeper is None else {"zookeeper.connect": "zookeeper:2181"}),
                **given,
            },
            topic,
        )
        self.loop: SimLoop | None = None
        self.broker: Broker | None = None
        self.zk: SimClient | None = None
        self.pipeline: Pipeline | None = None
        self.life = 0
        self._sound_since_boot = ""
        self.has_joined = False
        self.failed = ""
        """The reason for which its main module would end; empty while there is none."""
        self._starting: asyncio.Task[None] | None = None
        self.on_leads: OnLeads = lambda node, tp: None
        self.on_end: Callable[[Node], None] = lambda node: None
        """Called when its process is about to end."""

    # --- what it is

    @property
    def is_alive(self) -> bool:
        return self.loop is not None

    @property
    def is_paused(self) -> bool:
        return self.loop is not None and self.loop.is_paused

    @property
    def cluster(self) -> ClusterMember | None:
        return self.broker.cluster if self.broker is not None else None

    @property
    def broker_epoch(self) -> int:
        """Epoch of its registration; -1 without one."""
        cluster = self.cluster
        return -1 if cluster is None else cluster.membership.registration.broker_epoch

    def controller_image(self) -> ClusterImage | None:
        """Return its image if it is the controller, or believes to be."""
        return None if self.cluster is None else self.cluster.membership._controller.image

    # --- its life

    def start(self) -> None:
        """Begin to start, without waiting."""
        assert self.loop is None
        loop, environment = self.machine.process()
        self.loop, self.failed, self.has_joined = loop, "", False
        self.life += 1
        self._starting = loop.create_task(self._run(loop, environment))

    async def _run(self, loop: SimLoop, environment: object) -> None:
        """Run as `sparklog_broker.main` does. A power cut ends it anywhere."""
        try:
            await self._started(loop, environment)
        except PowerCut:
            return  # the world sees that the machine is off
        except SparklogError as e:
            self.failed = f"{type(e).__name__}: {e}"

    async def _started(self, loop: SimLoop, environment) -> None:  # type: ignore[no-untyped-def]
        config = replace(self._config)  # dynamic settings change it
        store = None
        connect = connection_opener(self._net, loop, self.host)
        if self._zookeeper is not None:
            self.zk = zk = self._zookeeper.client()
            if self._is_cut_off:
                self._zookeeper.cut(zk)
            store = await ZooKeeperStore.read(zk, config, environment)
        self.broker = broker = Broker.open(config, loop, environment, store, connect)
        self._watch_leaderships(broker.cluster)
        self.pipeline = pipeline = Pipeline(broker, HANDLERS)

        def accept(connection: SimConnection) -> None:
            ServerConnection(connection, pipeline, loop)

        self._net.listen(self.host, loop, accept)
        broker.start(self._on_failed)
        await broker.join((f"{self.host}:{PORT}",), self._on_failed)
        self.has_joined = True

    def _watch_leaderships(self, cluster: ClusterMember) -> None:
        tell = cluster.replicas._on_leadership

        def told(key: TopicPartition, leads: bool) -> None:
            if leads:
                self.on_leads(self, key)
            tell(key, leads)

        cluster.replicas._on_leadership = told

    def _on_failed(self, reason: str) -> None:
        self.failed = reason

    def look(self) -> None:
        """Raise AssertionError for a failure that its main module would not expect."""
        task = self._starting
        if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
            raise AssertionError(f"{self.host} could not start: {task.exception()!r}") from task.exception()

    def kill(self) -> None:
        """Kill the process (SIGKILL); written data stay."""
        self.machine.kill(self._detach())

    def power_cut(self) -> None:
        """Stop the machine; unsynced data may be lost."""
        if self.loop is None:
            self.machine.files.power_cut(self.machine.simulation.rng)
        else:
            self.machine.power_cut(self._detach())

    def _detach(self) -> SimLoop:
        self.on_end(self)
        loop, self.loop, self.broker = self.loop, None, None
        assert loop is not None
        self.failed, self.has_joined = "", False
        if self.zk is not None:
            self.zk.abandon()
            self.zk = None
        self._net.process_died(loop)
        return loop

    def stop(self, limit_s: float) -> bool:
        """Stop the broker (SIGTERM). Returns True if it has ended by itself in time; it is ended in any case."""
        loop, broker = self.loop, self.broker
        assert loop is not None
        ended = False
        if broker is not None and self.has_joined:
            stopping = loop.create_task(self._stop(broker))
            simulation = self.machine.simulation
            simulation.run(lambda: stopping.done() or self.machine.files.is_off, limit_s=simulation.now_s + limit_s)
            if self.machine.files.is_off:
                return False
            ended = stopping.done()
            if ended:
                stopping.result()
        self.kill()
        return ended

    async def _stop(self, broker: Broker) -> None:
        await broker.cluster.leave()
        broker.stop_waiting()
        with contextlib.suppress(StorageError):
            await broker.close()

    def repair(self) -> list[TopicPartition]:
        """Repair partitions that are offline after a power cut, as an operator would: end the broker, run `sparklog log
        repair`, start it. Returns the partitions. Raises AssertionError if there was no power cut since all of them
        were sound.
        """
        broker = self.broker
        assert broker is not None
        damaged = [p for p in broker.partitions.all() if isinstance(p.error, LogCorruptError)]
        boot_id = self.machine.files.boot_id()
        if not damaged:
            self._sound_since_boot = boot_id
            return []
        if boot_id == self._sound_since_boot:
            raise AssertionError(f"{self.host}: {damaged[0].key} is damaged without a power cut: {damaged[0].error}")
        work = [
            (
                broker.storage.logs.table.location_of(p.key)[0] / str(p.key),
                broker.partitions.topics[p.key.topic].schemas,
            )
            for p in damaged
        ]
        self.kill()
        for directory, schemas in work:
            repair(directory, self.machine.files, dry_run=False, schema_of=schemas.__getitem__)
        self.start()
        return sorted(p.key for p in damaged)

    # --- the way to ZooKeeper

    _is_cut_off = False

    @property
    def zookeeper(self) -> SimZooKeeper:
        """ZooKeeper; only of a broker that is not alone."""
        assert self._zookeeper is not None
        return self._zookeeper

    def cut_zookeeper(self, notice_ms: int) -> None:
        """Cut the broker off from ZooKeeper, and also a life that begins meanwhile."""
        self._is_cut_off = True
        if self.zk is not None:
            self.zookeeper.cut(self.zk, notice_ms)

    def heal_zookeeper(self) -> None:
        self._is_cut_off = False
        if self.zk is not None:
            self.zookeeper.heal(self.zk)

    def pause(self, seconds: float) -> None:
        """Pause the process (SIGSTOP) and its connection to ZooKeeper."""
        assert self.loop is not None
        self.loop.is_paused = True
        if self.zk is not None:
            self.zookeeper.cut(self.zk, round(seconds * 1_000))

    def resume(self) -> None:
        assert self.loop is not None
        self.loop.is_paused = False
        if self.zk is not None and not self._is_cut_off:
            self.zookeeper.heal(self.zk)


class ServerConnection:
    """Requests of one connection in order, as in `sparklog_broker.network.connection`."""

    def __init__(self, connection: SimConnection, pipeline: Pipeline, loop: SimLoop) -> None:
        self.local_address = ("127.0.0.1", 9292)
        self.peer_host = self.peer_name = connection.peer_host
        self.times = RequestTimes()
        self.principal = ANONYMOUS
        self.client_id = self.gateway = ""
        self.is_gateway = False
        self.authentication = None
        self.is_identified = True
        self.mute_ms = 0
        self.listener = self.local_socket = ""
        self._connection = connection
        self._pipeline = pipeline
        self._loop = loop
        self._waiting: deque[bytes] = deque()
        self._running: asyncio.Task[None] | None = None
        connection.on_message = self._on_message
        connection.on_lost = self._on_lost

    def _on_message(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._next()

    def _next(self) -> None:
        if self._running is None and self._waiting:
            frame = bytearray(self._waiting.popleft())
            prefix = decode_request_prefix(frame, FRAME_BYTES_MAX)
            self._running = self._loop.create_task(self._serve(prefix, memoryview(frame)[PREFIX_BYTES:]))

    async def _serve(self, prefix: RequestPrefix, body: memoryview) -> None:
        try:
            reply = await self._pipeline.answer(prefix, body, self)  # type: ignore[arg-type]
            self._running = None
            if reply is not None:
                self._send(reply)
        except PowerCut:
            return  # the machine is off: nothing more is sent
        except BaseException:
            self._connection.close()
            raise
        if self._connection.is_open:
            self._loop.call_soon(self._next)

    def _send(self, reply: Reply) -> None:
        try:
            frame = b"".join(p if isinstance(p, bytes | memoryview) else p.read() for p in reply.parts)  # type: ignore[attr-defined]
        finally:
            reply.release()
        if not self._is_off():
            self._connection.send(frame)
        if reply.close:
            self._connection.close()

    def _is_off(self) -> bool:
        environment = self._pipeline._broker.environment
        return bool(getattr(environment.files, "is_off", False))

    def _on_lost(self) -> None:
        self._waiting.clear()
        if self._running is not None:
            self._running.cancel()
