"""The real broker in a simulated machine: everything but sockets, from `Dispatcher.answer` down."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping

from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.counters.requests import RequestTimes
from sparklog_broker.dispatcher import Dispatcher
from sparklog_broker.network.reply import Reply
from sparklog_broker.registry import HANDLERS

from sparklog.errors import LogCorruptError, StorageError, StorageFullError
from sparklog.log.tools.repair import repair
from sparklog.protocol.frames import PREFIX_BYTES, RequestPrefix, decode_request_prefix
from sparklog.security.principals import ANONYMOUS
from sparklog.testing.sim_files import PowerCut
from sparklog.testing.sim_loop import SimLoop
from sparklog.testing.sim_machine import SimMachine
from sparklog.testing.sim_net import SimConnection, SimNet
from sparklog.types import TopicPartition

PORT = 9292
FRAME_BYTES_MAX = 64 * 1024 * 1024


class SimBroker:
    """A broker on one machine that can be started, killed and stopped repeatedly, reachable as `host`."""

    def __init__(self, machine: SimMachine, net: SimNet, host: str, settings: Mapping[str, object]) -> None:
        self.machine = machine
        self.host = host
        self._net = net
        topic = {k.removeprefix("topic."): v for k, v in settings.items() if k.startswith("topic.")}
        given = {k: v for k, v in settings.items() if not k.startswith("topic.")}
        self._config = make_config({"data.dir": "/data", "listen": "127.0.0.1:0", **given}, topic)
        self.loop: SimLoop | None = None
        self.broker: Broker | None = None
        self.has_joined = False
        self.failed = ""
        """The reason for which its main module would end; empty while there is none."""
        self._joining: asyncio.Task[None] | None = None
        self._sound_since_boot = ""

    @property
    def is_running(self) -> bool:
        return self.loop is not None

    def start(self) -> None:
        """Open the data directory (in no virtual time) and listen; the broker joins its cluster afterwards. Raises
        PowerCut, StorageError.
        """
        loop, environment = self.machine.process()
        self.failed, self.has_joined = "", False
        self.loop = loop
        self.broker = broker = Broker.open(self._config, loop, environment)
        dispatcher = Dispatcher(broker, HANDLERS)
        self._joining = loop.create_task(self._join(broker))
        self._net.listen(self.host, loop, lambda connection: self._accept(connection, dispatcher, loop))

    async def _join(self, broker: Broker) -> None:
        """Join the cluster as `sparklog_broker.main` does. A power cut ends it anywhere."""
        try:
            broker.start(self._on_failed)
            await broker.join((f"{self.host}:{PORT}",), self._on_failed)
            self.has_joined = True
        except PowerCut:
            return  # the world sees that the machine is off

    def try_start(self) -> bool:
        """Start the broker. Returns False if its disks prevent that. Raises PowerCut."""
        try:
            self.start()
        except (StorageError, StorageFullError):
            self.kill()
            return False
        return True

    def repair(self) -> list[TopicPartition]:
        """Repair partitions that are offline after a power cut, as an operator would: stop the broker, run `sparklog
        log repair`, start it. Returns the partitions. Raises AssertionError if there was no power cut since all of them
        were sound.
        """
        broker = self.broker
        assert broker is not None
        damaged = [
            (TopicPartition(topic.name, number), topic)
            for topic in broker.partitions.topics.values()
            for number in range(topic.partitions)
            if (found := broker.partitions.find(TopicPartition(topic.name, number))) is not None
            and isinstance(found.error, LogCorruptError)
        ]
        boot_id = self.machine.files.boot_id()
        if not damaged:
            self._sound_since_boot = boot_id
        else:
            if boot_id == self._sound_since_boot:
                raise AssertionError(f"{damaged[0][0]} is damaged without a power cut")
            places = [broker.storage.logs.location_of(tp)[0] / str(tp) for tp, _ in damaged]
            self.stop()
            for (_, topic), directory in zip(damaged, places, strict=True):
                repair(directory, self.machine.files, dry_run=False, schema_of=topic.schemas.__getitem__)
            self.start()
        return [tp for tp, _ in damaged]

    def _on_failed(self, reason: str) -> None:
        self.failed = reason

    def _accept(self, connection: SimConnection, dispatcher: Dispatcher, loop: SimLoop) -> None:
        ServerConnection(connection, dispatcher, loop)

    def kill(self) -> None:
        """Kill the process (SIGKILL); written data stay."""
        loop = self._detach()
        self.machine.kill(loop)

    def power_cut(self) -> None:
        """Stop the machine; unsynced data may be lost."""
        loop = self._detach()
        self.machine.power_cut(loop)

    def _detach(self) -> SimLoop:
        loop, self.loop, self.broker = self.loop, None, None
        assert loop is not None
        self.has_joined = False
        self._net.process_died(loop)
        return loop

    def stop(self) -> None:
        """Stop the broker (SIGTERM), and wait until it has ended."""
        loop, broker = self.loop, self.broker
        assert loop is not None and broker is not None
        self.machine.simulation.complete(loop, self._stop(broker))
        self._detach()
        self.machine.kill(loop)

    async def _stop(self, broker: Broker) -> None:
        broker.stop_waiting()
        with contextlib.suppress(StorageError):
            await broker.close()


class ServerConnection:
    """Requests of one connection in order, as in `sparklog_broker.network.connection`."""

    def __init__(self, connection: SimConnection, dispatcher: Dispatcher, loop: SimLoop) -> None:
        self.local_address = ("127.0.0.1", 9292)
        self.peer_host = self.peer_name = connection.peer_host
        self.times = RequestTimes()
        self.principal = ANONYMOUS
        self.client_id = ""
        self.authentication = None
        self.is_known = True
        self.mute_ms = 0
        self.listener = self.local_socket = ""
        self._connection = connection
        self._dispatcher = dispatcher
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
            reply = await self._dispatcher.answer(prefix, body, self)  # type: ignore[arg-type]
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
        environment = self._dispatcher._broker.environment
        return bool(getattr(environment.files, "is_off", False))

    def _on_lost(self) -> None:
        self._waiting.clear()
        if self._running is not None:
            self._running.cancel()
